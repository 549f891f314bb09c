package verify

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// sealedAlone returns an organization's first receipt, of a chain without events.
func sealedAlone(t *testing.T, now ledger.Time) *store.PlacedReceipt {
	t.Helper()
	org := ledger.OrgID{UUID: uuid.New()}
	head, err := ledger.NewHead(org, storetest.Ring{}).Open(storetest.Ring{})
	if err != nil {
		t.Fatal(err)
	}
	chain := &ledger.Chain{ID: ledger.ChainID{UUID: uuid.New()}, Org: org, Name: "alone", Environment: "test", StartedAt: now}
	_, stored, err := ledger.Seal(&ledger.Sealing{
		Keys: storetest.Ring{}, Head: head, Slug: "acme", Chain: chain, State: ledger.NewChainState(now, ledger.BuiltinPolicy.Version),
		Summary: &ledger.Summary{}, Completion: &ledger.Completion{}, ID: ledger.ReceiptID{UUID: uuid.New()}, Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &store.PlacedReceipt{NamedReceipt: store.NamedReceipt{StoredReceipt: stored.StoredReceipt, Slug: "acme"}, Head: head.Sign(storetest.Ring{})}
}

// While too many public checks run, a receipt is judged by the last verdict on its chain, however
// old. The check by id cannot say how old it is, so it does not claim that the chain was checked.
func TestAnOldVerdictIsNotAFullCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := func() ledger.Time { return ledger.TimeOf(time.Now()) }
		receipt := sealedAlone(t, now())
		r := &Receipts{reader: &reader{keys: storetest.Ring{}, now: now}, sound: newSoundReceipts(), full: newFullChecks()}
		made := now()
		r.full.verdicts.Put(receipt.ID, &chainVerdict{hash: receipt.Hash(), checks: chainChecks(nil), at: made, made: made, full: true}, verdictBytes)
		for range maxParallel {
			r.full.slots <- struct{}{}
		}
		check := func() *ledger.ReceiptCheck {
			check, err := r.Check(t.Context(), receipt, Rationed)
			if err != nil || !check.Valid {
				t.Fatalf("the receipt is %+v: %v", check, err)
			}
			return check
		}
		if !check().Full {
			t.Error("a verdict that was just made is not a full check")
		}
		time.Sleep(24 * time.Hour)
		if check().Full {
			t.Error("a verdict of yesterday is a full check")
		}
		v, err := r.Verify(t.Context(), receipt, Rationed)
		if overall, _ := v.Conclude(); err != nil || overall != ledger.Verified || v.VerifiedAt != made {
			t.Errorf("the public link shows %+v: %v", v, err)
		}
	})
}
