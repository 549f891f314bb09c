package testdb

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"countersign/internal/store/sqlite"
)

// SQLite creates a migrated database in a temporary folder of the test.
func SQLite(t testing.TB) *Database {
	t.Helper()
	return SQLiteAt(t, filepath.Join(t.TempDir(), "countersign.db"))
}

// SQLiteAt creates a migrated database in a file that does not exist yet.
func SQLiteAt(t testing.TB, path string) *Database {
	t.Helper()
	migrated, err := sqliteTemplate()
	if err != nil {
		t.Fatalf("make the SQLite template: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, migrated, 0o600); err != nil {
		t.Fatal(err)
	}
	return SQLiteFile(path)
}

// SQLiteFile describes a file without changing it. It may be empty, missing, or of another version.
func SQLiteFile(path string) *Database {
	escaped := (&url.URL{Path: path}).EscapedPath() // the folder of a subtest contains a #
	return &Database{Kind: "sqlite", Path: path, Driver: "sqlite", Source: "file:" + escaped + "?_pragma=busy_timeout(10000)"}
}

// sqliteTemplate returns the file of an empty migrated store, created once per process.
var sqliteTemplate = sync.OnceValues(func() (file []byte, err error) {
	folder, err := os.MkdirTemp("", "countersign-template-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	ctx := context.Background()
	s, err := sqlite.Open(ctx, filepath.Join(folder, "template.db"))
	if err != nil {
		return nil, err
	}
	copied := filepath.Join(folder, "copy.db")
	if err := errors.Join(s.Migrate(ctx), s.Backup(ctx, copied), s.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(copied)
})
