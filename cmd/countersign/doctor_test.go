package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// The doctor recommends a backup for a damaged database only, not for one that it cannot open.
func TestDoctorOnADatabaseThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	succeed(t, s.args("orgs", "create", "acme")...)
	database := filepath.Join(s.folder, "countersign.db")
	moved := filepath.Join(t.TempDir(), "moved.db")
	if err := os.Rename(database, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(database, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := refuse(t, cli.ExitFailed, "it could not be checked", s.args("doctor")...); strings.Contains(r.out, "restore a backup") {
		t.Errorf("the doctor says %s", r.out)
	}
	content, err := os.ReadFile(moved)
	if err != nil {
		t.Fatal(err)
	}
	remove(t, database)
	writeFile(t, database, bytes.ReplaceAll(content, []byte("SQLite format 3"), []byte("SQLite format ?")))
	refuse(t, cli.ExitFailed, "restore a backup", s.args("doctor")...)
}
