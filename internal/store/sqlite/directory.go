package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *store.Changes) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.insertOrg(org); err != nil {
			return err
		}
		if err := tx.putHead(head); err != nil || with == nil {
			return err
		}
		tx.loaded, tx.changes = new(store.Loaded), with
		return tx.apply(with)
	})
}

// Organization implements store.Directory.
func (s *Store) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	return readOne(ctx, s, "SELECT "+orgColumns+" FROM organizations WHERE id = ?", []any{id.UUID[:]}, scanOrg)
}

// OrganizationBySlug implements store.Directory.
func (s *Store) OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error) {
	return readOne(ctx, s, "SELECT "+orgColumns+" FROM organizations WHERE slug = ?", []any{slug}, scanOrg)
}

// Organizations implements store.Directory.
func (s *Store) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	return readAll(ctx, s, "SELECT "+orgColumns+" FROM organizations ORDER BY slug", nil, scanOrg)
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return readOne(ctx, s, "SELECT "+keyColumns+" FROM api_keys WHERE id = ?", []any{id.UUID[:]}, scanKey)
}

// keyByHashQuery looks once into the index of secrets and once into that of previous
// ones, whether or not there is such a key.
const keyByHashQuery = "SELECT " + keyColumns + " FROM api_keys WHERE hash = ? OR previous_hash = ?"

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return readOne(ctx, s, keyByHashQuery, []any{hash[:], hash[:]}, scanKey)
}

// Keys implements store.Directory.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	query := "SELECT " + keyColumns + " FROM api_keys WHERE org_id = ? AND id > ? ORDER BY id LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], after.UUID[:], int64(limit)}, scanKey)
}

// TouchKeys implements store.Directory.
func (s *Store) TouchKeys(ctx context.Context, used map[ledger.KeyID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range used {
			err := tx.exec("UPDATE api_keys SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)",
				int64(at), id.UUID[:], int64(at))
			if err != nil {
				return err
			}
			s.recent.keys.Drop(id)
		}
		return nil
	})
}
