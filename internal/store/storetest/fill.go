package storetest

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// filledChains is how many chains Fill completes.
const filledChains = 5

// Fill puts real records into a store: an organization with sealed chains and an
// open one. It asks nothing of the schema that its first version did not have,
// so that migrations can be tried on what it leaves.
func Fill(t *testing.T, s store.Store) {
	t.Helper()
	w := newWorld(t, func(*testing.T) store.Store { return s })
	m := w.join(t)
	ids := w.openChains(t, m, filledChains+1)
	for _, id := range ids {
		w.mustAct(t, id, newAction("first"), newAction("second"))
	}
	w.mustSeal(t, m, ids[:filledChains]...)
}

// VerifyFilled audits what Fill left and counts it.
func VerifyFilled(t *testing.T, s store.Store) {
	t.Helper()
	w := newWorld(t, func(*testing.T) store.Store { return s })
	w.verifyLedger(t)
	organizations, err := s.Organizations(t.Context())
	if err != nil || len(organizations) != 1 {
		t.Fatalf("found %d organizations, %v", len(organizations), err)
	}
	receipts, err := s.Receipts(t.Context(), organizations[0].ID, 0, 2*filledChains)
	if err != nil || len(receipts) != filledChains {
		t.Errorf("found %d receipts, want %d, %v", len(receipts), filledChains, err)
	}
	open, err := s.Chains(t.Context(), store.ChainQuery{Org: organizations[0].ID, Status: ledger.ChainActive, Limit: 10})
	if err != nil || len(open) != 1 {
		t.Errorf("found %d open chains, want 1, %v", len(open), err)
	}
}
