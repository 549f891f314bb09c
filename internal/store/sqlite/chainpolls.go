package sqlite

import (
	"context"

	"github.com/google/uuid"

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

// Polled implements store.Polls.
func (s *Store) Polled(ctx context.Context, chains []ledger.ChainID) (map[ledger.ChainID]ledger.Time, error) {
	polled := make(map[ledger.ChainID]ledger.Time)
	err := lists(chains, func(ids []ledger.ChainID) error {
		args := make([]any, len(ids))
		for i := range ids {
			args[i] = ids[i].UUID[:]
		}
		query := "SELECT c.id, p.polled_at FROM chains c JOIN chain_polls p ON p.chain_no = c.no WHERE c.id IN (" + marks(len(ids), "?") + ")"
		found, err := readAll(ctx, s, query, args, scanPoll)
		for _, p := range found {
			polled[p.chain] = p.at
		}
		return err
	})
	return polled, err
}

type poll struct {
	chain ledger.ChainID
	at    ledger.Time
}

func scanPoll(rows row) (*poll, error) {
	var id []byte
	var at int64
	if err := rows.Scan(&id, &at); err != nil {
		return nil, err
	}
	chain, err := uuid.FromBytes(id)
	return &poll{ledger.ChainID{UUID: chain}, ledger.Time(at)}, err
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
