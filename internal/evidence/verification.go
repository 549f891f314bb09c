package evidence

import (
	"context"
	"errors"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// encodeToken covers everything about a token except its last use, which decides nothing.
func encodeToken(t *store.TokenRecord) []byte {
	r := make(record, 0, 256)
	r.bytes(t.ID.UUID[:])
	r.bytes(t.Org.UUID[:])
	r.bytes(t.Hash[:])
	r.text(t.Artifact)
	r.bytes(t.ArtifactID[:])
	r.text(t.IdempotencyKey)
	r.time(t.CreatedAt)
	r.timeOrNone(t.ExpiresAt)
	r.timeOrNone(t.RevokedAt)
	r.text(t.RevocationReason)
	r.act(t.Act)
	return r
}

func (s *Store) sealToken(t *store.TokenRecord) {
	t.MAC = s.seal(t.Org, ledger.PurposeToken, encodeToken(t))
}

func (s *Store) checkToken(t *store.TokenRecord) error {
	return s.check("a public token", t.Org, ledger.PurposeToken, t.MAC, encodeToken(t))
}

// ActiveToken implements store.Verification.
func (s *Store) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	read := func() (*store.ActiveToken, error) { return s.port.ActiveToken(ctx, hash, now) }
	return readOneCurrent(ctx, s, read,
		func(t *store.ActiveToken) error { return s.checkToken(t.TokenRecord) },
		func(t *store.ActiveToken) recordRef { return tokenRef(t.TokenRecord) },
		func(t *store.ActiveToken, _ error) (*store.ActiveToken, error) {
			return &store.ActiveToken{TokenRecord: &store.TokenRecord{ID: t.ID, Org: t.Org, Tampered: true}}, nil // its receipt is not read
		})
}

// Tokens implements store.Verification. A row that fails is reduced to its id and marked as
// tampered.
func (s *Store) Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	read := func() ([]*store.TokenRecord, error) { return s.port.Tokens(ctx, org, before, limit) }
	return readCurrent(ctx, s, read, s.checkToken, tokenRef, func(token *store.TokenRecord, _ error) (*store.TokenRecord, error) {
		return &store.TokenRecord{ID: token.ID, Org: org, Tampered: true}, nil
	})
}

func encodeSigningKey(k *store.SigningKeyRecord) []byte {
	r := make(record, 0, 256)
	r.bytes(k.ID.UUID[:])
	r.bytes(k.Org.UUID[:])
	r.bytes(k.Public)
	r.flag(k.Private != nil)
	r.bytes(k.Private)
	r.text(k.Status)
	r.text(k.Name)
	r.time(k.CreatedAt)
	r.timeOrNone(k.RetiredAt)
	r.timeOrNone(k.RevokedAt)
	r.act(k.Act)
	return r
}

func (s *Store) sealSigningKey(k *store.SigningKeyRecord) {
	k.MAC = s.seal(k.Org, ledger.PurposeSigningKey, encodeSigningKey(k))
}

func (s *Store) checkSigningKey(k *store.SigningKeyRecord) error {
	return s.check("a signing key", k.Org, ledger.PurposeSigningKey, k.MAC, encodeSigningKey(k))
}

// tamperedSigningKey is what callers see of a key that fails. Leaving it out would say that the key
// does not exist.
func tamperedSigningKey(k *store.SigningKeyRecord) *store.SigningKeyRecord {
	return &store.SigningKeyRecord{ID: k.ID, Org: k.Org, Tampered: true}
}

// SigningKeys implements store.Verification. A row that fails is reduced to its id and marked as
// tampered.
func (s *Store) SigningKeys(ctx context.Context, org ledger.OrgID) ([]*store.SigningKeyRecord, error) {
	read := func() ([]*store.SigningKeyRecord, error) { return s.port.SigningKeys(ctx, org) }
	return readCurrent(ctx, s, read, s.checkSigningKey, signingKeyRef, func(k *store.SigningKeyRecord, _ error) (*store.SigningKeyRecord, error) {
		return tamperedSigningKey(k), nil
	})
}

// AllAuthentic reports whether none of the signing keys was tampered with.
func AllAuthentic(keys []*store.SigningKeyRecord) bool {
	return !slices.ContainsFunc(keys, func(key *store.SigningKeyRecord) bool { return key.Tampered })
}

func encodeAnchor(a *store.AnchorRecord) []byte {
	r := make(record, 0, 256+len(a.Proof))
	r.bytes(a.Org.UUID[:])
	r.text(a.Subject.Kind)
	r.bytes(a.Subject.ID[:])
	r.int(a.Sequence)
	r.text(a.Method)
	r.bytes(a.Digest[:])
	r.text(a.Status)
	r.text(a.Reason)
	r.flag(a.Proof != nil)
	r.bytes(a.Proof)
	r.flag(a.Block != nil)
	r.bytes(a.Block)
	r.time(a.UpdatedAt)
	return r
}

func (s *Store) sealAnchor(a *store.AnchorRecord) {
	a.MAC = s.seal(a.Org, ledger.PurposeAnchor, encodeAnchor(a))
}

func (s *Store) soundAnchors(anchors []*store.AnchorRecord, err error) ([]*store.AnchorRecord, error) {
	if err != nil {
		return nil, err
	}
	for i, a := range anchors {
		err := s.check("an anchor", a.Org, ledger.PurposeAnchor, a.MAC, encodeAnchor(a))
		if errors.Is(err, ledger.ErrStateTampered) {
			anchors[i] = &store.AnchorRecord{Org: a.Org, Subject: a.Subject, Sequence: a.Sequence, Method: a.Method, Tampered: true}
		} else if err != nil {
			return nil, err
		}
	}
	return anchors, nil
}

// Anchors implements store.Verification. A row that fails keeps its place in the list.
func (s *Store) Anchors(ctx context.Context, org ledger.OrgID, subject store.AnchorSubject) ([]*store.AnchorRecord, error) {
	return s.soundAnchors(s.port.Anchors(ctx, org, subject))
}

// HeadAnchors implements store.Verification. A row that fails keeps its place in the list.
func (s *Store) HeadAnchors(ctx context.Context, org ledger.OrgID, sequence int64) ([]*store.AnchorRecord, error) {
	return s.soundAnchors(s.port.HeadAnchors(ctx, org, sequence))
}

// PutAnchor implements store.Verification.
func (s *Store) PutAnchor(ctx context.Context, anchor *store.AnchorRecord) error {
	if s.keys == nil {
		return errNoKeys
	}
	s.sealAnchor(anchor)
	defer s.turns.Add(1) // whatever becomes of the commit
	return s.port.PutAnchor(ctx, anchor)
}
