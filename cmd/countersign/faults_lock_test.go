package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"countersign/internal/servicetest"
)

// withoutLock is a server whose lock on one file of its folder is refused, as some network file systems do.
func withoutLock(folder, file string) *exec.Cmd {
	command := exec.Command("strace", "-f", "-o", "/dev/null", "-P", filepath.Join(folder, file), "-e", "trace=flock", "-e", "inject=flock:error=ENOLCK",
		os.Args[0], "serve", "--listen", "127.0.0.1:0", "--data", folder)
	command.Env = crashEnvironment()
	command.WaitDelay = time.Second // a tracer that is killed leaves the server, which ends with its input
	return command
}

// A folder that cannot be locked is not served, and is not said to be in use by another server.
//
//countersign:race
func TestFolderThatCannotBeLocked(t *testing.T) {
	t.Parallel()
	server, err := launchCrashServer(t.Context(), withoutLock(t.TempDir(), "serve.lock"))
	if err == nil {
		server.dispose()
		t.Fatal("the folder is served")
	}
	if text := err.Error(); !strings.Contains(text, "lock data folder: no locks available") || strings.Contains(text, "another") {
		t.Errorf("it says %s", text)
	}
}

// A server that cannot lock its journal says why, and does not blame another server.
//
//countersign:race
func TestJournalThatCannotBeLocked(t *testing.T) {
	t.Parallel()
	server, err := launchCrashServer(t.Context(), withoutLock(t.TempDir(), "heads.chains.lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.dispose)
	servicetest.Eventually(t, "the log says why", func() bool { return strings.Contains(server.log.String(), "no locks available") })
	if text := server.log.String(); strings.Contains(text, "another server") {
		t.Errorf("it says %s", text)
	}
}
