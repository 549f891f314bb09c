package sqlite

import (
	"context"
	"fmt"

	"countersign/internal/store"
)

// KeyChecks implements store.KeyChecks.
func (s *Store) KeyChecks(ctx context.Context) (map[string][32]byte, error) {
	checks := make(map[string][32]byte)
	err := s.read(ctx, "SELECT key_id, fingerprint FROM master_keys", nil, func(rows row) error {
		var id string
		var fingerprint [32]byte
		if err := rows.Scan(&id, &fingerprint); err != nil {
			return err
		}
		checks[id] = fingerprint
		return nil
	})
	return checks, err
}

// AddKeyCheck implements store.KeyChecks.
func (s *Store) AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec("INSERT INTO master_keys (key_id, fingerprint) VALUES (?, ?) ON CONFLICT DO NOTHING", keyID, fingerprint[:]); err != nil {
			return err
		}
		return tx.query("SELECT fingerprint FROM master_keys WHERE key_id = ?", []any{keyID}, func(rows row) error {
			var kept [32]byte
			if err := rows.Scan(&kept); err != nil {
				return err
			}
			if kept != fingerprint {
				return fmt.Errorf("master key %s: %w", keyID, store.ErrExists)
			}
			return nil
		})
	})
}
