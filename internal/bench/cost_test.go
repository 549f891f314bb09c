package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scripts/bench-cost has the bench compare the programs that it has built, in a folder that it removes,
// and fails as the bench does.
func TestBenchCostComparesBuilds(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	fails := []byte("#!/bin/sh\necho \"$@\" >&2\necho 'scenario builds: refused' >&2\nexit 1\n")
	if err := os.WriteFile(filepath.Join(folder, "fails"), fails, 0o755); err != nil {
		t.Fatal(err)
	}
	const measure = `
import pathlib, runpy, sys
folder = pathlib.Path(sys.argv[1])
run = runpy.run_path("../../scripts/bench-cost")
sys.exit(run["measure"](folder / "fails", [folder / "a", folder / "b"], folder, ["--rounds", "2"]))`
	out, err := exec.CommandContext(t.Context(), "python3", "-c", measure, folder).CombinedOutput()
	want := "--scenario builds --dir " + folder + " --rounds 2 --build " + folder + "/a --build " + folder + "/b"
	if err == nil || !strings.Contains(string(out), "scenario builds: refused") || !strings.Contains(string(out), want) {
		t.Errorf("got %v, want the error of the run with %s:\n%s", err, want, out)
	}
}
