package evidence

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// trustPage is how many rows of a table are read together.
const trustPage = 200

// Unsealed reports how many rows of an organization have no authenticator, or, where
// there are many, that there are some. They are from before there were any, or somebody
// took it away; either way they are refused.
func (s *Store) Unsealed(ctx context.Context, org ledger.OrgID) (int, error) {
	keys, err := s.unsealedKeys(ctx, org)
	if err != nil {
		return 0, err
	}
	rows, err := s.UnsealedRows(ctx, org, trustPage)
	if err != nil {
		return 0, err
	}
	return len(keys) + rows.Len(), nil
}

// Trust seals the rows of an organization that have no authenticator, as they are. It
// is for an operator who takes a database over from before there were any, once: it
// believes every row on its own word.
func (s *Store) Trust(ctx context.Context, org ledger.OrgID) (int, error) {
	if s.keys == nil {
		return 0, errNoKeys
	}
	taken, err := s.trustKeys(ctx, org)
	if err != nil {
		return taken, err
	}
	for {
		rows, err := s.UnsealedRows(ctx, org, trustPage)
		if err != nil || rows.Len() == 0 {
			return taken, err
		}
		sealEach(s.sealWebhook, rows.Webhooks)
		sealEach(s.sealPolicy, rows.Policies)
		sealEach(s.sealToken, rows.Tokens)
		sealEach(s.sealSigningKey, rows.SigningKeys)
		sealEach(s.sealAnchor, rows.Anchors)
		for _, job := range rows.Jobs {
			job.DueAt = job.RunAt
			s.sealJob(job)
		}
		if err := s.SealRows(ctx, rows); err != nil {
			return taken, err
		}
		taken += rows.Len()
	}
}

func (s *Store) trustKeys(ctx context.Context, org ledger.OrgID) (int, error) {
	keys, err := s.unsealedKeys(ctx, org)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	taken := 0
	err = s.port.Transact(ctx, &store.Needs{Govern: []ledger.OrgID{org}, Keys: keys}, func(loaded *store.Loaded) (*store.Changes, error) {
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
	var unsealed []ledger.KeyID
	var after ledger.KeyID
	for {
		keys, err := s.port.Keys(ctx, org, after, trustPage)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if len(key.MAC) == 0 {
				unsealed = append(unsealed, key.ID)
			}
		}
		if len(keys) < trustPage {
			return unsealed, nil
		}
		after = keys[len(keys)-1].ID
	}
}
