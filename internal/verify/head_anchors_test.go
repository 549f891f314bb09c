package verify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// anchoredLedger is a database with a ledger of which some heads are anchored. It counts the
// receipts that are read.
type anchoredLedger struct {
	store.Store
	receipts []*ledger.StoredReceipt
	anchors  []*store.AnchorRecord
	read     int
}

// PutAnchor implements store.Verification.
func (db *anchoredLedger) PutAnchor(_ context.Context, anchor *store.AnchorRecord) error {
	db.anchors = append(db.anchors, anchor)
	return nil
}

// HeadAnchors implements store.Verification.
func (db *anchoredLedger) HeadAnchors(context.Context, ledger.OrgID, int64) ([]*store.AnchorRecord, error) {
	return db.anchors, nil
}

// ScanReceipts implements store.Receipts.
func (db *anchoredLedger) ScanReceipts(_ context.Context, _ ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error {
	for _, receipt := range db.receipts {
		if receipt.Sequence < from || receipt.Sequence > to {
			continue
		}
		db.read++
		if err := visit(receipt); err != nil {
			return err
		}
	}
	return nil
}

// newAnchoredLedger returns a ledger of five receipts. The third is anchored with an authority, the
// fifth with calendars.
func newAnchoredLedger(t *testing.T) (*anchoredLedger, *evidence.Store) {
	t.Helper()
	db := &anchoredLedger{}
	s := evidence.New(db, storetest.Ring{})
	org := ledger.OrgID{UUID: uuid.New()}
	head, err := ledger.NewHead(org, storetest.Ring{}).Open(storetest.Ring{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		chain := &ledger.Chain{ID: ledger.ChainID{UUID: uuid.New()}, Org: org, Name: "linked", Environment: "test", StartedAt: 1}
		_, receipt, err := ledger.Seal(&ledger.Sealing{
			Keys: storetest.Ring{}, Head: head, Slug: "acme", Chain: chain, State: ledger.NewChainState(1, ledger.BuiltinPolicy.Version),
			Summary: &ledger.Summary{}, Completion: &ledger.Completion{}, ID: ledger.ReceiptID{UUID: uuid.New()}, Now: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		db.receipts = append(db.receipts, receipt.StoredReceipt)
	}
	for _, anchor := range []store.AnchorRecord{{Method: ledger.MethodTSA, Sequence: 3}, {Method: ledger.MethodOpenTimestamps, Sequence: 5}} {
		receipt := db.receipts[anchor.Sequence-1]
		anchor.Org, anchor.Subject = org, store.AnchorSubject{Kind: ledger.SubjectHead, ID: receipt.ID.UUID}
		anchor.Digest, anchor.Status = receipt.Hash(), string(ledger.AnchorPending)
		if err := s.PutAnchor(t.Context(), &anchor); err != nil {
			t.Fatal(err)
		}
	}
	return db, s
}

// A public check of an anchored receipt reads the receipts up to the anchored heads once for all of
// them, in one of the slots for public checks. It repeats what it read for a short time, and for
// longer while no slot is free.
func TestAnchoredHeadsAreReachedInOneRationedWalk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, s := newAnchoredLedger(t)
		now := func() ledger.Time { return ledger.TimeOf(time.Now()) }
		r := New(Config{Store: s, Keys: storetest.Ring{}, Now: now}).Receipts
		check := func(receipt int) (*ledger.Verification, error) {
			v := r.newVerification(ledger.ArtifactReceipt, uuid.Nil)
			return v, r.headAnchors(t.Context(), v, db.receipts[receipt], Rationed)
		}
		want := func(when string, receipt, read int, made ledger.Time) {
			t.Helper()
			db.read = 0
			v, err := check(receipt)
			if err != nil || v.TSA.Standing != ledger.AnchorPending || v.OpenTimestamp.Standing != ledger.AnchorPending {
				t.Errorf("%s: the anchors are %+v and %+v: %v", when, v.TSA, v.OpenTimestamp, err)
			}
			if db.read != read || v.VerifiedAt != made {
				t.Errorf("%s: %d receipts read, verified at %v; want %d and %v", when, db.read, v.VerifiedAt, read, made)
			}
		}

		made := now()
		want("first", 0, 4, made)
		time.Sleep(verdictTTL - time.Millisecond)
		want("soon after", 0, 0, made)
		for range maxParallel {
			r.full.slots <- struct{}{}
		}
		time.Sleep(time.Hour)
		want("without a slot", 0, 0, made)
		if _, err := check(1); !errors.Is(err, ErrBusy) {
			t.Errorf("another receipt without a slot: %v", err)
		}
		<-r.full.slots
		want("with a slot", 0, 4, now())
		want("the anchored receipt", 2, 2, now())

		db.receipts = append(db.receipts[:3:3], db.receipts[4])
		v, err := check(1)
		if err != nil || v.TSA.Standing != ledger.AnchorPending || v.OpenTimestamp.Reason != "wrong_digest" {
			t.Errorf("without the fourth receipt the anchors are %+v and %+v: %v", v.TSA, v.OpenTimestamp, err)
		}
	})
}
