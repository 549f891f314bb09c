package verify

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// LedgerWatch is a HeadWatch that knows which ledger it watches and whether it has any records.
type LedgerWatch interface {
	HeadWatch
	// Ledger returns uuid.Nil if the ledger is not set yet.
	Ledger() uuid.UUID
	// Blank reports whether the watch is empty: it has neither a ledger nor a receipt.
	Blank() bool
}

// unrecognized reports whether, at the last check, the watch did not know this ledger: the ledger
// has receipts but the watch is empty, or the watch belongs to another ledger. An operator's
// acceptance clears either immediately.
func (h *Heads) unrecognized() bool {
	if h.ledgers == nil {
		return false
	}
	if h.unremembered.Load() && h.ledgers.Blank() {
		return true
	}
	stored := h.stored.Load()
	return stored != nil && differ(*stored, h.ledgers.Ledger())
}

// differ reports whether two ledgers are known to be different.
func differ(a, b uuid.UUID) bool { return a != uuid.Nil && b != uuid.Nil && a != b }

// Sealed reports whether an organization has ever sealed a receipt, according to the database, and
// how many its head counts. The head is created with its organization, so a missing head was
// removed.
func (h *Heads) Sealed(ctx context.Context, org ledger.OrgID) (stored int64, sealed bool, err error) {
	head, err := h.store.Head(ctx, org)
	if errors.Is(err, store.ErrNotFound) {
		return 0, true, nil
	}
	if err != nil {
		return 0, false, err
	}
	if head.Count > 0 {
		return head.Count, true, nil
	}
	receipts, err := h.store.Receipts(ctx, org, 0, 1)
	return 0, len(receipts) > 0, err
}

// unknown returns what is wrong if the watch does not know this ledger. blank is whether the watch
// was empty before the organizations were read, because receipts sealed after that prove nothing.
func (h *Heads) unknown(ctx context.Context, orgs []*ledger.Organization, blank bool) ([]Rollback, error) {
	if h.ledgers == nil {
		return nil, nil
	}
	var found []Rollback
	var reading Tolerance
	for i := 0; blank && i < len(orgs) && !reading.Exhausted(); i++ {
		stored, sealed, err := h.Sealed(ctx, orgs[i].ID)
		reading.Note(err)
		if err == nil && sealed {
			found = append(found, Rollback{Organization: orgs[i].Slug, ID: orgs[i].ID.UUID, Stored: stored, Unremembered: true})
		}
	}
	if len(found) > 0 || reading.First == nil {
		h.unremembered.Store(len(found) > 0)
	}
	// A row that fails its authenticator proves nothing here; the audit reports it.
	stored, err := h.store.Ledger(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, ledger.ErrStateTampered):
		h.stored.Store(nil)
		return found, reading.First
	case err != nil:
		return found, err
	}
	h.stored.Store(&stored.ID)
	if differ(stored.ID, h.ledgers.Ledger()) {
		found = append(found, Rollback{ID: stored.ID, OtherLedger: true})
	}
	return found, reading.First
}
