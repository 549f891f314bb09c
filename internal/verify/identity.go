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
			head, err := j.Head(ctx, org.ID)
			if err != nil {
				return nil, err
			}
			if head.Count > 0 {
				found = append(found, Rollback{Organization: org.Slug, ID: org.ID.UUID, Stored: head.Count, Unremembered: true})
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
