package service_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/keyring"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

var sqliteDialect = dialect{
	mark: func(int) string { return "?" }, is: "IS", pristine: "pristine.",
	columns: "SELECT name FROM pragma_table_info(?)",
	owner: map[string]string{
		"receipts":           sqliteOrg("t.org_id") + ", t.sequence",
		"heads":              sqliteOrg("t.org_id") + fmt.Sprintf(", %d", nextReceipt),
		"chains":             sqliteOrg("t.org_id") + ", " + sqliteReceipt("t.no"),
		"chain_states":       sqliteOrg("t.org_id") + ", " + sqliteReceipt("t.chain_no"),
		"events":             sqliteOrg("(SELECT c.org_id FROM chains c WHERE c.no = t.chain_no)") + ", " + sqliteReceipt("t.chain_no"),
		"addenda":            sqliteOrg("(SELECT c.org_id FROM chains c WHERE c.no = t.chain_no)") + ", " + sqliteReceipt("t.chain_no"),
		"approvals":          sqliteOrg("t.org_id") + fmt.Sprintf(", coalesce((SELECT r.sequence FROM receipts r WHERE r.chain_id = t.chain_id), %d)", nextReceipt),
		"acts":               sqliteOrg("t.org_id") + ", 0",
		"act_logs":           sqliteOrg("t.org_id") + ", 0",
		"api_keys":           "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"sign_ins":           sqliteOrg("(SELECT k.org_id FROM api_keys k WHERE k.id = t.key_id)") + ", 0",
		"policies":           "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"budget_counters":    "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"findings":           "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"organizations":      "t.slug, 0",
		"webhooks":           "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"webhook_deliveries": "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"jobs":               "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"tokens":             "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"signing_keys":       "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"imported_approvals": "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"anchors":            "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"transparency_logs":  "coalesce(" + sqliteOrg("t.org_id") + ", ''), 0",
		"log_checkpoints":    "coalesce(" + sqliteOrg("(SELECT l.org_id FROM transparency_logs l WHERE l.id = t.log_id)") + ", ''), 0",
		"log_tiles":          "coalesce(" + sqliteOrg("(SELECT l.org_id FROM transparency_logs l WHERE l.id = t.log_id)") + ", ''), 0",
	},
}

func sqliteOrg(id string) string { return "(SELECT slug FROM organizations WHERE id = " + id + ")" }

func sqliteReceipt(chain string) string {
	return fmt.Sprintf("coalesce((SELECT r.sequence FROM receipts r JOIN chains c ON c.id = r.chain_id WHERE c.no = %s), %d)", chain, nextReceipt)
}

// sqliteLedger is filled once; every scene works on a copy of the file.
type sqliteLedger struct {
	path  string
	ring  *keyring.Ring
	marks *keyring.LogMarks
	past  past
	logs  map[string]*tamperedLog
}

func fillSQLite(t *testing.T, folder string) *sqliteLedger {
	t.Helper()
	db := testdb.SQLite(t)
	ring, _ := servicetest.NewRing(t)
	opened := db.Open(t)
	clock := newClock()
	l := &sqliteLedger{path: filepath.Join(folder, "filled.db"), ring: ring, marks: newLogMarks(t, ring), past: newPast(), logs: make(map[string]*tamperedLog)}
	s := serve(t, service.Config{
		Store: opened, Keys: ring, Clock: clock.Now, PrivateWebhooks: true, LogKeys: ring, LogMarks: l.marks, Alone: true,
		Signing: &service.Signing{Keys: ring, Instance: "log.example.com"},
	})
	watcher := &scene{t: t, direct: db.Direct(t), dialect: sqliteDialect, past: l.past, logs: l.logs}
	fillLedger(t, s, clock, watcher)
	if err := opened.Backup(t.Context(), l.path); err != nil {
		t.Fatal(err)
	}
	return l
}

// scene opens a copy of the ledger.
func (l *sqliteLedger) scene(t *testing.T) *scene {
	t.Helper()
	folder := t.TempDir()
	work := filepath.Join(folder, "countersign.db")
	content, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(work, content, 0o600); err != nil {
		t.Fatal(err)
	}
	db := testdb.SQLiteFile(work)
	s := &scene{
		t: t, service: serve(t, service.Config{Store: db.Open(t), Keys: l.ring, Clock: whenTampered, LogKeys: l.ring, LogMarks: l.marks}),
		dialect: sqliteDialect, past: l.past, logs: l.logs,
		direct: testdb.OpenSQL(t, "sqlite", db.Source+"&_pragma=synchronous(off)&_pragma=foreign_keys(0)&_pragma=ignore_check_constraints(1)"),
	}
	if err := s.exec("ATTACH DATABASE ? AS pristine", l.path); err != nil {
		t.Fatal(err)
	}
	return s
}

// An audit of an SQLite ledger finds every edit, move, cut and forgery in its
// evidence, and reports nothing in an untouched one.
func TestTamperedSQLite(t *testing.T) {
	t.Parallel()
	l := fillSQLite(t, t.TempDir())
	t.Run("untouched", func(t *testing.T) {
		t.Parallel()
		s := l.scene(t)
		for _, slug := range tamperedOrgs {
			checkIntact(t, s.service, slug, sealedChains)
		}
	})
	for _, table := range strings.Fields(evidence) {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			s := l.scene(t)
			s.editEverything(table, 1)
			s.moveEverything(table, 1)
			s.checkUntouched()
		})
	}
	t.Run("cuts", func(t *testing.T) {
		t.Parallel()
		s := l.scene(t)
		s.cutTheEnd(1)
		s.reopenChains(1)
		s.eraseOrganizations()
		s.checkUntouched()
	})
	t.Run("copies of logs", func(t *testing.T) {
		t.Parallel()
		s := l.scene(t)
		s.copyLogs()
		s.checkUntouched()
	})
	t.Run("organizations", func(t *testing.T) {
		t.Parallel()
		s := l.scene(t)
		s.bendOrganizations()
		s.checkUntouched()
	})
	t.Run("receipts alone", func(t *testing.T) {
		t.Parallel()
		s := l.scene(t)
		s.options.ReceiptsOnly = true
		s.editBodies()
		s.cutReceipts()
		s.checkUntouched()
	})
	t.Run("forgeries", func(t *testing.T) {
		t.Parallel()
		s := l.scene(t)
		s.forgeReceipts()
		s.forgeEntries(2)
		s.renumber()
		s.checkUntouched()
	})
}

// checkUntouched checks that the suite leaves no changes behind, and that no audit reports a false
// finding.
func (s *scene) checkUntouched() {
	s.t.Helper()
	for _, slug := range tamperedOrgs {
		if found := s.audit(slug); found != nil {
			s.t.Errorf("%s is intact again, and the audit finds %v", slug, found)
		}
	}
}
