package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scripts/bench-cost says why a run failed, and has it keep its files in a folder that the
// script removes.
func TestBenchCostTellsWhy(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	fails := []byte("#!/bin/sh\necho \"$@\" >&2\necho 'scenario events: refused' >&2\nexit 1\n")
	if err := os.WriteFile(filepath.Join(folder, "fails"), fails, 0o755); err != nil {
		t.Fatal(err)
	}
	const measure = `
import pathlib, runpy, sys
folder = pathlib.Path(sys.argv[1])
runpy.run_path("../../scripts/bench-cost")["measure"](folder / "fails", folder, "1s")`
	out, err := exec.CommandContext(t.Context(), "python3", "-c", measure, folder).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "scenario events: refused") || !strings.Contains(string(out), "--dir "+folder) {
		t.Errorf("got %v, want the error of the run in %s:\n%s", err, folder, out)
	}
}
