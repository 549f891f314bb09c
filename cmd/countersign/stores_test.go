package main

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"countersign/internal/testdb"
)

// testStore is a fresh store of one kind, and how commands are told of it.
type testStore struct {
	*testdb.Database
	flags  []string // that every command is given
	folder string
}

// onEachStore runs a test on both stores, side by side. The database of SQLite
// does not exist yet; that of PostgreSQL is migrated.
func onEachStore(t *testing.T, test func(*testing.T, *testStore)) {
	t.Helper()
	onEach(t, test, migratedSQLite, testdb.Postgres)
}

// onEachEmptyStore is onEachStore without a schema.
func onEachEmptyStore(t *testing.T, test func(*testing.T, *testStore)) {
	t.Helper()
	onEach(t, test, newSQLite, testdb.EmptyPostgres)
}

func onEach(t *testing.T, test func(*testing.T, *testStore), makeSQLite func(*testing.T) *testStore, makePostgres func(testing.TB) *testdb.Database) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, makeSQLite(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, newPostgres(t, makePostgres(t)))
	})
}

// newSQLite is a store in a folder that does not exist yet.
func newSQLite(t *testing.T) *testStore {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "data")
	return inFolder(folder, testdb.SQLiteFile(filepath.Join(folder, "countersign.db")))
}

// migratedSQLite is a store that has its schema, and nothing else. Under the race detector the
// migrations take longer than most tests, so tests that are not about the first start use it.
func migratedSQLite(t *testing.T) *testStore {
	t.Helper()
	s := newSQLite(t)
	s.Database = testdb.SQLiteAt(t, s.Path)
	return s
}

func inFolder(folder string, db *testdb.Database) *testStore {
	return &testStore{Database: db, flags: []string{"--data", folder}, folder: folder}
}

func newPostgres(t *testing.T, db *testdb.Database) *testStore {
	t.Helper()
	s := inFolder(filepath.Join(t.TempDir(), "data"), db)
	s.flags = append(s.flags, "--database", testdb.WithParameter(t, db.URL, "pool_max_conns", "6"))
	return s
}

// args are a command's words followed by the store's flags.
func (s *testStore) args(words ...string) []string { return append(words, s.flags...) }

func (s *testStore) keyFile() string { return filepath.Join(s.folder, "keys.json") }

// exec changes the store as an intruder would.
func (s *testStore) exec(t *testing.T, statement string) {
	t.Helper()
	db, err := sql.Open(s.Driver, s.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// The test's own context has ended when it cleans up.
	if _, err := db.ExecContext(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
