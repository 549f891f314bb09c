package evidence

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeFullCheck(c *store.FullCheckRecord) []byte {
	r := make(record, 0, 128)
	r.bytes(c.Org.UUID[:])
	r.bytes(c.Receipt.UUID[:])
	r.bytes(c.Hash[:])
	r.text(c.Failed)
	r.time(c.CheckedAt)
	return r
}

func (s *Store) checkFullCheck(c *store.FullCheckRecord) error {
	return s.check("a full check", c.Org, ledger.PurposeFullCheck, c.MAC, encodeFullCheck(c))
}

// FullCheck implements store.Verification.
func (s *Store) FullCheck(ctx context.Context, org ledger.OrgID, receipt ledger.ReceiptID) (*store.FullCheckRecord, error) {
	c, err := s.port.FullCheck(ctx, org, receipt)
	if err == nil {
		err = s.checkFullCheck(c)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// FullChecks implements store.Verification. A row that fails is reduced to the receipt's id and
// marked as tampered.
func (s *Store) FullChecks(ctx context.Context, org ledger.OrgID, after ledger.ReceiptID, limit int) ([]*store.FullCheckRecord, error) {
	checks, err := s.port.FullChecks(ctx, org, after, limit)
	if err != nil {
		return nil, err
	}
	for i, c := range checks {
		if err := s.checkFullCheck(c); errors.Is(err, ledger.ErrStateTampered) {
			checks[i] = &store.FullCheckRecord{Org: org, Receipt: c.Receipt, Tampered: true}
		} else if err != nil {
			return nil, err
		}
	}
	return checks, nil
}

// PutFullCheck implements store.Verification.
func (s *Store) PutFullCheck(ctx context.Context, c *store.FullCheckRecord) error {
	if s.keys == nil {
		return errNoKeys
	}
	c.MAC = s.seal(c.Org, ledger.PurposeFullCheck, encodeFullCheck(c))
	return s.port.PutFullCheck(ctx, c)
}
