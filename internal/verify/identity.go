package verify

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// LedgerWatch is a HeadWatch that knows which ledger it watches, and whether it
// remembers anything at all.
type LedgerWatch interface {
	HeadWatch
	// Ledger is uuid.Nil before it was told.
	Ledger() uuid.UUID
	// Blank reports whether nothing is remembered: neither a ledger nor a receipt.
	Blank() bool
}

// unrecognized reports whether this ledger is one that the watch does not know, by the
// last look at it: it holds receipts and nothing is remembered of any, or another
// ledger is watched. An operator's acceptance ends either at once.
func (j *Judge) unrecognized() bool {
	if j.ledgers == nil {
		return false
	}
	if j.unremembered.Load() && j.ledgers.Blank() {
		return true
	}
	stored := j.stored.Load()
	return stored != nil && differ(*stored, j.ledgers.Ledger())
}

// differ tells two ledgers apart; one that is not known is no other.
func differ(a, b uuid.UUID) bool { return a != uuid.Nil && b != uuid.Nil && a != b }

// Sealed reports whether an organization has ever sealed a receipt, as far as the
// database tells, and how many its head counts. A head is made with its organization:
// one that is missing was removed.
func (j *Judge) Sealed(ctx context.Context, org ledger.OrgID) (stored int64, sealed bool, err error) {
	head, err := j.store.Head(ctx, org)
	if errors.Is(err, store.ErrNotFound) {
		return 0, true, nil
	}
	if err != nil {
		return 0, false, err
	}
	if head.Count > 0 {
		return head.Count, true, nil
	}
	receipts, err := j.store.Receipts(ctx, org, 0, 1)
	return 0, len(receipts) > 0, err
}

// unknown finds what a watch says of a ledger that it does not know. blank is what the
// watch said before the organizations were read: what is sealed from then on is no
// sign of anything.
func (j *Judge) unknown(ctx context.Context, orgs []*ledger.Organization, blank bool) ([]Rollback, error) {
	if j.ledgers == nil {
		return nil, nil
	}
	var found []Rollback
	if blank {
		for _, org := range orgs {
			stored, sealed, err := j.Sealed(ctx, org.ID)
			if err != nil {
				return nil, err
			}
			if sealed {
				found = append(found, Rollback{Organization: org.Slug, ID: org.ID.UUID, Stored: stored, Unremembered: true})
			}
		}
	}
	j.unremembered.Store(len(found) > 0)
	// One that fails its authenticator says nothing; the audit names it.
	stored, err := j.store.Ledger(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, ledger.ErrStateTampered):
		j.stored.Store(nil)
		return found, nil
	case err != nil:
		return nil, err
	}
	j.stored.Store(&stored.ID)
	if differ(stored.ID, j.ledgers.Ledger()) {
		found = append(found, Rollback{ID: stored.ID, OtherLedger: true})
	}
	return found, nil
}
