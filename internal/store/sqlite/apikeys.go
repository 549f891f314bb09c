package sqlite

import (
	"countersign/internal/ledger"
	"countersign/internal/store"
)

func (tx *transaction) insertKey(key *ledger.KeyRecord) error {
	previous, previousExpires := previousOf(key)
	return tx.exec("INSERT INTO api_keys ("+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		key.ID.UUID[:], key.Org.UUID[:], key.Name, string(key.Role), key.Hash[:], key.Hint, int64(key.CreatedAt), momentOrNull(key.RevokedAt),
		string(ledger.EncodeAgents(key.Agents)), key.Owner, momentOrNull(key.ExpiresAt), flag(key.ExpiryLogged), momentOrNull(key.LastUsedAt),
		previous, previousExpires, blob(key.MAC), key.Act)
}

// updateKey writes all that changes about a key but the moment of its last use.
func (tx *transaction) updateKey(key *ledger.KeyRecord) error {
	previous, previousExpires := previousOf(key)
	return tx.change(`UPDATE api_keys SET hash = ?, hint = ?, previous_hash = ?, previous_expires_at = ?, expiry_logged = ?, revoked_at = ?, mac = ?, act = ?
		WHERE id = ? AND org_id = ?`,
		key.Hash[:], key.Hint, previous, previousExpires, flag(key.ExpiryLogged), momentOrNull(key.RevokedAt), blob(key.MAC), key.Act, key.ID.UUID[:], key.Org.UUID[:])
}

// previousOf is a key's previous secret as it is bound; nulls without one.
func previousOf(key *ledger.KeyRecord) (hash, expires any) {
	if key.Previous == nil {
		return nil, nil
	}
	return key.Previous.Hash[:], int64(key.Previous.ExpiresAt)
}

// blob is bytes as they are bound: none are an empty text and not a null.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

func (tx *transaction) insertRotation(r *store.RotationRecord) error {
	return tx.exec("INSERT INTO key_rotations ("+rotationColumns+") VALUES (?, ?, ?, ?, ?, ?)",
		r.Org.UUID[:], r.IdempotencyKey, r.Key.UUID[:], int64(r.Overlap), int64(r.RotatedAt), blob(r.MAC))
}

func (tx *transaction) loadRotations(needs *store.Needs, loaded *store.Loaded) error {
	for _, ref := range needs.Rotations {
		query := "SELECT " + rotationColumns + " FROM key_rotations WHERE org_id = ? AND idempotency_key = ?"
		err := tx.query(query, []any{ref.Org.UUID[:], ref.Key}, func(rows row) error {
			rotation, err := scanRotation(rows)
			loaded.Rotations[ref] = rotation
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
