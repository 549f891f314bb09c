package httpapi_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
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
	store      store.Store
	direct     *sql.DB
	tables     string              // finds a query for each table that writes its rows as texts
	everything *sql.Stmt           // all of those as one
	edit       string              // replaces a receipt's body
	ofChain    string              // finds the rows of a chain by its id
	numbered   bool                // parameters have numbers
	read       string              // finds a receipt's body
	id         func(uuid.UUID) any // an id as a column holds it
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
		tables: `SELECT 'SELECT ''' || s.name || ' '' || ' || group_concat('quote("' || c.name || '")', ' || '','' || ') || ' FROM ' || s.name
			FROM sqlite_schema s, pragma_table_info(s.name) c WHERE s.type = 'table' GROUP BY s.name`,
		edit: "UPDATE receipts SET body = ? WHERE id = ?", ofChain: "chain_no = (SELECT no FROM chains WHERE id = ?)",
		read: "SELECT body FROM receipts WHERE id = ?",
		id:   func(id uuid.UUID) any { return id[:] },
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
		// An intruder who owns the database is held up by no foreign key.
		store: opened, direct: openDirect(t, "pgx", withQuery(t, address, "session_replication_role", "replica")),
		tables: "select format('select %L || t::text from %I t', tablename || ' ', tablename) from pg_tables where schemaname = '" + schema + "'",
		edit:   "update receipts set body = $1 where id = $2", ofChain: "chain_id = ?", numbered: true,
		read: "select body from receipts where id = $1",
		id:   func(id uuid.UUID) any { return id.String() },
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
	if d.everything == nil {
		d.everything = d.prepare(t, strings.Join(texts(t, d.prepare(t, d.tables)), " UNION ALL "))
	}
	lines := texts(t, d.everything)
	if len(lines) == 0 {
		t.Fatal("nothing is stored")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (d *database) prepare(t *testing.T, query string) *sql.Stmt {
	t.Helper()
	statement, err := d.direct.PrepareContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	return statement
}

func texts(t *testing.T, query *sql.Stmt) (lines []string) {
	t.Helper()
	rows, err := query.QueryContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
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

// The dump sees every table, or nothing could be said about what changed.
func TestDumpSeesEverything(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		sealed := s.seal(t, s.acme.agent, "dumped")
		seen := make(map[string]bool)
		for line := range strings.Lines(s.database.dump(t)) {
			table, _, _ := strings.Cut(line, " ")
			seen[table] = true
		}
		for _, table := range []string{"organizations", "api_keys", "heads", "chains", "chain_states", "events", "receipts", "master_keys"} {
			if !seen[table] {
				t.Errorf("the dump does not show %s", table)
			}
		}
		before := s.database.dump(t)
		s.database.editReceipt(t, *sealed.ReceiptID, func(body string) string { return body + " " })
		if s.database.dump(t) == before {
			t.Error("the dump does not show a change")
		}
	})
}
