package evidence

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// encodeKey covers everything about an API key but when it was last used, by which
// nothing is decided.
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
	return r
}

func (s *Store) sealKey(k *ledger.KeyRecord) {
	k.MAC = s.seal(k.Org, ledger.PurposeAPIKey, encodeKey(k))
}

// checkKey authenticates a key's row. A store lends out the same record until it has
// changed, and nobody changes what is lent: the very same one is sound again.
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
	return s.soundKey(s.port.Key(ctx, id))
}

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return s.soundKey(s.port.KeyByHash(ctx, hash))
}

func (s *Store) soundKey(k *ledger.KeyRecord, err error) (*ledger.KeyRecord, error) {
	if err == nil {
		err = s.checkKey(k)
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Keys implements store.Directory. Of a row that fails only the id is told, and that it
// was tampered with: a list without it would say that there is no such key.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	keys, err := s.port.Keys(ctx, org, after, limit)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		if err := s.checkKey(key); errors.Is(err, ledger.ErrStateTampered) {
			keys[i] = &ledger.KeyRecord{ID: key.ID, Org: org, Tampered: true}
		} else if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func encodeRotation(rotation *store.RotationRecord) []byte {
	r := make(record, 0, 256)
	r.bytes(rotation.Org.UUID[:])
	r.bytes(rotation.Key.UUID[:])
	r.text(rotation.IdempotencyKey)
	r.time(rotation.Overlap)
	r.time(rotation.RotatedAt)
	return r
}

func (s *Store) sealRotation(r *store.RotationRecord) {
	r.MAC = s.seal(r.Org, ledger.PurposeRotation, encodeRotation(r))
}

func (s *Store) checkRotation(r *store.RotationRecord) error {
	return s.check("a rotation of an API key", r.Org, ledger.PurposeRotation, r.MAC, encodeRotation(r))
}
