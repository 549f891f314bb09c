package main

import (
	"os"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// A command whose output cannot be written fails, and says so in a word.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	succeed(t, s.args("orgs", "create", "acme")...)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{s.args("keys", "create", "--role", "agent"), s.args("keys", "list"), s.args("audit"), s.args("doctor"), {"version"}, {"completion", "bash"}} {
		var said servicetest.Buffer
		code := run(t.Context(), args, strings.NewReader(""), full, &said)
		if code != cli.ExitFailed || strings.Count(said.String(), "no space left on device") != 1 {
			t.Errorf("%v: exit status %d, says %s", args, code, said.String())
		}
	}
}

// A verdict that could not be printed is not lost without a word, whatever the exit status.
func TestVerdictThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t) // has no key file, which fails a check
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var said servicetest.Buffer
	code := run(t.Context(), s.args("doctor"), strings.NewReader(""), full, &said)
	if code != cli.ExitFailed || !strings.Contains(said.String(), "no space left on device") {
		t.Errorf("exit status %d, says %q", code, said.String())
	}
}
