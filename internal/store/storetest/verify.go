package storetest

import (
	"errors"
	"math"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// verifyLedger audits everything that a case has stored, through a separate handle: receipts, links
// and heads, the audit log, and each chain's state against its entries and its receipt.
func (w *world) verifyLedger(t *testing.T) {
	t.Helper()
	s := w.open(t)
	organizations, err := s.Organizations(t.Context())
	if err != nil {
		t.Fatalf("audit: list organizations: %v", err)
	}
	for _, org := range organizations {
		w.verifyReceipts(t, s, org)
		w.verifyActs(t, s, org)
		err := s.ScanChains(t.Context(), org.ID, func(record *store.ChainRecord) error {
			w.verifyChain(t, s, org, record)
			return nil
		})
		if err != nil {
			t.Errorf("audit: scan chains: %v", err)
		}
	}
}

func (w *world) verifyReceipts(t *testing.T, s store.Store, org *ledger.Organization) {
	t.Helper()
	var walk ledger.Walk
	err := s.ScanReceipts(t.Context(), org.ID, 1, math.MaxInt64, func(r *ledger.StoredReceipt) error {
		inspection := ledger.Inspect(r, org.Slug, w.keys)
		if broken := walk.Step(r, &inspection); broken != nil {
			return broken
		}
		return nil
	})
	if err != nil {
		t.Errorf("audit of %s: %v", org.Slug, err)
		return
	}
	head, err := s.Head(t.Context(), org.ID)
	if err != nil {
		t.Errorf("audit of %s: read head: %v", org.Slug, err)
		return
	}
	if broken := walk.Finish(head, w.keys); broken != nil {
		t.Errorf("audit of %s: %v", org.Slug, broken)
	}
}

// verifyActs walks an organization's audit log, if it has one, and checks the organization against
// it.
func (w *world) verifyActs(t *testing.T, s store.Store, org *ledger.Organization) {
	t.Helper()
	var walk ledger.ActWalk
	if err := s.ScanActs(t.Context(), org.ID, walk.Step); err != nil {
		t.Errorf("audit of %s: %v", org.Slug, err)
		return
	}
	log, err := s.ActLog(t.Context(), org.ID)
	switch {
	case errors.Is(err, store.ErrNotFound) && walk.Checked == 0:
		return
	case err != nil:
		t.Errorf("audit of %s: read the end of %d acts: %v", org.Slug, walk.Checked, err)
		return
	case log.Begins() && walk.Checked == 0:
		return
	}
	if err := walk.Finish(log, org, w.keys); err != nil {
		t.Errorf("audit of %s: %v", org.Slug, err)
	}
}

func (w *world) verifyChain(t *testing.T, s store.Store, org *ledger.Organization, record *store.ChainRecord) {
	t.Helper()
	o, err := w.decode(record)
	if err != nil {
		t.Errorf("audit: decode chain: %v", err)
		return
	}
	if record.Status != o.state.Status || record.Org != org.ID {
		t.Errorf("audit: a chain's columns have %s of %v, its body %s of %v", record.Status, record.Org, o.state.Status, org.ID)
	}
	replay := replayChain(t, s, record.ID)
	if err := replay.Matches(o.state.Digest, o.state.Actions); err != nil {
		t.Errorf("audit: chain against its state: %v", err)
	}
	if replay.Entries() != o.state.Entries {
		t.Errorf("audit: %d entries are stored, the state counts %d", replay.Entries(), o.state.Entries)
	}
	receipt, err := s.ReceiptOfChain(t.Context(), record.ID)
	if !o.state.Status.Sealed() {
		wantError(t, "receipt of an open chain", err, store.ErrNotFound)
		return
	}
	if err != nil {
		t.Errorf("audit: receipt of a sealed chain: %v", err)
		return
	}
	inspection := ledger.Inspect(receipt, org.Slug, w.keys)
	if err := replay.Supports(&inspection.Attested); err != nil {
		t.Errorf("audit: chain against its receipt: %v", err)
	}
}

// replayChain merges events and addenda by position and replays them.
func replayChain(t *testing.T, s store.Store, id ledger.ChainID) *ledger.Replay {
	t.Helper()
	events, eventsErr := s.Events(t.Context(), id, 0, math.MaxInt32)
	addenda, addendaErr := s.Addenda(t.Context(), id, 1, math.MaxInt32)
	if err := errors.Join(eventsErr, addendaErr); err != nil {
		t.Fatalf("audit: read chain: %v", err)
	}
	replay := ledger.NewReplay(id)
	for len(events)+len(addenda) > 0 {
		var err error
		switch {
		case len(addenda) > 0 && addenda[0].Position == replay.Entries()+1:
			err = replay.Addendum(addenda[0])
			addenda = addenda[1:]
		case len(events) > 0:
			err = replay.Event(events[0])
			events = events[1:]
		default:
			t.Fatalf("audit: addendum at position %d after %d entries", addenda[0].Position, replay.Entries())
		}
		if err != nil {
			t.Fatalf("audit: replay: %v", err)
		}
	}
	return replay
}
