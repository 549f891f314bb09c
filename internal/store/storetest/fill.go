package storetest

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// filledChains is the number of chains that Fill completes.
const filledChains = 5

// Fill writes real records to a store: an organization with sealed chains and an open one, and one
// record of each kind for governance and proofs. To test a migration, fill a store of the newest
// version and copy what the earlier version had tables and columns for.
func Fill(t *testing.T, s store.Store) {
	t.Helper()
	w := newWorld(t, func(*testing.T) store.Store { return s })
	m := w.join(t)
	ids := w.openChains(t, m, filledChains+1)
	for _, id := range ids {
		w.mustAct(t, id, newAction("first"), newAction("second"))
	}
	w.mustSeal(t, m, ids[:filledChains]...)
	w.write(t, &store.Changes{
		NewApprovals: []*store.ApprovalRecord{w.approval(m, ids[filledChains], 1)},
		NewPolicies:  []*store.PolicyRecord{w.policy(m.org.ID, 1)}, Webhooks: []*store.WebhookRecord{w.webhook(m.org.ID)},
	})
	w.prove(t, m)
}

// prove adds one of each record that proves something to others.
func (w *world) prove(t *testing.T, m *member) {
	t.Helper()
	w.write(t, &store.Changes{
		NewTokens: []*store.TokenRecord{w.token(m.org.ID)}, SigningKeys: []*store.SigningKeyRecord{w.signingKey(m.org.ID)},
	})
	w.putAnchors(t, w.anchor(m.org.ID, filledChains, authority))
}

// VerifyFilled audits and counts what Fill wrote.
func VerifyFilled(t *testing.T, s store.Store) {
	t.Helper()
	w, m, _ := verifyFilled(t, s)
	w.wantGoverned(t, m)
	w.wantProofs(t, m, 1)
}

func (w *world) wantGoverned(t *testing.T, m *member) {
	t.Helper()
	approvals := must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), store.ApprovalQuery{Org: m.org.ID, OpenedBy: &m.key.ID, Limit: 10}))
	policies := must[[]*store.PolicyRecord](t)(w.Policies(t.Context(), m.org.ID, 0, 10))
	webhooks := must[[]*store.WebhookRecord](t)(w.Webhooks(t.Context(), m.org.ID))
	if len(approvals) != 1 || len(policies) != 1 || len(webhooks) != 1 {
		t.Errorf("found %d approvals, %d policies and %d webhooks, want one each", len(approvals), len(policies), len(webhooks))
	}
}

func (w *world) wantProofs(t *testing.T, m *member, each int) {
	t.Helper()
	tokens := must[[]*store.TokenRecord](t)(w.Tokens(t.Context(), m.org.ID, nil, 10))
	keys := must[[]*store.SigningKeyRecord](t)(w.SigningKeys(t.Context(), m.org.ID))
	anchors := must[[]*store.AnchorRecord](t)(w.HeadAnchors(t.Context(), m.org.ID, 1))
	if len(tokens) != each || len(keys) != each || len(anchors) != each {
		t.Errorf("found %d tokens, %d signing keys and %d anchors, want %d each", len(tokens), len(keys), len(anchors), each)
	}
}

func verifyFilled(t *testing.T, s store.Store) (*world, *member, ledger.ChainID) {
	t.Helper()
	w := newWorld(t, func(*testing.T) store.Store { return s })
	w.verifyLedger(t)
	organizations, err := s.Organizations(t.Context())
	if err != nil || len(organizations) != 1 {
		t.Fatalf("found %d organizations, %v", len(organizations), err)
	}
	org := organizations[0]
	keys, err := s.Keys(t.Context(), org.ID, ledger.KeyID{}, 10)
	if err != nil || len(keys) != 1 {
		t.Fatalf("found %d keys, want 1, %v", len(keys), err)
	}
	receipts, err := s.Receipts(t.Context(), org.ID, 0, 2*filledChains)
	if err != nil || len(receipts) != filledChains {
		t.Errorf("found %d receipts, want %d, %v", len(receipts), filledChains, err)
	}
	open, err := s.Chains(t.Context(), store.ChainQuery{Org: org.ID, Status: ledger.ChainActive, Limit: 10})
	if err != nil || len(open) != 1 {
		t.Fatalf("found %d open chains, want 1, %v", len(open), err)
	}
	return w, &member{org: org, key: keys[0]}, open[0].ID
}

// VerifyGoverned is VerifyFilled for a store migrated from the version with governance but without
// proofs.
func VerifyGoverned(t *testing.T, s store.Store) {
	t.Helper()
	w, m, _ := verifyFilled(t, s)
	w.wantGoverned(t, m)
	w.wantProofs(t, m, 0)
	w.prove(t, m)
	w.wantProofs(t, m, 1)
	w.verifyLedger(t)
}

// VerifyMigrated is VerifyFilled for a store migrated from a version before governance: its records
// can be read, and new ones can be added.
func VerifyMigrated(t *testing.T, s store.Store) {
	t.Helper()
	w, m, chain := verifyFilled(t, s)
	assertEqual(t, "controls", m.org.Controls, ledger.Controls{})
	for _, event := range must[[]*ledger.StoredEvent](t)(s.Events(t.Context(), chain, 0, 10)) {
		if event.MAC != nil {
			t.Errorf("event %d came over with an authenticator", event.Sequence)
		}
	}
	log := must[*ledger.ActLog](t)(s.ActLog(t.Context(), m.org.ID))
	if !log.Begins() {
		t.Error("a log from before there were any has begun")
	}
	log.Begin()

	changed := *m.org
	changed.Controls.KillSwitch.Active = true
	changes := &store.Changes{Orgs: []*ledger.Organization{&changed}, NewJobs: []*store.Job{w.job("first", "", w.now())}}
	if err := w.note(log, &changed, "kill_switch.activate", changes); err != nil {
		t.Fatalf("note: %v", err)
	}
	w.write(t, changes)
	w.mustAct(t, chain, newAction("after"))
	approval := w.approval(m, chain, 3)
	w.write(t, &store.Changes{NewApprovals: []*store.ApprovalRecord{approval}})

	assertEqual(t, "organization", must[*ledger.Organization](t)(s.Organization(t.Context(), m.org.ID)), &changed)
	assertEqual(t, "approval", must[*store.ApprovalRecord](t)(s.Approval(t.Context(), approval.ID)), approval)
	if event := must[*ledger.StoredEvent](t)(s.Event(t.Context(), store.EventAt{Chain: chain, Sequence: 3})); event.MAC == nil {
		t.Error("an event after the migration has no authenticator")
	}
	w.wantClaim(t, w.now(), "first")
	w.wantProofs(t, m, 0)
	w.prove(t, m)
	w.wantProofs(t, m, 1)
	w.verifyLedger(t)
}
