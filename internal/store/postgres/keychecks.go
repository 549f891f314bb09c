package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"countersign/internal/store"
)

// KeyChecks implements store.KeyChecks.
func (s *Store) KeyChecks(ctx context.Context) (map[string][32]byte, error) {
	checks := make(map[string][32]byte)
	err := s.query(ctx, "key checks", `select key_id, fingerprint from master_keys`, nil, func(r *row) error {
		checks[r.text()] = r.hash()
		return r.end()
	})
	if err != nil {
		return nil, err
	}
	return checks, nil
}

// AddKeyCheck implements store.KeyChecks. The update changes nothing: it makes
// the row that is there already come back, also when another process adds it at
// the same moment.
func (s *Store) AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error {
	const what = "add key check"
	const sql = `insert into master_keys as m (key_id, fingerprint) values ($1, $2)
		on conflict (key_id) do update set key_id = m.key_id returning m.fingerprint`
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var kept []byte
		if err := scanRow(what, conn.QueryRow(ctx, sql, keyID, fingerprint[:]), &kept); err != nil {
			return err
		}
		if [32]byte(kept) != fingerprint {
			return fmt.Errorf("%s: %w with another fingerprint", what, store.ErrExists)
		}
		return nil
	})
}
