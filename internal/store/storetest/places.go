package storetest

import (
	"math"
	"sync"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func namesReceipts(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.sealedChains(t, other, 1)
	w.sealedChains(t, m, 2)
	for _, member := range []*member{m, other} {
		for _, want := range must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), member.org.ID, 0, 10)) {
			got := must[*store.NamedReceipt](t)(w.NamedReceipt(t.Context(), want.ID))
			assertEqual(t, "receipt", got.StoredReceipt, want)
			assertEqual(t, "slug", got.Slug, member.org.Slug)
		}
	}
	_, err := w.NamedReceipt(t.Context(), ledger.ReceiptID{UUID: uuid.New()})
	wantError(t, "unknown receipt", err, store.ErrNotFound)
}

func placesReceipts(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.sealedChains(t, other, 4)
	w.sealedChains(t, m, 3)
	newest := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, 0, 10))
	third, second, first := newest[0], newest[1], newest[2]
	head := must[*ledger.Head](t)(w.Head(t.Context(), m.org.ID))
	anchor := &store.AnchorRecord{
		Org: m.org.ID, Subject: store.AnchorSubject{Kind: "head", ID: second.ID.UUID}, Sequence: second.Sequence, Method: "opentimestamps",
		Digest: second.Hash(), Status: "pending", MAC: []byte("mac"),
	}
	if err := w.PutAnchor(t.Context(), anchor); err != nil {
		t.Fatal(err)
	}
	for _, want := range []*store.PlacedReceipt{
		{NamedReceipt: store.NamedReceipt{StoredReceipt: first}, Next: second, Anchored: true},
		{NamedReceipt: store.NamedReceipt{StoredReceipt: second}, Previous: first, Next: third, Anchored: true},
		{NamedReceipt: store.NamedReceipt{StoredReceipt: third}, Previous: second},
	} {
		want.Slug, want.Head = m.org.Slug, head
		assertEqual(t, "place", must[*store.PlacedReceipt](t)(w.PlacedReceipt(t.Context(), want.ID)), want)
	}
	_, err := w.PlacedReceipt(t.Context(), ledger.ReceiptID{UUID: uuid.New()})
	wantError(t, "unknown receipt", err, store.ErrNotFound)
}

// placesTheLast: an attacker can store a receipt with a sequence that no receipt can have. A read
// must return it as it is.
func placesTheLast(t *testing.T, w *world) {
	f := w.newFixture(t)
	changes := receiptLike(func(r *ledger.StoredReceipt, _ *fixture) { r.Sequence = math.MaxInt64 })(w, f)
	w.write(t, changes)
	placed := must[*store.PlacedReceipt](t)(w.PlacedReceipt(t.Context(), changes.NewReceipts[0].ID))
	assertEqual(t, "receipt", placed.StoredReceipt, changes.NewReceipts[0])
	if placed.Previous != nil || placed.Next != nil {
		t.Error("it has a neighbour")
	}
	newest := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), changes.NewReceipts[0].Org, 0, 1))
	assertEqual(t, "the newest receipt", newest, changes.NewReceipts)
	before := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), changes.NewReceipts[0].Org, math.MaxInt64, 1))
	if len(before) == 1 && before[0].Sequence == math.MaxInt64 {
		t.Error("the last receipt precedes itself")
	}
}

func placesTokens(t *testing.T, w *world) {
	m := w.join(t)
	w.sealedChains(t, m, 3)
	receipt := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, 0, 2))[1]
	inPlace := must[*store.PlacedReceipt](t)(w.PlacedReceipt(t.Context(), receipt.ID))
	for _, test := range []struct {
		artifact string
		id       uuid.UUID
		want     *store.PlacedReceipt
	}{
		{ledger.ArtifactReceipt, receipt.ID.UUID, inPlace},
		{ledger.ArtifactReceipt, uuid.New(), nil},
		{ledger.ArtifactApproval, receipt.ID.UUID, nil},
	} {
		token := w.token(m.org.ID)
		token.Artifact, token.ArtifactID = test.artifact, test.id
		w.write(t, &store.Changes{NewTokens: []*store.TokenRecord{token}})
		got := must[*store.ActiveToken](t)(w.ActiveToken(t.Context(), token.Hash, w.now()))
		assertEqual(t, "token", got.TokenRecord, token)
		assertEqual(t, "receipt", must[*store.PlacedReceipt](t)(got.Receipt(t.Context())), test.want)
	}
}

func asksTogether(t *testing.T, w *world) {
	const rounds = 20
	m := w.join(t)
	w.sealedChains(t, m, 5)
	receipts := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, 0, 10))
	tokens := w.issue(t, m, 5)
	var asking sync.WaitGroup
	for i := range receipts {
		asking.Go(func() {
			for range rounds {
				if named, err := w.NamedReceipt(t.Context(), receipts[i].ID); err != nil || named.ID != receipts[i].ID {
					t.Errorf("named receipt %d: another's, or %v", i, err)
				}
				if placed, err := w.PlacedReceipt(t.Context(), receipts[i].ID); err != nil || placed.ID != receipts[i].ID {
					t.Errorf("placed receipt %d: another's, or %v", i, err)
				}
				if token, err := w.ActiveToken(t.Context(), tokens[i].Hash, w.now()); err != nil || token.ID != tokens[i].ID {
					t.Errorf("token %d: another's, or %v", i, err)
				}
			}
		})
	}
	asking.Wait()
}
