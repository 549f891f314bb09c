package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	signingKeyColumns = "id, org_id, public, private, status, name, created_at, retired_at, revoked_at, mac, act"
	signingKeysQuery  = "SELECT " + signingKeyColumns + " FROM signing_keys WHERE org_id = ? ORDER BY id"
)

func scanSigningKey(rows row) (*store.SigningKeyRecord, error) {
	var retired, revoked *int64
	var k store.SigningKeyRecord
	err := rows.Scan(&k.ID.UUID, &k.Org.UUID, &k.Public, &k.Private, &k.Status, &k.Name, (*int64)(&k.CreatedAt), &retired, &revoked, &k.MAC, &k.Act)
	k.RetiredAt, k.RevokedAt = (*ledger.Time)(retired), (*ledger.Time)(revoked)
	return &k, err
}

func (tx *transaction) loadSigningKeys(needs *store.Needs, loaded *store.Loaded) error {
	for _, org := range needs.SigningKeys {
		if loaded.SigningKeys[org] != nil {
			continue
		}
		err := tx.query(signingKeysQuery, []any{org.UUID[:]}, func(rows row) error {
			key, err := scanSigningKey(rows)
			loaded.SigningKeys[org] = append(loaded.SigningKeys[org], key)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) putSigningKey(k *store.SigningKeyRecord) error {
	return tx.exec("INSERT OR REPLACE INTO signing_keys ("+signingKeyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		k.ID.UUID[:], k.Org.UUID[:], k.Public, k.Private, k.Status, k.Name, int64(k.CreatedAt),
		momentOrNull(k.RetiredAt), momentOrNull(k.RevokedAt), orEmpty(k.MAC), k.Act)
}

// SigningKeys implements store.Verification.
func (s *Store) SigningKeys(ctx context.Context, org ledger.OrgID) ([]*store.SigningKeyRecord, error) {
	return readAll(ctx, s, signingKeysQuery, []any{org.UUID[:]}, scanSigningKey)
}
