package httpapi_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver that looks behind the store's back

	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// database is a fresh store with a second way in: tests read and alter its
// tables as an intruder would, past the service.
type database struct {
	store  store.Store
	direct *sql.DB
	tables string               // a query for the names of all tables
	edit   string               // replaces a receipt's body
	read   string               // finds a receipt's body
	id     func(uuid.UUID) any // an id as a column holds it
}

var backends = map[string]func(*testing.T) *database{"sqlite": openSQLite, "postgres": openPostgres}

// eachStore runs a test on both stores.
func eachStore(t *testing.T, test func(t *testing.T, open func(*testing.T) *database)) {
	t.Helper()
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// onEachStack is eachStore for tests that need nothing but the usual stack.
func onEachStack(t *testing.T, test func(t *testing.T, s *stack)) {
	t.Helper()
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) { test(t, start(t, open(t), setup{})) })
}

func openSQLite(t *testing.T) *database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "countersign.db")
	opened, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	if err := opened.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &database{
		store: opened, direct: openDirect(t, "sqlite", "file:"+path+"?_pragma=busy_timeout(10000)"),
		tables: "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name",
		edit:   "UPDATE receipts SET body = ? WHERE id = ?",
		read:   "SELECT body FROM receipts WHERE id = ?",
		id:     func(id uuid.UUID) any { return id[:] },
	}
}

const postgresVariable = "COUNTERSIGN_TEST_POSTGRES"

// openPostgres gives each test a schema of its own.
func openPostgres(t *testing.T) *database {
	t.Helper()
	server := os.Getenv(postgresVariable)
	if server == "" {
		t.Fatalf("%s names no PostgreSQL server: run make test, or scripts/with-postgres go test ./internal/httpapi", postgresVariable)
	}
	schema := "t_" + randomHex(8)
	admin := openDirect(t, "pgx", server)
	if _, err := admin.ExecContext(t.Context(), "create schema "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "drop schema "+schema+" cascade"); err != nil {
			t.Errorf("drop schema: %v", err)
		}
	})
	address := withQuery(t, server, "search_path", schema)
	opened, err := postgres.Open(t.Context(), withQuery(t, address, "pool_max_conns", "4"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	if err := opened.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &database{
		store: opened, direct: openDirect(t, "pgx", address),
		tables: "select tablename from pg_tables where schemaname = '" + schema + "' order by 1",
		edit:   "update receipts set body = $1 where id = $2",
		read:   "select body from receipts where id = $1",
		id:     func(id uuid.UUID) any { return id.String() },
	}
}

func withQuery(t *testing.T, address, name, value string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("the PostgreSQL URL cannot be read")
	}
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

func openDirect(t *testing.T, driver, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, name)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// dump is every row of every table, in an order of its own.
func (d *database) dump(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, table := range d.rows(t, d.tables) {
		name := strings.Trim(table, "| ")
		for _, row := range d.rows(t, "SELECT * FROM "+name) {
			lines = append(lines, name+" "+row)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (d *database) rows(t *testing.T, query string) (lines []string) {
	t.Helper()
	rows, err := d.direct.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	values, targets := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		targets[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			t.Fatal(err)
		}
		var line strings.Builder
		for _, value := range values {
			fmt.Fprintf(&line, "|%s", printable(value))
		}
		lines = append(lines, line.String())
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func printable(value any) string {
	if data, ok := value.([]byte); ok {
		return hex.EncodeToString(data)
	}
	return fmt.Sprint(value)
}

// editReceipt alters a stored receipt.
func (d *database) editReceipt(t *testing.T, id string, edit func(string) string) {
	t.Helper()
	parsed := uuid.MustParse(id)
	var body []byte
	if err := d.direct.QueryRowContext(t.Context(), d.read, d.id(parsed)).Scan(&body); err != nil {
		t.Fatal(err)
	}
	edited := edit(string(body))
	if edited == string(body) {
		t.Fatal("the edit changes nothing")
	}
	if _, err := d.direct.ExecContext(t.Context(), d.edit, []byte(edited), d.id(parsed)); err != nil {
		t.Fatal(err)
	}
}

func randomHex(n int) string {
	random := make([]byte, n)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}
