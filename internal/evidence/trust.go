package evidence

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Unsealed counts the rows of an organization that have no authenticator. They are
// from before there were any, or somebody took it away; either way they are refused.
func (s *Store) Unsealed(ctx context.Context, org ledger.OrgID) (int, error) {
	keys, err := s.unsealedKeys(ctx, org)
	return len(keys), err
}

// Trust seals the rows of an organization that have no authenticator, as they are. It
// is for an operator who takes a database over from before there were any, once: it
// believes every row on its own word.
func (s *Store) Trust(ctx context.Context, org ledger.OrgID) (int, error) {
	if s.keys == nil {
		return 0, errNoKeys
	}
	keys, err := s.unsealedKeys(ctx, org)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	taken := 0
	err = s.Store.Transact(ctx, &store.Needs{Govern: []ledger.OrgID{org}, Keys: keys}, func(loaded *store.Loaded) (*store.Changes, error) {
		changes := new(store.Changes)
		for _, id := range keys {
			if key := loaded.Keys[id]; key != nil && len(key.MAC) == 0 {
				sealed := *key
				s.sealKey(&sealed)
				changes.Keys = append(changes.Keys, &sealed)
			}
		}
		taken = len(changes.Keys)
		return changes, nil
	})
	return taken, err
}

func (s *Store) unsealedKeys(ctx context.Context, org ledger.OrgID) ([]ledger.KeyID, error) {
	const page = 200
	var unsealed []ledger.KeyID
	var after ledger.KeyID
	for {
		keys, err := s.Store.Keys(ctx, org, after, page)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if len(key.MAC) == 0 {
				unsealed = append(unsealed, key.ID)
			}
		}
		if len(keys) < page {
			return unsealed, nil
		}
		after = keys[len(keys)-1].ID
	}
}
