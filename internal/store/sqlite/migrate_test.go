package sqlite_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/store"
	"countersign/internal/store/sqlite"
	"countersign/internal/store/storetest"
)

// Migrating a filled database from any older version keeps its content.
func TestMigratesForwardOnAFilledStore(t *testing.T) {
	t.Parallel()
	newest := filepath.Join(t.TempDir(), "newest.db")
	filled := open(t, newest)
	if err := filled.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.Fill(t, filled)
	for version, verify := range map[int64]func(*testing.T, store.Store){
		1: storetest.VerifyMigrated, 2: storetest.VerifyMigrated, 3: storetest.VerifyGoverned, 4: storetest.VerifyFilled,
		6: storetest.VerifyFilled,
	} {
		t.Run(fmt.Sprint("from version ", version), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "test.db")
			s := open(t, path)
			if err := s.MigrateTo(t.Context(), version); err != nil {
				t.Fatal(err)
			}
			copyOlder(t, newest, path)
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantNewest(t, s)
			verify(t, s)
		})
	}
}

func wantNewest(t *testing.T, s *sqlite.Store) {
	t.Helper()
	current, latest, err := s.SchemaVersion(t.Context())
	if err != nil || current != latest || current < 4 {
		t.Fatalf("schema version %d of %d, %v", current, latest, err)
	}
}

// copyOlder copies what the older schema has tables and columns for, as the older
// version would have written it.
func copyOlder(t *testing.T, from, to string) {
	t.Helper()
	db, err := sql.Open("sqlite", to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), "ATTACH ? AS newest", from); err != nil {
		t.Fatal(err)
	}
	for _, table := range column(t, db, "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'goose%' AND name NOT LIKE 'sqlite%'") {
		columns := strings.Join(column(t, db, "SELECT name FROM pragma_table_info(?, 'main')", table), ", ")
		insert := fmt.Sprintf("INSERT INTO main.%s (%s) SELECT %s FROM newest.%s", table, columns, columns, table)
		if _, err := db.ExecContext(t.Context(), insert); err != nil {
			t.Fatalf("%s: %v", insert, err)
		}
	}
}

// column reads a query's only column.
func column(t *testing.T, db *sql.DB, query string, args ...any) (texts []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return texts
}
