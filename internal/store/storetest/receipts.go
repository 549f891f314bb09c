package storetest

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"countersign/internal/ledger"
)

var receiptCases = []testCase{
	{name: "a receipt is found by its id and by its chain", run: findsReceipts},
	{name: "a receipt is read with its organization's slug", run: namesReceipts},
	{name: "a receipt is read with its head and neighbours", run: placesReceipts},
	{name: "a receipt with the largest sequence has no next one", run: placesTheLast, unaudited: true},
	{name: "a receipt's token is read with the placed receipt", run: placesTokens},
	{name: "concurrent readers each get their own records", run: asksTogether, concurrent: true},
	{name: "receipts are listed newest first", run: listsReceipts},
	{name: "receipts are scanned by range", run: scansReceipts},
	{name: "a scan of many receipts sees each once", run: scansManyReceipts, unaudited: true},
	{name: "a scan of receipts ends at the largest sequence", run: scansTheLast, unaudited: true},
	{name: "a visitor's error ends a scan of receipts", run: visitorEndsReceiptScan},
	{name: "a head moves with its organization alone", run: headsMoveAlone},
}

func findsReceipts(t *testing.T, w *world) {
	m := w.join(t)
	for i, id := range w.sealedChains(t, m, 3) {
		byChain := must[*ledger.StoredReceipt](t)(w.ReceiptOfChain(t.Context(), id))
		byID := must[*ledger.StoredReceipt](t)(w.Receipt(t.Context(), byChain.ID))
		assertEqual(t, "receipt", byID, byChain)
		if byID.Chain != id || byID.Org != m.org.ID || byID.Sequence != int64(i+1) {
			t.Errorf("receipt %d is %d of chain %v", i+1, byID.Sequence, byID.Chain)
		}
		check := ledger.CheckReceipt(byID, m.org.Slug, w.keys)
		if !check.Valid {
			t.Errorf("receipt %d does not verify", i+1)
		}
	}
}

func listsReceipts(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.sealedChains(t, m, 7)
	w.sealedChains(t, other, 3)
	for _, test := range []struct {
		before int64
		limit  int
		want   []int64
	}{
		{0, 100, []int64{7, 6, 5, 4, 3, 2, 1}}, {0, 2, []int64{7, 6}}, {6, 2, []int64{5, 4}}, {2, 5, []int64{1}},
		{1, 5, nil}, {100, 1, []int64{7}},
	} {
		var got []int64
		for _, receipt := range must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, test.before, test.limit)) {
			got = append(got, receipt.Sequence)
			if receipt.Org != m.org.ID {
				t.Error("a receipt of another organization is listed")
			}
		}
		assertEqual(t, "sequences", got, test.want)
	}
}

func scansReceipts(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.sealedChains(t, m, 5)
	w.sealedChains(t, other, 2)
	all := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, 0, 10))
	slices.Reverse(all)
	for _, test := range []struct {
		from, to    int64
		first, last int
	}{{1, math.MaxInt64, 0, 5}, {0, 5, 0, 5}, {2, 4, 1, 4}, {3, 3, 2, 3}, {5, 99, 4, 5}, {6, 9, 0, 0}, {4, 2, 0, 0}} {
		var got []*ledger.StoredReceipt
		err := w.ScanReceipts(t.Context(), m.org.ID, test.from, test.to, func(r *ledger.StoredReceipt) error {
			kept := *r // the bytes are valid only during the visit
			kept.PreviousHash, kept.Body = bytes.Clone(r.PreviousHash), bytes.Clone(r.Body)
			got = append(got, &kept)
			return nil
		})
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		assertEqual(t, "receipts", got, all[test.first:test.last])
		assertEqual(t, "bodies", w.bodies(t, m, test.from, test.to), bodiesOf(got))
	}
}

func scansTheLast(t *testing.T, w *world) {
	f := w.newFixture(t)
	last := receiptLike(func(r *ledger.StoredReceipt, _ *fixture) { r.Sequence = math.MaxInt64 })(w, f)
	w.write(t, last)
	visits := 0
	visit := func() error {
		if visits++; visits > 10 {
			return errors.New("the scan begins again")
		}
		return nil
	}
	org := last.NewReceipts[0].Org
	done(t, w.ScanReceipts(t.Context(), org, math.MinInt64, math.MaxInt64, func(*ledger.StoredReceipt) error { return visit() }))
	once := visits
	done(t, w.ScanBodies(t.Context(), org, math.MinInt64, math.MaxInt64, func([]byte) error { return visit() }))
	if visits != 2*once {
		t.Errorf("%d receipts were visited, and %d bodies", once, visits-once)
	}
}

// bodies scans only the signed bytes.
func (w *world) bodies(t *testing.T, m *member, from, to int64) []string {
	t.Helper()
	var bodies []string
	err := w.ScanBodies(t.Context(), m.org.ID, from, to, func(body []byte) error {
		bodies = append(bodies, string(body))
		return nil
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return bodies
}

func bodiesOf(receipts []*ledger.StoredReceipt) []string {
	var bodies []string
	for _, r := range receipts {
		bodies = append(bodies, string(r.Body))
	}
	return bodies
}

// scansManyReceipts exceeds the page size of any store.
func scansManyReceipts(t *testing.T, w *world) {
	const count = 550
	m := w.join(t)
	chains := w.openChains(t, m, count)
	for batch := range slices.Chunk(chains, 100) {
		w.mustSeal(t, m, batch...)
	}
	next := int64(1)
	err := w.ScanReceipts(t.Context(), m.org.ID, 1, math.MaxInt64, func(r *ledger.StoredReceipt) error {
		if r.Sequence != next || r.Chain != chains[next-1] {
			t.Fatalf("visit %d is receipt %d", next, r.Sequence)
		}
		next++
		return nil
	})
	if err != nil || next != count+1 {
		t.Errorf("%d receipts were visited, want %d, error %v", next-1, count, err)
	}
	w.verifyReceipts(t, w, m.org)
}

func visitorEndsReceiptScan(t *testing.T, w *world) {
	m := w.join(t)
	w.sealedChains(t, m, 4)
	enough := errors.New("enough")
	visits := 0
	err := w.ScanReceipts(t.Context(), m.org.ID, 1, 4, func(*ledger.StoredReceipt) error {
		visits++
		if visits == 2 {
			return enough
		}
		return nil
	})
	wantError(t, "scan", err, enough)
	if visits != 2 {
		t.Errorf("%d visits, want 2", visits)
	}
}

func headsMoveAlone(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	before := must[*ledger.Head](t)(w.Head(t.Context(), other.org.ID))
	if before.Count != 0 || before.Last != nil {
		t.Errorf("a new head counts %d and has a last hash: %v", before.Count, before.Last != nil)
	}
	w.sealedChains(t, m, 2)
	head := must[*ledger.Head](t)(w.Head(t.Context(), m.org.ID))
	last := must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, 0, 1))[0].Hash()
	if head.Count != 2 || head.Last == nil || *head.Last != last || !head.Authentic(w.keys) {
		t.Errorf("the head counts %d and does not match receipt 2", head.Count)
	}
	assertEqual(t, "other head", must[*ledger.Head](t)(w.Head(t.Context(), other.org.ID)), before)
}
