package main

import (
	"path/filepath"
	"testing"
)

// A file that is called - is read if it is named with its folder; - alone is standard input.
func TestHeadsImportOfAFileCalledDash(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	succeed(t, s.args("orgs", "create", "acme")...)
	exported := filepath.Join(t.TempDir(), "-")
	succeed(t, s.args("heads", "export", "--output", exported)...)
	succeed(t, s.args("heads", "import", exported)...)
}
