package main

import (
	"os"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// word.
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
