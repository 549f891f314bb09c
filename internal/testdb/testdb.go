// Package testdb provides tests with fresh, migrated databases of both kinds. All tests get their
// databases from it: running all migrations takes longer than most tests, so each kind is migrated
// once and copied.
package testdb

import (
	"context"
	"database/sql"
	"testing"

	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// Database is the database of one test.
type Database struct {
	// Kind is "sqlite" or "postgres".
	Kind string
	// Path is the file of an SQLite database, and URL the address of a PostgreSQL database. The
	// other one is "".
	Path, URL string
	// Driver and Source are for database/sql. Tests use them to bypass the store, like an attacker.
	Driver, Source string

	lent *copied // set by Postgres
}

// Store is the storage port plus Migrate, which both stores implement.
type Store interface {
	store.Store
	Migrate(ctx context.Context) error
}

// Open opens another handle on the database until the test ends. Each handle represents a process.
func (d *Database) Open(t testing.TB) Store {
	t.Helper()
	var (
		opened Store
		err    error
	)
	if d.Kind == "sqlite" {
		opened, err = sqlite.Open(t.Context(), d.Path)
	} else {
		// Every connection costs a process that reads the catalog and plans each statement anew.
		opened, err = postgres.Open(t.Context(), WithParameter(t, d.URL, "pool_max_conns", "4"))
	}
	if err != nil {
		t.Fatalf("open the %s database: %v", d.Kind, err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return opened
}

// Direct opens the database without the store until the test ends.
func (d *Database) Direct(t testing.TB) *sql.DB {
	t.Helper()
	return OpenSQL(t, d.Driver, d.Source)
}

// OpenSQL opens a database with one connection until the test ends.
func OpenSQL(t testing.TB, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Fresh creates another database of the same kind.
func (d *Database) Fresh(t testing.TB) *Database {
	t.Helper()
	if d.Kind == "sqlite" {
		return SQLite(t)
	}
	return Postgres(t)
}

// OnEach runs a test on a fresh database of each kind, in parallel.
func OnEach(t *testing.T, test func(t *testing.T, db *Database)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, SQLite(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, Postgres(t))
	})
}
