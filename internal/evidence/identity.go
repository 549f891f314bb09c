package evidence

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeLedger(l *store.LedgerRecord) []byte {
	r := make(record, 0, 64)
	r.bytes(l.ID[:])
	r.bytes(l.Parent[:])
	r.time(l.CreatedAt)
	return r
}

// Ledger implements store.Identity.
func (s *Store) Ledger(ctx context.Context) (*store.LedgerRecord, error) {
	l, err := s.port.Ledger(ctx)
	if err == nil {
		err = s.check("the ledger's identity", noOrganization, ledger.PurposeLedger, l.MAC, encodeLedger(l))
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// PutLedger implements store.Identity.
func (s *Store) PutLedger(ctx context.Context, l *store.LedgerRecord, replaces uuid.UUID) error {
	if s.keys == nil {
		return errNoKeys
	}
	l.MAC = s.seal(noOrganization, ledger.PurposeLedger, encodeLedger(l))
	return s.port.PutLedger(ctx, l, replaces)
}

// ReplaceLedger replaces the ledger's identity, even if the stored row fails its authenticator.
func (s *Store) ReplaceLedger(ctx context.Context, l *store.LedgerRecord) error {
	var replaces uuid.UUID
	switch stored, err := s.port.Ledger(ctx); {
	case err == nil:
		replaces = stored.ID
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	return s.PutLedger(ctx, l, replaces)
}
