package storetest

import (
	"errors"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var fullCheckCases = []testCase{
	{name: "a full check is stored unchanged, and the last put wins", run: keepsFullChecks},
	{name: "full checks are listed by receipt", run: listsFullChecks},
}

func (w *world) fullCheck(org ledger.OrgID) *store.FullCheckRecord {
	now := w.now()
	return &store.FullCheckRecord{Org: org, Receipt: w.receiptID(), Hash: ledger.HashToken("receipt"), CheckedAt: now, MAC: []byte("mac")}
}

func (w *world) putFullChecks(t *testing.T, checks ...*store.FullCheckRecord) {
	t.Helper()
	for _, check := range checks {
		if err := w.PutFullCheck(t.Context(), check); err != nil {
			t.Fatalf("put full check: %v", err)
		}
	}
}

// keepsFullChecks also puts a check with an earlier time: an attacker who stores a time in the far
// future must not block later checks.
func keepsFullChecks(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	check, theirs := w.fullCheck(m.org.ID), w.fullCheck(other.org.ID)
	theirs.Receipt = check.Receipt
	if _, err := w.FullCheck(t.Context(), m.org.ID, check.Receipt); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("none was put: error %v", err)
	}
	check.CheckedAt = 1 << 60
	w.putFullChecks(t, check, theirs)
	check.Hash, check.Failed, check.CheckedAt, check.MAC = [32]byte(everyByte()), "it's \"late\", naïvely 🕰", 7, everyByte()
	w.putFullChecks(t, check)
	for _, want := range []*store.FullCheckRecord{check, theirs} {
		assertEqual(t, "full check", must[*store.FullCheckRecord](t)(w.open(t).FullCheck(t.Context(), want.Org, want.Receipt)), want)
	}
}

func listsFullChecks(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.putFullChecks(t, w.fullCheck(m.org.ID), w.fullCheck(m.org.ID), w.fullCheck(m.org.ID), w.fullCheck(other.org.ID))
	smallest := w.fullCheck(m.org.ID)
	smallest.Receipt = ledger.ReceiptID{}
	w.putFullChecks(t, smallest)
	first := must[[]*store.FullCheckRecord](t)(w.FullChecks(t.Context(), m.org.ID, ledger.ReceiptID{}, 2))
	assertEqual(t, "with the smallest id", first[0], smallest)
	after := first[1].Receipt
	for n := range 3 {
		found := must[[]*store.FullCheckRecord](t)(w.FullChecks(t.Context(), m.org.ID, after, 1))
		if n == 2 {
			assertEqual(t, "past the end", len(found), 0)
			return
		}
		if len(found) != 1 || found[0].Org != m.org.ID || found[0].Receipt.String() <= after.String() {
			t.Fatalf("full check %d: found %+v", n, found)
		}
		after = found[0].Receipt
	}
}
