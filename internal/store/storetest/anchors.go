package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var anchorCases = []testCase{
	{name: "an anchor is stored unchanged", run: keepsAnchors},
	{name: "an anchor with the same subject and method is replaced", run: replacesAnchor},
	{name: "anchors are written with what a transaction changes", run: writesAnchors},
	{name: "the anchors of one subject are listed", run: listsAnchors},
	{name: "the nearest anchor of a head is found for each method", run: findsHeadAnchors},
	{name: "a method without an anchor of a head is left out", run: leavesMethodsOut},
	{name: "one anchor, put concurrently", run: oneAnchor, concurrent: true},
}

const (
	authority = "tsa"
	calendar  = "opentimestamps"
)

// anchor returns a pending anchor: of an approval if sequence is 0, otherwise of a head.
func (w *world) anchor(org ledger.OrgID, sequence int64, method string) *store.AnchorRecord {
	now := w.now()
	kind := "head"
	if sequence == 0 {
		kind = "approval"
	}
	return &store.AnchorRecord{
		Org: org, Subject: store.AnchorSubject{Kind: kind, ID: w.receiptID().UUID}, Sequence: sequence, Method: method,
		Digest: ledger.HashToken(fmt.Sprint("anchor ", now)), Status: "pending", UpdatedAt: now, MAC: fmt.Appendf(nil, "mac %d", now),
	}
}

func (w *world) putAnchors(t *testing.T, anchors ...*store.AnchorRecord) {
	t.Helper()
	for _, anchor := range anchors {
		if err := w.PutAnchor(t.Context(), anchor); err != nil {
			t.Fatalf("put anchor: %v", err)
		}
	}
}

func (w *world) wantAnchors(t *testing.T, what string, org ledger.OrgID, subject store.AnchorSubject, want ...*store.AnchorRecord) {
	t.Helper()
	assertEqual(t, what, byMethod(must[[]*store.AnchorRecord](t)(w.open(t).Anchors(t.Context(), org, subject))), byMethod(want))
}

// byMethod makes lists comparable that have no promised order.
func byMethod(anchors []*store.AnchorRecord) map[string][]*store.AnchorRecord {
	found := make(map[string][]*store.AnchorRecord)
	for _, anchor := range anchors {
		found[anchor.Method] = append(found[anchor.Method], anchor)
	}
	return found
}

func keepsAnchors(t *testing.T, w *world) {
	m := w.join(t)
	plain, full := w.anchor(m.org.ID, 0, authority), w.anchor(m.org.ID, 1<<40, calendar)
	full.Subject.ID, full.Digest = uuid.UUID(everyByte()[200:216]), [32]byte(everyByte())
	full.Status, full.Reason = "failed", "it's \"late\", naïvely 🕰"
	full.Proof, full.Block, full.MAC = slices.Repeat(everyByte(), 100), everyByte()[:88], everyByte()
	w.putAnchors(t, plain, full)
	w.wantAnchors(t, "plain", m.org.ID, plain.Subject, plain)
	w.wantAnchors(t, "full", m.org.ID, full.Subject, full)
	if kept := must[[]*store.AnchorRecord](t)(w.Anchors(t.Context(), m.org.ID, plain.Subject)); kept[0].Proof != nil || kept[0].Block != nil {
		t.Error("an anchor without a proof has got one, or a block")
	}
}

// replacesAnchor surrounds an anchor with others whose keys differ in one part.
func replacesAnchor(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	anchor, method := w.anchor(m.org.ID, 7, authority), w.anchor(m.org.ID, 7, calendar)
	kind, org := w.anchor(m.org.ID, 0, authority), w.anchor(other.org.ID, 7, authority)
	method.Subject, kind.Subject.ID, org.Subject = anchor.Subject, anchor.Subject.ID, anchor.Subject
	w.putAnchors(t, anchor, method, kind, org)
	anchor.Sequence, anchor.Digest, anchor.Status, anchor.Reason = 8, ledger.HashToken("other"), "verified", "because"
	anchor.Proof, anchor.Block, anchor.UpdatedAt, anchor.MAC = everyByte(), []byte("block"), w.now(), []byte("other")
	for range 2 {
		w.putAnchors(t, anchor)
		w.wantAnchors(t, "replaced", m.org.ID, anchor.Subject, anchor, method)
		w.wantAnchors(t, "other kind", m.org.ID, kind.Subject, kind)
		w.wantAnchors(t, "other organization", other.org.ID, org.Subject, org)
		anchor.Status, anchor.Proof, anchor.Block, anchor.Reason = "pending", nil, nil, "" // back to pending
	}
}

