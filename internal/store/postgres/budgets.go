package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	counterColumns = `id, org_id, budget, window_start, value, body, mac`
	selectCounters = `select ` + counterColumns + ` from budget_counters `

	lockCountersSQL   = selectCounters + `where id = any($1::uuid[]) order by id for update`
	insertCountersSQL = `insert into budget_counters (` + counterColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::bytea[])`
	updateCountersSQL = `update budget_counters c set body = n.body, mac = n.mac
		from unnest($1::uuid[], $2::bytea[], $3::bytea[]) n(id, body, mac) where c.id = n.id`
)

func readCounter(r *row) *store.CounterRecord {
	return &store.CounterRecord{
		ID: ledger.CounterID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Budget: r.text(), Start: r.time(), Value: r.text(), Body: r.bytes(), MAC: r.bytes(),
	}
}

func counterUUID(id ledger.CounterID) uuid.UUID { return id.UUID }

// BudgetCounters implements store.Budgets.
func (s *Store) BudgetCounters(ctx context.Context, wanted []ledger.CounterID) (map[ledger.CounterID]*store.CounterRecord, error) {
	found := make(map[ledger.CounterID]*store.CounterRecord)
	if len(wanted) == 0 {
		return found, nil
	}
	err := fetchNow(ctx, s, "budget counters", selectCounters+`where id = any($1::uuid[])`, readCounter,
		func(c *store.CounterRecord) { found[c.ID] = c }, ids(sorted(wanted, counterUUID), itself))
	return found, err
}

// CountersOf implements store.Budgets.
func (s *Store) CountersOf(ctx context.Context, q store.CounterQuery) ([]*store.CounterRecord, error) {
	return list(ctx, s, "budget counters",
		selectCounters+`where org_id = $1 and budget = $2 and window_start = $3 and (value, id) > ($4, $5) order by value, id limit $6`,
		[]any{bytesOf(q.Org.UUID), q.Budget, int64(q.Start), q.After.Value, bytesOf(q.After.ID.UUID), q.Limit}, readCounter)
}

// AllCounters implements store.Budgets.
func (s *Store) AllCounters(ctx context.Context, org ledger.OrgID, after ledger.CounterID, limit int) ([]*store.CounterRecord, error) {
	return list(ctx, s, "budget counters", selectCounters+`where org_id = $1 and id `+above(after.UUID)+` $2 order by id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readCounter)
}

// loadCounters locks and loads counters. A counter that does not exist cannot be locked: the second
// transaction to insert it violates the primary key.
func loadCounters(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	loaded.Counters = make(map[ledger.CounterID]*store.CounterRecord, len(needs.Counters))
	fetchAll(rt, lockCountersSQL, sorted(needs.Counters, counterUUID), readCounter, func(c *store.CounterRecord) { loaded.Counters[c.ID] = c })
}

// sendCounters inserts new counters in order of id, so that two transactions that insert the same
// counters do not deadlock.
func sendCounters(rt *roundTrip, made, moved []*store.CounterRecord) {
	if len(made) > 0 {
		made = slices.SortedFunc(slices.Values(made), func(a, b *store.CounterRecord) int { return slices.Compare(a.ID.UUID[:], b.ID.UUID[:]) })
		rt.send(insertCountersSQL,
			ids(made, func(c *store.CounterRecord) uuid.UUID { return c.ID.UUID }),
			ids(made, func(c *store.CounterRecord) uuid.UUID { return c.Org.UUID }),
			texts(made, func(c *store.CounterRecord) string { return c.Budget }),
			ints(made, func(c *store.CounterRecord) int64 { return int64(c.Start) }),
			texts(made, func(c *store.CounterRecord) string { return c.Value }),
			blobs(made, func(c *store.CounterRecord) []byte { return notNil(c.Body) }),
			blobs(made, func(c *store.CounterRecord) []byte { return notNil(c.MAC) }))
	}
	if len(moved) > 0 {
		rt.update(len(moved), "budget counters", updateCountersSQL,
			ids(moved, func(c *store.CounterRecord) uuid.UUID { return c.ID.UUID }),
			blobs(moved, func(c *store.CounterRecord) []byte { return notNil(c.Body) }),
			blobs(moved, func(c *store.CounterRecord) []byte { return notNil(c.MAC) }))
	}
}
