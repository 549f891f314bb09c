package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Transact implements store.Writer in three round trips: the beginning with all
// that is loaded, all that is written, and the commit.
func (s *Store) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	return s.inTransaction(ctx, func(conn *pgx.Conn) error {
		loaded, err := load(ctx, conn, needs)
		if err != nil {
			return err
		}
		loaded.EventsAfter = func(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error) {
			return eventsAfter(ctx, conn, chain, after)
		}
		changes, err := plan(loaded)
		if err != nil {
			return err
		}
		return write(ctx, conn, changes)
	})
}

// eventsAfter leaves the payloads out: the facts name them by their hash.
func eventsAfter(ctx context.Context, conn *pgx.Conn, chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error) {
	const what = "load events"
	rows, err := conn.Query(ctx, `select chain_id, sequence, coalesce(idempotency_key, ''), body, null::bytea
		from events where chain_id = $1 and sequence > $2 order by sequence`, bytesOf(chain.UUID), after)
	if err != nil {
		return nil, explain(what, err)
	}
	return collect(what, rows, scanEvent)
}