// writesAnchors puts new anchors and replaces one in a transaction, and none in a transaction that
// fails.
func writesAnchors(t *testing.T, w *world) {
	m := w.join(t)
	known, one, two := w.anchor(m.org.ID, 3, authority), w.anchor(m.org.ID, 3, calendar), w.anchor(m.org.ID, 0, authority)
	w.putAnchors(t, known)
	known.Status, known.Proof, known.Block, known.MAC = "verified", []byte("proof"), []byte("block"), []byte("other")
	w.write(t, &store.Changes{Anchors: []*store.AnchorRecord{two, known, one}})
	for _, anchor := range []*store.AnchorRecord{known, one, two} {
		w.wantAnchors(t, "written", m.org.ID, anchor.Subject, anchor)
	}
	never := w.anchor(m.org.ID, 4, authority)
	err := w.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{Anchors: []*store.AnchorRecord{never}}, errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Errorf("the transaction ends with %v", err)
	}
	w.wantAnchors(t, "of a transaction that failed", m.org.ID, never.Subject)
}

var errRefused = errors.New("refused")

func listsAnchors(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	one, two, bystander := w.anchor(m.org.ID, 0, authority), w.anchor(m.org.ID, 0, calendar), w.anchor(m.org.ID, 0, calendar)
	two.Subject = one.Subject
	w.putAnchors(t, two, bystander, one)
	w.wantAnchors(t, "both methods", m.org.ID, one.Subject, one, two)
	w.wantAnchors(t, "one method", m.org.ID, bystander.Subject, bystander)
	w.wantAnchors(t, "unknown subject", m.org.ID, w.anchor(m.org.ID, 0, authority).Subject)
	w.wantAnchors(t, "unknown kind", m.org.ID, store.AnchorSubject{Kind: "other", ID: one.Subject.ID})
	w.wantAnchors(t, "other organization", other.org.ID, one.Subject)
}

func findsHeadAnchors(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	anchors := make(map[string]map[int64]*store.AnchorRecord)
	for method, sequences := range map[string][]int64{authority: {3, 5, 9}, calendar: {4, 5, 12, 20}} {
		anchors[method] = make(map[int64]*store.AnchorRecord)
		for _, sequence := range sequences {
			anchors[method][sequence] = w.anchor(m.org.ID, sequence, method)
			w.putAnchors(t, anchors[method][sequence], w.anchor(m.org.ID, 0, method), w.anchor(other.org.ID, sequence+1, method))
		}
	}
	for _, test := range []struct{ sequence, authority, calendar int64 }{
		{0, 3, 4}, {1, 3, 4}, {3, 3, 4}, {4, 5, 4}, {5, 5, 5}, {6, 9, 12}, {9, 9, 12}, {10, 0, 12}, {12, 0, 12}, {13, 0, 20}, {20, 0, 20}, {21, 0, 0},
	} {
		want := make(map[string][]*store.AnchorRecord)
		for method, sequence := range map[string]int64{authority: test.authority, calendar: test.calendar} {
			if sequence != 0 {
				want[method] = append(want[method], anchors[method][sequence])
			}
		}
		got := must[[]*store.AnchorRecord](t)(w.HeadAnchors(t.Context(), m.org.ID, test.sequence))
		assertEqual(t, fmt.Sprint("at or after ", test.sequence), byMethod(got), want)
	}
}

// leavesMethodsOut also puts an anchor with an unknown method: a store knows none by name.
func leavesMethodsOut(t *testing.T, w *world) {
	m := w.join(t)
	head := func(sequence int64) map[string][]*store.AnchorRecord {
		return byMethod(must[[]*store.AnchorRecord](t)(w.open(t).HeadAnchors(t.Context(), m.org.ID, sequence)))
	}
	assertEqual(t, "none", head(1), nil)
	w.putAnchors(t, w.anchor(m.org.ID, 0, authority))
	assertEqual(t, "approvals alone", head(0), nil)
	one, novel := w.anchor(m.org.ID, 5, calendar), w.anchor(m.org.ID, 6, "another")
	w.putAnchors(t, one, novel)
	assertEqual(t, "two", head(1), byMethod([]*store.AnchorRecord{one, novel}))
	assertEqual(t, "one", head(6), byMethod([]*store.AnchorRecord{novel}))
	assertEqual(t, "past the end", head(7), nil)
}

func oneAnchor(t *testing.T, w *world) {
	const workers, each = 9, 5
	m := w.join(t)
	anchor := w.anchor(m.org.ID, 3, authority)
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		own := *anchor
		own.Reason, own.Proof = fmt.Sprint("by ", worker), fmt.Appendf(nil, "proof %d", worker)
		for range each {
			if err := s.PutAnchor(ctx, &own); err != nil {
				return err
			}
		}
		return nil
	})
	found := must[[]*store.AnchorRecord](t)(w.HeadAnchors(t.Context(), m.org.ID, 1))
	if len(found) != 1 {
		t.Fatalf("%d anchors were put, want 1", len(found))
	}
	var worker int
	if n, err := fmt.Sscanf(found[0].Reason, "by %d", &worker); n != 1 || err != nil || string(found[0].Proof) != fmt.Sprint("proof ", worker) {
		t.Errorf("the anchor is put together of two: %q, %q", found[0].Reason, found[0].Proof)
	}
}
