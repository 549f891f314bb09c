package storetest

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// fixture is a ledger with one record of every kind for others to collide with.
type fixture struct {
	*member
	sealed   []ledger.ChainID // the chains of receipts 1 and 2
	open     ledger.ChainID   // has event 1 under the key "event" and an addendum at position 2
	opening  *store.ChainRecord
	approval *store.ApprovalRecord // of the open chain's event
	token    *store.TokenRecord    // issued under the key "issue"
	receipts []*ledger.StoredReceipt
}

func (w *world) newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{member: w.join(t)}
	f.sealed = w.sealedChains(t, f.member, 2)
	f.open = w.openChain(t, f.member)
	w.mustAct(t, f.open, newAction("event"))
	w.mustReport(t, f.open, 1, ledger.Unknown)
	f.opening = w.record(w.draft(f.member), "open")
	f.approval = w.approval(f.member, f.open, 1)
	f.token = w.token(f.org.ID)
	f.token.IdempotencyKey = "issue"
	w.write(t, &store.Changes{
		NewChains: []*store.ChainRecord{f.opening}, NewApprovals: []*store.ApprovalRecord{f.approval},
		NewPolicies: []*store.PolicyRecord{w.policy(f.org.ID, 1)}, NewTokens: []*store.TokenRecord{f.token},
	})
	for _, id := range f.sealed {
		f.receipts = append(f.receipts, must[*ledger.StoredReceipt](t)(w.ReceiptOfChain(t.Context(), id)))
	}
	return f
}

// collision makes changes of which one record conflicts with a stored one.
type collision struct {
	name    string
	changes func(w *world, f *fixture) *store.Changes
}

var collisions = []collision{
	{"chain id", func(w *world, f *fixture) *store.Changes {
		chain := w.record(w.draft(f.member), "")
		chain.ID = f.open
		return &store.Changes{NewChains: []*store.ChainRecord{chain}}
	}},
	{"key of an opening", func(w *world, f *fixture) *store.Changes {
		return &store.Changes{NewChains: []*store.ChainRecord{w.record(w.draft(f.member), "open")}}
	}},
	{"sequence of an event", func(_ *world, f *fixture) *store.Changes {
		return &store.Changes{NewEvents: []*ledger.StoredEvent{{Chain: f.open, Sequence: 1, Body: []byte("{}"), Payload: []byte("{}")}}}
	}},
	{"key of an event", func(_ *world, f *fixture) *store.Changes {
		return &store.Changes{NewEvents: []*ledger.StoredEvent{
			{Chain: f.open, Sequence: 2, IdempotencyKey: "event", Body: []byte("{}"), Payload: []byte("{}")},
		}}
	}},
	{"position of an addendum", func(_ *world, f *fixture) *store.Changes {
		return &store.Changes{NewAddenda: []*ledger.Addendum{{Chain: f.open, Position: 2, Sequence: 1, Body: []byte("{}")}}}
	}},
	{"id of an approval", func(w *world, f *fixture) *store.Changes {
		approval := w.approval(f.member, f.sealed[0], 1)
		approval.ID = f.approval.ID
		return &store.Changes{NewApprovals: []*store.ApprovalRecord{approval}}
	}},
	{"event of an approval", func(w *world, f *fixture) *store.Changes {
		return &store.Changes{NewApprovals: []*store.ApprovalRecord{w.approval(f.member, f.open, 1)}}
	}},
	{"number of a policy", func(w *world, f *fixture) *store.Changes {
		return &store.Changes{NewPolicies: []*store.PolicyRecord{w.policy(f.org.ID, 1)}}
	}},
	{"id of a token", tokenLike(func(t, taken *store.TokenRecord) { t.ID = taken.ID })},
	{"hash of a token", tokenLike(func(t, taken *store.TokenRecord) { t.Hash = taken.Hash })},
	{"key of an issue", tokenLike(func(t, taken *store.TokenRecord) { t.IdempotencyKey = taken.IdempotencyKey })},
	{"sequence of an act", func(_ *world, f *fixture) *store.Changes {
		return &store.Changes{NewActs: []*ledger.StoredAct{{Org: f.org.ID, Sequence: 1, Body: []byte("{}")}}}
	}},
	{"id of a receipt", receiptLike(func(r *ledger.StoredReceipt, f *fixture) { r.ID = f.receipts[0].ID })},
	{"sequence of a receipt", receiptLike(func(r *ledger.StoredReceipt, _ *fixture) { r.Sequence = 2 })},
	{"chain of a receipt", receiptLike(func(r *ledger.StoredReceipt, f *fixture) { r.Chain = f.sealed[0] })},
}

// tokenLike makes another token that shares one value with the stored one.
func tokenLike(share func(t, taken *store.TokenRecord)) func(*world, *fixture) *store.Changes {
	return func(w *world, f *fixture) *store.Changes {
		t := w.token(f.org.ID)
		share(t, f.token)
		return &store.Changes{NewTokens: []*store.TokenRecord{t}}
	}
}

// receiptLike makes the next receipt of the open chain with one value changed.
func receiptLike(change func(*ledger.StoredReceipt, *fixture)) func(*world, *fixture) *store.Changes {
	return func(w *world, f *fixture) *store.Changes {
		hash := f.receipts[1].Hash()
		r := &ledger.StoredReceipt{
			ID: w.receiptID(), Org: f.org.ID, Sequence: 3, Chain: f.open, PreviousHash: hash[:], Body: []byte("{}"),
		}
		change(r, f)
		return &store.Changes{NewReceipts: []*ledger.StoredReceipt{r}}
	}
}

// uniqueCases tries each collision: it is refused together with everything else in its transaction.
func uniqueCases() []testCase {
	cases := []testCase{{name: "changes without a collision are written", run: takesTheNextReceipt, unaudited: true}}
	for _, c := range collisions {
		cases = append(cases, testCase{name: c.name, run: func(t *testing.T, w *world) {
			f := w.newFixture(t)
			companion := w.record(w.draft(f.member), "")
			changes := c.changes(w, f)
			changes.NewChains = append(changes.NewChains, companion)
			wantError(t, "collision", attempt(t.Context(), w, changes), store.ErrExists)
			_, err := w.open(t).Chain(t.Context(), companion.ID)
			wantError(t, "chain that came with the collision", err, store.ErrNotFound)
			w.mustSeal(t, f.member, f.open, f.opening.ID) // the ledger can still be written
		}})
	}
	return cases
}

// takesTheNextReceipt proves that the collisions are refused because of what they change, and not
// because of how they are made.
func takesTheNextReceipt(t *testing.T, w *world) {
	f := w.newFixture(t)
	changes := receiptLike(func(*ledger.StoredReceipt, *fixture) {})(w, f)
	w.write(t, changes)
	assertEqual(t, "receipt", must[*ledger.StoredReceipt](t)(w.ReceiptOfChain(t.Context(), f.open)), changes.NewReceipts[0])

	// Values are unique only within one organization.
	g := w.newFixture(t)
	first := must[*ledger.StoredReceipt](t)(w.Receipt(t.Context(), g.receipts[0].ID))
	if first.Sequence != 1 || len(first.PreviousHash) != 0 {
		t.Errorf("another organization's first receipt has sequence %d and previous hash %x", first.Sequence, first.PreviousHash)
	}
}
