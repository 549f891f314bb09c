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
	var loaded *store.Loaded
	var changes *store.Changes
	err := s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if loaded, err = s.load(ctx, conn, needs); err != nil {
			return err
		}
		loaded.EventsAfter = func(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error) {
			return collect(ctx, conn, "load events", eventsAfterSQL, []any{bytesOf(chain.UUID), after}, readEvent)
		}
		loaded.AddendaAfter = func(chain ledger.ChainID, after int64) ([]*ledger.Addendum, error) {
			return collect(ctx, conn, "load addenda", addendaAfterSQL, []any{bytesOf(chain.UUID), after}, readAddendum)
		}
		loaded.ActsAfter = func(org ledger.OrgID, after int64, limit int) ([]*ledger.StoredAct, error) {
			return collect(ctx, conn, "load acts", actsAfterSQL, []any{bytesOf(org.UUID), after, limit}, readAct)
		}
		loaded.Policy = func(org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
			const what = "load policy"
			found, err := collect(ctx, conn, what, policySQL, []any{bytesOf(org.UUID), number}, readPolicy)
			return only(what, found, err)
		}
		if changes, err = plan(loaded); err != nil {
			return err
		}
		return write(ctx, conn, changes)
	})
	if err == nil && changes != nil {
		s.remember(loaded, changes)
	}
	return err
}

// eventsAfterSQL leaves the payloads and redactions out: the facts name them by their hash.
const eventsAfterSQL = `select chain_id, sequence, coalesce(idempotency_key, ''), body, null::bytea as payload, null::bytea as redactions, mac
	from events where chain_id = $1 and sequence > $2 order by sequence`

const actsAfterSQL = selectActs + `where org_id = $1 and sequence > $2 order by sequence limit $3`

const addendaAfterSQL = `select ` + addendumColumns + ` from addenda a where a.chain_id = $1 and a.position > $2 order by a.position`
