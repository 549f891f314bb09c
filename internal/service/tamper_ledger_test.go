package service_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/verify"
)

// The tamper suite fills a ledger with everything that a ledger can contain, and changes the
// database in every way. Each change must be found by the audit, which must name the first bad
// receipt, or be refused by a constraint.

const (
	sealedChains = 12                      // of each organization
	nextReceipt  = int64(sealedChains) + 1 // where an audit places what concerns no receipt that is there
	evidence     = "receipts events addenda heads chains chain_states approvals acts act_logs policies findings budget_counters imported_approvals transparency_logs log_checkpoints log_tiles"
)

// whenTampered returns when the ledger is audited: long after it was filled, and before the
// windows of its budgets are over.
func whenTampered() time.Time { return time.Date(2026, 5, 25, 9, 0, 0, 0, time.UTC) }

var tamperedOrgs = []string{"acme", "other"}

// scene is a database with a filled ledger, direct access past the service, and a pristine copy of
// every table to restore.
type scene struct {
	t       testing.TB
	service *service.Service
	direct  *sql.DB
	dialect dialect
	past    past
	logs    map[string]*tamperedLog // by organization
	options verify.AuditOptions
}

// past is what an intruder may have kept of earlier days, by organization.
type past struct {
	heads  map[string][]row // after 0, 1, 2… receipts
	states map[string][]row // of the 1st, 2nd… sealed chain, the moment before it was
}

func newPast() past { return past{heads: map[string][]row{}, states: map[string][]row{}} }

// dialect is what differs between the two databases.
type dialect struct {
	mark     func(n int) string // the n-th parameter
	is       string             // compares, NULL with NULL included
	columns  string             // the columns of a table, by its name
	pristine string             // what makes a table's name that of its copy
	notIn    string             // restricts a table to the rows that table %s lacks; "" where none is needed
	owner    map[string]string  // expressions for a row's organization id and the receipt it belongs to
}

// row is one row of a table.
type row struct {
	table    string
	columns  []string
	values   []any
	org      string // slug
	sequence int64  // of the receipt that it is evidence for
}

func (r *row) value(column string) any {
	for i, name := range r.columns {
		if name == column {
			return r.values[i]
		}
	}
	panic("no column " + column + " in " + r.table)
}

// with returns a copy of the row with other values.
func (r row) with(changes map[string]any) row {
	r.values = append([]any(nil), r.values...)
	for i, name := range r.columns {
		if value, ok := changes[name]; ok {
			r.values[i] = value
		}
	}
	return r
}

// fillLedger creates what the suite tampers with. Each organization has 12 sealed chains, some
// failed, with events, payloads, idempotency keys and outcomes, with approvals that ended in every
// way, with reported events and a pause that was lifted; open chains with and without events, with
// open approvals; acts of admins; and a transparency log that a witness has cosigned. The watcher
// keeps what an intruder could have kept.
func fillLedger(t testing.TB, s *service.Service, clock *servicetest.Clock, watcher *scene) {
	t.Helper()
	for _, slug := range tamperedOrgs {
		f := &filler{governed{Service: s, t: t, clock: clock, who: newTenant(t, s, slug)}}
		watcher.keepHead(slug)
		f.administer()
		for i := range sealedChains {
			id := fillChain(t, s, f.who, fmt.Sprint(slug, "-", i), i%3)
			f.liven(id, i)
			watcher.keepState(slug)
			completion := &ledger.Completion{}
			if i%5 == 4 {
				completion = &ledger.Completion{Failed: true, Failure: &ledger.Failure{Type: "ValueError", Message: "gone"}}
			}
			must[*service.Completed](t)(s.CompleteChain(t.Context(), f.who.agent, id, completion))
			watcher.keepHead(slug)
		}
		f.leaveFindings()
		f.leaveOpen(fillChain(t, s, f.who, slug+"-open", 2))
		fillChain(t, s, f.who, slug+"-empty", 0)
		watcher.publish(s, f.who)
	}
}

// leaveFindings leaves open and acknowledged findings.
func (f *filler) leaveFindings() {
	f.t.Helper()
	for _, row := range []string{"a row", "another row", "a third row"} {
		f.NoteTampering(f.who.id, fmt.Errorf("%s fails its authenticator: %w", row, ledger.ErrStateTampered))
	}
	f.WaitForFindings()
	findings := must[[]*service.Finding](f.t)(f.Operator().Findings(f.t.Context(), f.who.slug))
	if len(findings) != 3 {
		f.t.Fatalf("%d findings are kept, want 3", len(findings))
	}
	done(f.t, f.Operator().Acknowledge(f.t.Context(), findings[0], "looked at"))
}

