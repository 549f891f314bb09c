package evidence

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// encodeKey covers everything about an API key except its last use, which decides nothing.
func encodeKey(k *ledger.KeyRecord) []byte {
	r := make(record, 0, 256)
	r.bytes(k.ID.UUID[:])
	r.bytes(k.Org.UUID[:])
	r.text(k.Name)
	r.text(string(k.Role))
	r.bytes(k.Hash[:])
	r.text(k.Hint)
	r.time(k.CreatedAt)
	r.timeOrNone(k.RevokedAt)
	r.texts(k.Agents)
	r.text(k.Owner)
	r.timeOrNone(k.ExpiresAt)
	r.flag(k.ExpiryLogged)
	r.flag(k.Previous != nil)
	if k.Previous != nil {
		r.bytes(k.Previous.Hash[:])
		r.time(k.Previous.ExpiresAt)
	}
	// Each of the two texts was added later, and a key without it keeps the encoding that it had. The
	// act is always written in front of a text, and the first text in front of the second, so that
	// every encoding is longer than any from before.
	if k.SignInAs == "" && k.SlackMember == "" {
		r.act(k.Act)
		return r
	}
	r.int(k.Act)
	r.text(k.SignInAs)
	if k.SlackMember != "" {
		r.text(k.SlackMember)
	}
	return r
}

func (s *Store) sealKey(k *ledger.KeyRecord) {
	k.MAC = s.seal(k.Org, ledger.PurposeAPIKey, encodeKey(k))
}

// checkKey authenticates a key's row. A store returns the same record until it changes, and nobody
// modifies a returned record, so a record that passed once passes again.
func (s *Store) checkKey(k *ledger.KeyRecord) error {
	if known, _ := s.sound.Get(k.ID); known == k {
		return nil
	}
	if err := s.check("an API key", k.Org, ledger.PurposeAPIKey, k.MAC, encodeKey(k)); err != nil {
		return err
	}
	s.sound.Put(k.ID, k, 500)
	return nil
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return readOneCurrent(ctx, s, func() (*ledger.KeyRecord, error) { return s.port.Key(ctx, id) }, s.checkKey, keyRef, refuse)
}

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return readOneCurrent(ctx, s, func() (*ledger.KeyRecord, error) { return s.port.KeyByHash(ctx, hash) }, s.checkKey, keyRef, refuse)
}

// KeysBySignInAs implements store.Directory. Each row is judged by itself, so that an organization
// that was tampered with or rolled back does not keep people out of the others. A row that fails is
// reduced to its id and organization and marked as tampered.
func (s *Store) KeysBySignInAs(ctx context.Context, identity string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error) {
	rows, err := s.port.KeysBySignInAs(ctx, identity, now, limit)
	if err != nil {
		return nil, err
	}
	return s.keysThatName(ctx, rows, func(key *ledger.KeyRecord) bool { return key.SignInAs == identity })
}

// KeysBySlackMember implements store.Directory. A row that fails is marked, as by KeysBySignInAs.
func (s *Store) KeysBySlackMember(ctx context.Context, org ledger.OrgID, member string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error) {
	rows, err := s.port.KeysBySlackMember(ctx, org, member, now, limit)
	if err != nil {
		return nil, err
	}
	return s.keysThatName(ctx, rows, func(key *ledger.KeyRecord) bool { return key.Org == org && key.SlackMember == member })
}

// keysThatName reads keys that were found by the person whom they name, and leaves out those that
// no longer do.
func (s *Store) keysThatName(ctx context.Context, rows []*ledger.KeyRecord, names func(*ledger.KeyRecord) bool) ([]*ledger.KeyRecord, error) {
	keys := make([]*ledger.KeyRecord, 0, len(rows))
	for _, row := range rows {
		key, err := s.Key(ctx, row.ID)
		switch {
		case errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, ErrRolledBack):
			keys = append(keys, &ledger.KeyRecord{ID: row.ID, Org: row.Org, Tampered: true})
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return nil, err
		case names(key):
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Keys implements store.Directory. A row that fails is reduced to its id and marked as tampered,
// because leaving it out would say that the key does not exist.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	read := func() ([]*ledger.KeyRecord, error) { return s.port.Keys(ctx, org, after, limit) }
	return readCurrent(ctx, s, read, s.checkKey, keyRef, func(key *ledger.KeyRecord, _ error) (*ledger.KeyRecord, error) {
		return &ledger.KeyRecord{ID: key.ID, Org: org, Tampered: true}, nil
	})
}

func encodeRotation(rotation *store.RotationRecord) []byte {
	r := make(record, 0, 256)
	r.bytes(rotation.Org.UUID[:])
	r.bytes(rotation.Key.UUID[:])
	r.text(rotation.IdempotencyKey)
	r.int(rotation.Overlap.Milliseconds())
	r.time(rotation.RotatedAt)
	return r
}

func (s *Store) sealRotation(r *store.RotationRecord) {
	r.MAC = s.seal(r.Org, ledger.PurposeRotation, encodeRotation(r))
}

func (s *Store) checkRotation(r *store.RotationRecord) error {
	return s.check("a rotation of an API key", r.Org, ledger.PurposeRotation, r.MAC, encodeRotation(r))
}
