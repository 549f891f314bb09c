package sqlite

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const tokenColumns = "id, org_id, hash, artifact, artifact_id, idempotency_key, created_at, expires_at, revoked_at, " +
	"revocation_reason, last_used_at, mac, act"

func scanToken(rows row) (*store.TokenRecord, error) {
	var key *string
	var expires, revoked, used *int64
	var t store.TokenRecord
	err := rows.Scan(&t.ID.UUID, &t.Org.UUID, &t.Hash, &t.Artifact, &t.ArtifactID, &key, (*int64)(&t.CreatedAt), &expires, &revoked,
		&t.RevocationReason, &used, &t.MAC, &t.Act)
	t.IdempotencyKey = orEmptyText(key)
	t.ExpiresAt, t.RevokedAt, t.LastUsedAt = (*ledger.Time)(expires), (*ledger.Time)(revoked), (*ledger.Time)(used)
	return &t, err
}

func (tx *transaction) loadTokens(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Tokens {
		err := tx.query("SELECT "+tokenColumns+" FROM tokens WHERE id = ?", []any{id.UUID[:]}, func(rows row) error {
			token, err := scanToken(rows)
			loaded.Tokens[id] = token
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) loadIssued(needs *store.Needs, loaded *store.Loaded) error {
	for _, ref := range needs.Issued {
		query := "SELECT " + tokenColumns + " FROM tokens WHERE org_id = ? AND idempotency_key = ?"
		err := tx.query(query, []any{ref.Org.UUID[:], ref.Key}, func(rows row) error {
			token, err := scanToken(rows)
			loaded.Issued[ref] = token
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) insertToken(t *store.TokenRecord) error {
	return tx.exec("INSERT INTO tokens ("+tokenColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		t.ID.UUID[:], t.Org.UUID[:], t.Hash[:], t.Artifact, t.ArtifactID[:], orNull(t.IdempotencyKey), int64(t.CreatedAt),
		momentOrNull(t.ExpiresAt), momentOrNull(t.RevokedAt), t.RevocationReason, momentOrNull(t.LastUsedAt),
		orEmpty(t.MAC), t.Act)
}

func (tx *transaction) revokeToken(t *store.TokenRecord) error {
	return tx.change("UPDATE tokens SET revoked_at = ?, revocation_reason = ?, mac = ?, act = ? WHERE id = ? AND org_id = ?",
		momentOrNull(t.RevokedAt), t.RevocationReason, orEmpty(t.MAC), t.Act, t.ID.UUID[:], t.Org.UUID[:])
}

// Tokens implements store.Verification. A list from its beginning is bounded by
// the largest id there can be, so that one statement and its index serve all.
func (s *Store) Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	bound := uuid.Max
	if before != nil {
		bound = before.UUID
	}
	query := "SELECT " + tokenColumns + " FROM tokens WHERE org_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], bound[:], int64(limit)}, scanToken)
}

// TouchTokens implements store.Verification.
func (s *Store) TouchTokens(ctx context.Context, used map[ledger.TokenID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range used {
			err := tx.exec("UPDATE tokens SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)",
				int64(at), id.UUID[:], int64(at))
			if err != nil {
				return err
			}
		}
		return nil
	})
}
