package sqlite_test

import (
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/sqlite"
)

// Each list has an index that finds its records, and hardly any others, in order.
func TestPlans(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "test.db"))
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var key ledger.KeyID
	var chain ledger.ChainID
	for name, test := range map[string]struct {
		query store.ApprovalQuery
		index string
	}{
		"all":                         {store.ApprovalQuery{}, "approvals_org"},
		"pending":                     {store.ApprovalQuery{Status: ledger.ApprovalPending}, "approvals_status"},
		"pending, the oldest":         {store.ApprovalQuery{Status: ledger.ApprovalPending, Oldest: true, Before: new(store.ApprovalAt)}, "approvals_status"},
		"of a key":                    {store.ApprovalQuery{OpenedBy: &key}, "approvals_opener"},
		"of a key, further on":        {store.ApprovalQuery{OpenedBy: &key, Before: new(store.ApprovalAt)}, "approvals_opener"},
		"of a key, denied":            {store.ApprovalQuery{OpenedBy: &key, Status: ledger.ApprovalDenied}, "approvals_opener"},
		"of a key, pending":           {store.ApprovalQuery{OpenedBy: &key, Status: ledger.ApprovalPending}, "approvals_status"},
		"of a chain":                  {store.ApprovalQuery{Chain: &chain}, "chain_id="},
		"of a chain and key, pending": {store.ApprovalQuery{Chain: &chain, OpenedBy: &key, Status: ledger.ApprovalPending}, "chain_id="},
	} {
		query, args := sqlite.ApprovalsQuery(test.query)
		plan := explain(t, db, query, args...)
		if !strings.Contains(plan, test.index) || strings.Contains(plan, "TEMP B-TREE") != (test.query.Chain != nil) {
			t.Errorf("approvals %s: the plan is\n%s", name, plan)
		}
	}
	plan := explain(t, db, sqlite.HeadAnchorsQuery, []byte{}, []byte{}, []byte{}, int64(1))
	if strings.Count(plan, "anchors_head") != 3 || strings.Contains(plan, "SCAN anchors") || strings.Contains(plan, "TEMP B-TREE") {
		t.Errorf("anchors of heads: the plan is\n%s", plan)
	}
	plan = explain(t, db, sqlite.KeyByHashQuery, []byte{}, []byte{})
	if !strings.Contains(plan, "(hash=?)") || !strings.Contains(plan, "(previous_hash=?)") || strings.Contains(plan, "SCAN") {
		t.Errorf("a key by its hash: the plan is\n%s", plan)
	}
	plan = explain(t, db, sqlite.ScanRest, []byte{}, []byte{}, []byte{}, []byte{}, int64(1), int64(1), int64(1))
	if !strings.Contains(plan, "id>? AND id<?") || !strings.Contains(plan, "(chain_no=? AND sequence>?)") || strings.Contains(plan, "TEMP B-TREE") {
		t.Errorf("the rest of a scan of events: the plan is\n%s", plan)
	}
}

func explain(t *testing.T, db *sqlite.Store, query string, args ...any) string {
	t.Helper()
	steps, err := db.Explain(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(steps, "\n")
}
