package testdb_test

import (
	"testing"

	"countersign/internal/testdb"
)

// A database is fresh, whichever test used it before: it is empty, its sequences start at one, and
// nobody else is connected.
func TestDatabasesAreFresh(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name string
		make func(testing.TB) *testdb.Database
	}{{"sqlite", testdb.SQLite}, {"postgres", testdb.Postgres}} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			for range 3 { // the second and third reuse the database of the first
				t.Run("use", func(t *testing.T) {
					db := kind.make(t)
					direct := db.Direct(t)
					var rows int
					if err := direct.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM organizations) + (SELECT count(*) FROM job_names)").Scan(&rows); err != nil {
						t.Fatal(err)
					}
					if rows != 0 {
						t.Errorf("%d rows of an earlier test are left", rows)
					}
					if _, err := direct.ExecContext(t.Context(), usedBy[db.Kind]); err != nil {
						t.Fatal(err)
					}
					if err := db.Open(t).Migrate(t.Context()); err != nil {
						t.Errorf("a migrated database cannot be migrated again: %v", err)
					}
				})
			}
		})
	}
}

var usedBy = map[string]string{
	"sqlite":   "INSERT INTO job_names (org_id, name) VALUES (x'01', 'left behind')",
	"postgres": "INSERT INTO job_names (org_id, name) VALUES ('00000000-0000-4000-8000-000000000001', 'left behind')",
}

// A database whose schema was changed is not reused.
func TestChangedSchemaIsNotLentAgain(t *testing.T) {
	t.Parallel()
	var first string
	t.Run("change", func(t *testing.T) {
		db := testdb.Postgres(t)
		first = db.URL
		if _, err := db.Direct(t).ExecContext(t.Context(), "ALTER TABLE receipts RENAME TO hidden"); err != nil {
			t.Fatal(err)
		}
	})
	for range 5 {
		if db := testdb.Postgres(t); db.URL == first {
			t.Fatal("the database with the changed schema was reused")
		}
	}
}
