package service_test

import (
	"fmt"
	"strings"
	"testing"

	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

var postgresDialect = dialect{
	mark: func(n int) string { return fmt.Sprintf("$%d", n) }, is: "IS NOT DISTINCT FROM", pristine: "pristine_",
	// A replaced row stays until the next vacuum, and every audit reads past it.
	notIn:   " t WHERE NOT t::text = ANY (SELECT other::text FROM %s other)",
	columns: "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
	owner: map[string]string{
		"receipts":           postgresOrg("t.org_id") + ", t.sequence",
		"heads":              postgresOrg("t.org_id") + fmt.Sprintf(", %d", nextReceipt),
		"chains":             postgresOrg("t.org_id") + ", " + postgresReceipt("t.id"),
		"chain_states":       postgresOrg("t.org_id") + ", " + postgresReceipt("t.chain_id"),
		"events":             postgresOrg("(SELECT c.org_id FROM chains c WHERE c.id = t.chain_id)") + ", " + postgresReceipt("t.chain_id"),
		"addenda":            postgresOrg("(SELECT c.org_id FROM chains c WHERE c.id = t.chain_id)") + ", " + postgresReceipt("t.chain_id"),
		"approvals":          postgresOrg("t.org_id") + ", " + postgresReceipt("t.chain_id"),
		"acts":               postgresOrg("t.org_id") + ", 0",
		"act_logs":           postgresOrg("t.org_id") + ", 0",
		"api_keys":           "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"sign_ins":           postgresOrg("(SELECT k.org_id FROM api_keys k WHERE k.id = t.key_id)") + ", 0",
		"policies":           "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"budget_counters":    "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"findings":           "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"organizations":      "t.slug, 0",
		"webhooks":           "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"webhook_deliveries": "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"jobs":               "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"tokens":             "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"signing_keys":       "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"imported_approvals": "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"anchors":            "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"transparency_logs":  "coalesce(" + postgresOrg("t.org_id") + ", ''), 0",
		"log_checkpoints":    "coalesce(" + postgresOrg("(SELECT l.org_id FROM transparency_logs l WHERE l.id = t.log_id)") + ", ''), 0",
		"log_tiles":          "coalesce(" + postgresOrg("(SELECT l.org_id FROM transparency_logs l WHERE l.id = t.log_id)") + ", ''), 0",
	},
}

func postgresOrg(id string) string { return "(SELECT slug FROM organizations WHERE id = " + id + ")" }

func postgresReceipt(chain string) string {
	return fmt.Sprintf("coalesce((SELECT r.sequence FROM receipts r WHERE r.chain_id = %s), %d)", chain, nextReceipt)
}

// newPostgresScene fills a schema, keeps a copy of each table beside it, and connects as a
// superuser who turns foreign keys off.
func newPostgresScene(t *testing.T) *scene {
	t.Helper()
	db := testdb.Postgres(t)
	clock := newClock()
	ring, _ := servicetest.NewRing(t)
	s := &scene{
		t: t, dialect: postgresDialect, direct: db.Direct(t), past: newPast(), logs: make(map[string]*tamperedLog),
		service: serve(t, service.Config{
			Store: db.Open(t), Keys: ring, Committers: 2, Clock: clock.Now, PrivateWebhooks: true, LogKeys: ring, LogMarks: newLogMarks(t, ring),
			Signing: &service.Signing{Keys: ring, Instance: "log.example.com"},
		}),
	}
	fillLedger(t, s.service, clock, s)
	queries := []string{"SET session_replication_role = replica"}
	for _, table := range strings.Fields(evidence + " organizations") {
		queries = append(queries, "CREATE TEMP TABLE pristine_"+table+" AS SELECT * FROM "+table)
	}
	for _, query := range queries {
		if err := s.exec(query); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// An audit of a PostgreSQL ledger finds tampering with its evidence. Only the schema and the
// queries of the store differ from SQLite, so a sample of the rows is enough.
func TestTamperedPostgres(t *testing.T) {
	t.Parallel()
	s := newPostgresScene(t)
	for _, slug := range tamperedOrgs {
		checkIntact(t, s.service, slug, sealedChains)
	}
	for _, table := range strings.Fields(evidence) {
		every := max(1, len(s.rowsOf(table))/3)
		s.editEverything(table, every)
		s.moveEverything(table, every)
	}
	s.cutTheEnd(5)
	s.reopenChains(5)
	s.eraseOrganizations()
	s.bendOrganizations()
	s.copyLogs()
	s.forgeReceipts()
	s.forgeEntries(9)
	s.renumber()
	s.checkUntouched()
}