func (s *scene) keepHead(slug string) {
	s.t.Helper()
	s.past.heads[slug] = append(s.past.heads[slug], s.ofOrg("heads", slug)[0])
}

// keepState keeps the state of the chain opened last.
func (s *scene) keepState(slug string) {
	s.t.Helper()
	states := s.ofOrg("chain_states", slug)
	s.past.states[slug] = append(s.past.states[slug], states[len(states)-1])
}

func fillChain(t testing.TB, s *service.Service, who *tenant, name string, events int) ledger.ChainID {
	t.Helper()
	key := ""
	if events != 1 {
		key = "open-" + name
	}
	chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, name), key))
	for j := range events {
		eventKey := ""
		if j == 1 {
			eventKey = "key-1"
		}
		action := step(t, fmt.Sprint(name, "-", j), eventKey)
		if j == 0 { // one with a secret, so that there are digests to change
			action = request(t, ledger.ParseAction, fmt.Sprintf(`{"agent_name":"agent","action_type":"tool_call","action_name":"%s-0","payload":{"password":"of %s"}}`, name, name))
		}
		recorded := must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain.ID, action))
		if j == 0 {
			report := &ledger.Entry{Result: ledger.Succeeded, Detail: "done"}
			must[*service.Outcome](t)(s.ReportOutcome(t.Context(), who.agent, chain.ID, recorded.Event.ID, report))
		}
	}
	return chain.ID
}

// columnsOf returns the columns that the database lists, so that a new column is covered, too.
func (s *scene) columnsOf(table string) []string {
	s.t.Helper()
	var columns []string
	s.each(s.dialect.columns, []any{table}, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		columns = append(columns, name)
		return err
	})
	if len(columns) == 0 {
		s.t.Fatalf("table %s has no columns", table)
	}
	return columns
}

// rowsOf reads a table, with the receipt that each row belongs to.
func (s *scene) rowsOf(table string) []row {
	s.t.Helper()
	columns := s.columnsOf(table)
	query := fmt.Sprintf("SELECT t.%s, %s FROM %s t ORDER BY 1, 2", strings.Join(columns, ", t."), s.dialect.owner[table], table)
	var found []row
	s.each(query, nil, func(scan func(...any) error) error {
		r := row{table: table, columns: columns, values: make([]any, len(columns))}
		targets := make([]any, 0, len(columns)+2)
		for i := range r.values {
			targets = append(targets, &r.values[i])
		}
		err := scan(append(targets, &r.org, &r.sequence)...)
		for i, value := range r.values {
			if value, isBytes := value.([]byte); isBytes && value == nil {
				r.values[i] = []byte{} // the driver's way to say: empty, but there
			}
		}
		found = append(found, r)
		return err
	})
	if len(found) == 0 {
		s.t.Fatalf("table %s is empty", table)
	}
	return found
}

