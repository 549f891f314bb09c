package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// ActiveToken implements store.Verification.
func (s *Store) ActiveToken(context.Context, [32]byte, ledger.Time) (*store.TokenRecord, error) {
	return nil, store.ErrNotFound
}

// Tokens implements store.Verification.
func (s *Store) Tokens(context.Context, ledger.OrgID, *ledger.TokenID, int) ([]*store.TokenRecord, error) {
	return nil, nil
}

// TouchTokens implements store.Verification.
func (s *Store) TouchTokens(context.Context, map[ledger.TokenID]ledger.Time) error { return nil }

// SigningKeys implements store.Verification.
func (s *Store) SigningKeys(context.Context, ledger.OrgID) ([]*store.SigningKeyRecord, error) {
	return nil, nil
}

// Anchors implements store.Verification.
func (s *Store) Anchors(context.Context, ledger.OrgID, store.AnchorSubject) ([]*store.AnchorRecord, error) {
	return nil, nil
}

// HeadAnchors implements store.Verification.
func (s *Store) HeadAnchors(context.Context, ledger.OrgID, int64) ([]*store.AnchorRecord, error) {
	return nil, nil
}

// PutAnchor implements store.Verification.
func (s *Store) PutAnchor(context.Context, *store.AnchorRecord) error { return nil }
