package postgres

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	// Rows are written in order of id: in different orders two writers would wait for
	// each other.
	touchChainsSQL = `insert into chain_polls (chain_id, polled_at)
		select n.id, n.at from unnest($1::uuid[], $2::bigint[]) n(id, at) join chains c on c.id = n.id order by n.id
		on conflict (chain_id) do update set polled_at = excluded.polled_at where chain_polls.polled_at < excluded.polled_at`
	loadPollsSQL = `select chain_id, polled_at from chain_polls where chain_id = any($1::uuid[])`
)

// TouchChains implements store.Polls.
func (s *Store) TouchChains(ctx context.Context, polled map[ledger.ChainID]ledger.Time) error {
	if len(polled) == 0 {
		return nil
	}
	chains := slices.Collect(maps.Keys(polled))
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(touchChainsSQL, ids(chains, chainUUID), ints(chains, func(id ledger.ChainID) int64 { return int64(polled[id]) }))
		x.send(patientCommitSQL)
		return explain("touch chains", x.run(ctx, conn))
	})
}

type poll struct {
	chain uuid.UUID
	at    ledger.Time
}

func readPoll(r *row) poll { return poll{r.id(), r.time()} }

// Polled implements store.Polls.
func (s *Store) Polled(ctx context.Context, chains []ledger.ChainID) (map[ledger.ChainID]ledger.Time, error) {
	polled := make(map[ledger.ChainID]ledger.Time)
	if len(chains) == 0 {
		return polled, nil
	}
	err := askAlone(ctx, s, "polls", loadPollsSQL, readPoll, func(p poll) { polled[ledger.ChainID{UUID: p.chain}] = p.at },
		ids(chains, chainUUID))
	return polled, err
}

func askPolls(x *exchange, needs *store.Needs, loaded *store.Loaded) {
	loaded.Polls = make(map[ledger.ChainID]ledger.Time)
	chains := sorted(needs.Polls, chainUUID)
	askAll(x, loadPollsSQL, chains, readPoll,
		func(p poll) { loaded.Polls[ledger.ChainID{UUID: p.chain}] = p.at })
}
