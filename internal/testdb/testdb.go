// Package testdb gives tests databases of both kinds, fresh and migrated. It is
// the only place that makes one: bringing an empty database through all
// migrations takes longer than most tests, so each kind is migrated once and
// copied.
package testdb

import (
	"context"
	"database/sql"
	"testing"

	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// Database is one database of a test's own.
type Database struct {
	// Kind is "sqlite" or "postgres".
	Kind string
	// Path is the file of an SQLite database, URL the address of a PostgreSQL one;
	// the other is "".
	Path, URL string
	// Driver and Source are for database/sql: the way in past the store that a
	// tamperer takes.
	Driver, Source string

	lent *copied // of PostgreSQL, by Postgres
}

// Store is what both stores are besides the port: they migrate themselves.
type Store interface {
	store.Store
	Migrate(ctx context.Context) error
}

// Open opens the database once more, until the test ends: each handle stands for
// a process.
func (d *Database) Open(t testing.TB) Store {
	t.Helper()
	var (
		opened Store
		err    error
	)
	if d.Kind == "sqlite" {
		opened, err = sqlite.Open(t.Context(), d.Path)
	} else {
		opened, err = postgres.Open(t.Context(), WithParameter(t, d.URL, "pool_max_conns", "6"))
	}
	if err != nil {
		t.Fatalf("open the %s database: %v", d.Kind, err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return opened
}

// Direct opens the database past the store, until the test ends.
func (d *Database) Direct(t testing.TB) *sql.DB {
	t.Helper()
	return OpenSQL(t, d.Driver, d.Source)
}

// OpenSQL opens a database by its driver, on one connection, until the test ends.
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

// Fresh makes another database of the same kind.
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
