package httpapi_test

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/store"
	"countersign/internal/testdb"
)

// database is a fresh store with a second way in: tests read and alter its
// tables as an intruder would, past the service.
type database struct {
	store      store.Store
	direct     *sql.DB
	tables     string              // finds a query for each table that writes its rows as texts
	everything *sql.Stmt           // all of those as one
	changes    string              // finds a text that is another one after every change
	changed    *sql.Stmt           // changes, prepared
	dumped     string              // by the last dump
	dumpedAt   string              // what changes found before it
	edit       string              // replaces a receipt's body
	ofChain    string              // finds the rows of a chain by its id
	numbered   bool                // parameters have numbers
	read       string              // finds a receipt's body
	id         func(uuid.UUID) any // an id as a column holds it
}

// eachStore runs a test on both stores.
func eachStore(t *testing.T, test func(t *testing.T, open func(*testing.T) *database)) {
	t.Helper()
	testdb.OnEach(t, func(t *testing.T, first *testdb.Database) {
		unused := first
		test(t, func(t *testing.T) *database {
			t.Helper()
			db := unused
			if unused = nil; db == nil {
				db = first.Fresh(t)
			}
			return openDatabase(t, db)
		})
	})
}

// onEachStack is eachStore for tests that need nothing but the usual stack.
func onEachStack(t *testing.T, test func(t *testing.T, s *stack)) {
	t.Helper()
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) { test(t, start(t, openDatabase(t, db), setup{})) })
}

func openDatabase(t *testing.T, db *testdb.Database) *database {
	t.Helper()
	if db.Kind == "sqlite" {
		return &database{
			store: db.Open(t), direct: db.Direct(t),
			tables: `SELECT 'SELECT ''' || s.name || ' '' || ' || group_concat('quote("' || c.name || '")', ' || '','' || ') || ' FROM ' || s.name
			FROM sqlite_schema s, pragma_table_info(s.name) c WHERE s.type = 'table' GROUP BY s.name`,
			// The first tells of the changes of other connections, the second of its own.
			changes: "SELECT data_version || ' ' || total_changes() FROM pragma_data_version",
			edit:    "UPDATE receipts SET body = ? WHERE id = ?", ofChain: "chain_no = (SELECT no FROM chains WHERE id = ?)",
			read: "SELECT body FROM receipts WHERE id = ?",
			id:   func(id uuid.UUID) any { return id[:] },
		}
	}
	return &database{
		// An intruder who owns the database is held up by no foreign key.
		store: db.Open(t), direct: testdb.OpenSQL(t, db.Driver, testdb.WithParameter(t, db.Source, "session_replication_role", "replica")),
		tables: "select format('select %L || t::text from %I t', tablename || ' ', tablename) from pg_tables where schemaname = 'public'",
		// Every transaction that changes something on the server moves it on.
		changes: "select pg_current_wal_insert_lsn()::text",
		edit:    "update receipts set body = $1 where id = $2", ofChain: "chain_id = ?", numbered: true,
		read: "select body from receipts where id = $1",
		id:   func(id uuid.UUID) any { return id.String() },
	}
}

// dump is every row of every table, in an order of its own. What has not changed since the last
// time is not read again.
func (d *database) dump(t *testing.T) string {
	t.Helper()
	if d.everything == nil {
		d.everything = d.prepare(t, strings.Join(texts(t, d.prepare(t, d.tables)), " UNION ALL "))
		d.changed = d.prepare(t, d.changes)
	}
	now := texts(t, d.changed)[0]
	if now == d.dumpedAt {
		return d.dumped
	}
	lines := texts(t, d.everything)
	if len(lines) == 0 {
		t.Fatal("nothing is stored")
	}
	slices.Sort(lines)
	d.dumped, d.dumpedAt = strings.Join(lines, "\n"), now
	return d.dumped
}

// A dump has what the service wrote since the last one, and what an intruder changed.
func TestDumpsHaveEveryChange(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		first := s.database.dump(t)
		s.open(t, s.acme.agent, `{"name":"new"}`)
		second := s.database.dump(t)
		if second == first {
			t.Error("the dump lacks what the service wrote")
		}
		if _, err := s.database.direct.ExecContext(t.Context(), "UPDATE organizations SET name = 'another'"); err != nil {
			t.Fatal(err)
		}
		if s.database.dump(t) == second {
			t.Error("the dump lacks what the intruder changed")
		}
	})
}

// dumpOf is dump for some tables.
func (d *database) dumpOf(t *testing.T, tables ...string) string {
	t.Helper()
	lines := strings.Split(d.dump(t), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		table, _, _ := strings.Cut(line, " ")
		return !slices.Contains(tables, table)
	}), "\n")
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
