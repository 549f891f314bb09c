package testdb_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Interrupted, scripts/with-postgres ends all that its command has started, also what a
// shell has put into the background, which ignores an interrupt.
func TestInterruptReachesTheBackground(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, path := range []string{filepath.Dir(folder), folder} {
		// Root lends the cluster another user, who must come here.
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A cluster is not what this is about.
	program(t, folder, "initdb", `while [ "$1" != -D ]; do shift; done; mkdir "$2" && : >"$2/postgresql.conf"`)
	program(t, folder, "pg_ctl", "")
	cmd := exec.CommandContext(t.Context(), "../../scripts/with-postgres", "bash", "-c", `sleep 300 & sleep 0.3; echo $!; wait`)
	cmd.Env = append(os.Environ(), "COUNTERSIGN_TEST_POSTGRES=", "COUNTERSIGN_POSTGRES_BIN="+folder, "TMPDIR="+folder)
	cmd.Stderr = os.Stderr
	out, shown, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = shown
	err = cmd.Start()
	_ = shown.Close() // the command has its own
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 20)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	background, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted command has succeeded")
	}
	// The output ends with the last process that can write to it.
	if err := out.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil {
		t.Errorf("the command in the background is still running: %v", err)
		_ = syscall.Kill(background, syscall.SIGKILL)
	}
}

// program writes a shell script.
func program(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// scripts/install-packages looks for PostgreSQL where scripts/with-postgres does, and
// installs it only if it is not there.
func TestPostgresIsInstalledWhereItIsMissing(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"apt-get", "sudo"} {
		program(t, folder, name, `echo "$@"`)
	}
	install := func() string {
		cmd := exec.CommandContext(t.Context(), "../../scripts/install-packages")
		cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "COUNTERSIGN_POSTGRES_BIN="+folder)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	if out := install(); !strings.Contains(out, "postgresql-15") {
		t.Errorf("there is none, and it is not installed: %q", out)
	}
	program(t, folder, "initdb", "")
	if out := install(); strings.Contains(out, "postgresql-15") {
		t.Errorf("there is one, and another is installed: %q", out)
	}
}

// scripts/test-python --every fails if there is no Python to run the tests on.
func TestEveryPythonIsOneAtLeast(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"bash", "dirname", "grep", "sort", "awk", "env"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "../../scripts/test-python", "--every")
	cmd.Env = append(os.Environ(), "PATH="+folder, "PYENV_ROOT="+folder)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no Python") {
		t.Errorf("got %v, %q, want an error that says why", err, out)
	}
}

// scripts/nightly refuses a part that it does not have before it runs any: a part that is not there would
// pass.
func TestNightlyRefusesUnknownParts(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"none", "", "race generated"} {
		cmd := exec.CommandContext(t.Context(), "../../scripts/nightly", part)
		cmd.Env = append(os.Environ(), "COUNTERSIGN_TEST_POSTGRES=unused")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "there is no part") {
			t.Errorf("%q: got %v, %q, want an error that says why", part, err, out)
		}
	}
}