func (s *scene) each(query string, args []any, visit func(scan func(...any) error) error) {
	s.t.Helper()
	rows, err := s.direct.QueryContext(s.t.Context(), query, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := visit(rows.Scan); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) exec(query string, args ...any) error {
	_, err := s.direct.ExecContext(s.t.Context(), query, args...)
	return err
}

// where returns the condition that selects a row by all of its values.
func (s *scene) where(r *row, from int) string {
	var conditions []string
	for i, column := range r.columns {
		conditions = append(conditions, column+" "+s.dialect.is+" "+s.dialect.mark(from+i))
	}
	return " WHERE " + strings.Join(conditions, " AND ")
}

func (s *scene) set(r *row, column string, value any) error {
	query := "UPDATE " + r.table + " SET " + column + " = " + s.dialect.mark(1) + s.where(r, 2)
	if err := s.exec(query, append([]any{value}, r.values...)...); err != nil {
		return err
	}
	var same int
	err := s.direct.QueryRowContext(s.t.Context(), "SELECT count(*) FROM "+r.table+s.where(r, 1), r.values...).Scan(&same)
	if err == nil && same > 0 {
		return errUnchanged
	}
	return err
}

// errUnchanged reports that the database considers a value equal to the old one: an id in
// capitals, or bytes given as text.
var errUnchanged = errors.New("nothing was changed")

func (s *scene) remove(r *row) error {
	return s.exec("DELETE FROM "+r.table+s.where(r, 1), r.values...)
}

func (s *scene) insert(r *row) error { return s.exec(s.insertion(r), r.values...) }

// insertion returns the statement that inserts a row, without its values.
func (s *scene) insertion(r *row) string {
	marks := make([]string, len(r.columns))
	for i := range marks {
		marks[i] = s.dialect.mark(i + 1)
	}
	return "INSERT INTO " + r.table + " (" + strings.Join(r.columns, ", ") + ") VALUES (" + strings.Join(marks, ", ") + ")"
}

// restore restores tables from their copies, all of them if none is named.
func (s *scene) restore(tables ...string) {
	s.t.Helper()
	if len(tables) == 0 {
		tables = strings.Fields(evidence + " organizations")
	}
	for _, table := range tables {
		pristine := s.dialect.pristine + table
		remove, insert := "DELETE FROM "+table, "INSERT INTO "+table+" SELECT * FROM "+pristine
		if s.dialect.notIn != "" {
			remove += fmt.Sprintf(s.dialect.notIn, pristine)
			insert += fmt.Sprintf(s.dialect.notIn, table)
		}
		if err := s.exec(remove + "; " + insert); err != nil {
			s.t.Fatal(err)
		}
	}
}

// audit audits one organization.
func (s *scene) audit(slug string) *ledger.Break {
	s.t.Helper()
	report, err := s.service.Operator().Audit(s.t.Context(), slug, s.options)
	if err != nil {
		s.t.Fatalf("the audit could not read what was only tampered with: %v", err)
	}
	if (report.Break == nil) != (report.Status == verify.AuditIntact) {
		s.t.Fatalf("status %s with break %v", report.Status, report.Break)
	}
	return report.Break
}

// crime is one way of tampering, and what the audit must report.
type crime struct {
	name     string
	commit   func(*scene) error
	org      string // whose audit must find it
	sequence int64
	checks   []ledger.Check

	tables  []string // that it touches; all if none is named
	earlier bool     // it may also break something before its own receipt
	unsaid  bool     // it only takes from what is published: the audit need not name it
	single  bool     // it is one statement: where that is refused, nothing was changed
}

// try commits a crime and audits. It reports whether a constraint refused it.
func (s *scene) try(c crime) (refused bool) {
	s.t.Helper()
	err := c.commit(s)
	if err == nil || !c.single {
		defer s.restore(c.tables...)
	}
	if err != nil {
		if !isConstraint(err) && !errors.Is(err, errUnchanged) {
			s.t.Fatalf("%s: %v", c.name, err)
		}
		return true
	}
	found := s.audit(c.org)
	if found == nil {
		if !c.unsaid {
			s.t.Errorf("%s: the audit of %s finds nothing", c.name, c.org)
		} else if err := s.logs[c.org].check(s.t.Context(), s.service); err != nil {
			s.t.Errorf("%s: the audit of %s finds nothing, and readers are misled: %v", c.name, c.org, err)
		}
		return false
	}
	known := len(c.checks) == 0
	for _, check := range c.checks {
		known = known || found.Check == check
	}
	there := found.Sequence == c.sequence || c.earlier && found.Sequence < c.sequence
	named := strings.HasSuffix(found.ReceiptNumber, fmt.Sprintf("-%05d", found.Sequence)) && !strings.Contains(found.ReceiptNumber, "-0000-")
	switch {
	case found.Sequence == 0: // it concerns no receipt
		named = found.ReceiptNumber == ""
	case found.ReceiptNumber == "": // no receipt before it tells the year, so the detail names what it is
		named = found.Sequence == 1 && (found.Check == ledger.CheckHead || strings.HasPrefix(found.Detail, "receipt 1: ") || strings.HasPrefix(found.Detail, "chain "))
	}
	if !there || !known || !named {
		s.t.Errorf("%s: found %+v, want one of %v at receipt %d", c.name, found, c.checks, c.sequence)
	}
	return false
}

func isConstraint(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "constraint") || strings.Contains(text, "datatype mismatch") || // SQLite
		strings.Contains(text, "sqlstate 23") || strings.Contains(text, "sqlstate 22") || strings.Contains(text, "sqlstate 42804") ||
		strings.Contains(text, "cannot find encode plan") || strings.Contains(text, "unable to encode") // PostgreSQL has no such value
}
