package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// TouchChains implements store.Polls.
func (s *Store) TouchChains(ctx context.Context, polled map[ledger.ChainID]ledger.Time) error {
	if len(polled) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range polled {
			err := tx.exec(`INSERT INTO chain_polls (chain_no, polled_at) SELECT no, ? FROM chains WHERE id = ?
				ON CONFLICT (chain_no) DO UPDATE SET polled_at = excluded.polled_at WHERE polled_at < excluded.polled_at`, int64(at), id.UUID[:])
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (tx *transaction) loadPolls(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Polls {
		no, err := tx.number(id)
		if err != nil {
			return err
		}
		err = tx.query("SELECT polled_at FROM chain_polls WHERE chain_no = ?", []any{no}, func(rows row) error {
			var at int64
			err := rows.Scan(&at)
			loaded.Polls[id] = ledger.Time(at)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
