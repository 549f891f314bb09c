package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// One statement for each kind of record, with a column of values in each
// parameter: what a batch costs grows with its bytes, not with its statements.
const (
	insertChainsSQL = `insert into chains (id, org_id, opened_by, external_id, environment, idempotency_key, body)
		select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[])`
	insertStatesSQL = `insert into chain_states (chain_id, org_id, status, state, mac)
		select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::bytea[])`
	updateStatesSQL = `update chain_states s set status = n.status, state = n.state, mac = n.mac
		from unnest($1::uuid[], $2::text[], $3::bytea[], $4::bytea[]) n(chain_id, status, state, mac)
		where s.chain_id = n.chain_id`
	insertEventsSQL = `insert into events (chain_id, sequence, idempotency_key, body, payload)
		select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[])`
	insertAddendaSQL = `insert into addenda (chain_id, position, sequence, body)
		select * from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[])`
	insertReceiptsSQL = `insert into receipts (id, org_id, sequence, chain_id, previous_hash, body)
		select * from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::bytea[], $6::bytea[])`
	updateHeadsSQL = `update heads h set count = n.count, last_hash = n.last_hash, key_id = n.key_id, mac = n.mac
		from unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::text[], $5::bytea[]) n(org_id, count, last_hash, key_id, mac)
		where h.org_id = n.org_id`
)

// write sends all changes in one round trip.
func write(ctx context.Context, conn *pgx.Conn, changes *store.Changes) error {
	if changes == nil {
		return errNothingToWrite
	}
	batch := new(pgx.Batch)
	queueChains(batch, changes.NewChains)
	queueStates(batch, changes.States)
	queueEvents(batch, changes.NewEvents)
	queueAddenda(batch, changes.NewAddenda)
	queueReceipts(batch, changes.NewReceipts)
	queueHeads(batch, changes.Heads)
	if batch.Len() == 0 {
		return errNothingToWrite
	}
	batch.Queue(patientCommitSQL)
	return explain("write", conn.SendBatch(ctx, batch).Close())
}

func queueChains(batch *pgx.Batch, chains []*store.ChainRecord) {
	if len(chains) == 0 {
		return
	}
	// Two transactions that open chains under the same keys meet at the first
	// key, and one waits for the other; in different orders both would wait.
	chains = slices.Clone(chains)
	slices.SortFunc(chains, func(a, b *store.ChainRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.IdempotencyKey, b.IdempotencyKey))
	})
	id := ids(chains, func(c *store.ChainRecord) uuid.UUID { return c.ID.UUID })
	org := ids(chains, func(c *store.ChainRecord) uuid.UUID { return c.Org.UUID })
	batch.Queue(insertChainsSQL, id, org,
		ids(chains, func(c *store.ChainRecord) uuid.UUID { return c.OpenedBy.UUID }),
		column(chains, func(c *store.ChainRecord) string { return c.ExternalID }),
		column(chains, func(c *store.ChainRecord) string { return c.Environment }),
		column(chains, func(c *store.ChainRecord) *string { return nullable(c.IdempotencyKey) }),
		column(chains, func(c *store.ChainRecord) []byte { return c.Body }))
	batch.Queue(insertStatesSQL, id, org,
		column(chains, func(c *store.ChainRecord) string { return string(c.Status) }),
		column(chains, func(c *store.ChainRecord) []byte { return c.State }),
		column(chains, func(c *store.ChainRecord) []byte { return c.MAC }))
}

func queueStates(batch *pgx.Batch, states []*store.ChainRecord) {
	if len(states) == 0 {
		return
	}
	batch.Queue(updateStatesSQL,
		ids(states, func(c *store.ChainRecord) uuid.UUID { return c.ID.UUID }),
		column(states, func(c *store.ChainRecord) string { return string(c.Status) }),
		column(states, func(c *store.ChainRecord) []byte { return c.State }),
		column(states, func(c *store.ChainRecord) []byte { return c.MAC })).Exec(expect(len(states), "chain states"))
}

func queueEvents(batch *pgx.Batch, events []*ledger.StoredEvent) {
	if len(events) == 0 {
		return
	}
	batch.Queue(insertEventsSQL,
		ids(events, func(e *ledger.StoredEvent) uuid.UUID { return e.Chain.UUID }),
		column(events, func(e *ledger.StoredEvent) int64 { return e.Sequence }),
		column(events, func(e *ledger.StoredEvent) *string { return nullable(e.IdempotencyKey) }),
		column(events, func(e *ledger.StoredEvent) []byte { return e.Body }),
		column(events, func(e *ledger.StoredEvent) []byte { return e.Payload }))
}

func queueAddenda(batch *pgx.Batch, addenda []*ledger.Addendum) {
	if len(addenda) == 0 {
		return
	}
	batch.Queue(insertAddendaSQL,
		ids(addenda, func(a *ledger.Addendum) uuid.UUID { return a.Chain.UUID }),
		column(addenda, func(a *ledger.Addendum) int64 { return a.Position }),
		column(addenda, func(a *ledger.Addendum) int64 { return a.Sequence }),
		column(addenda, func(a *ledger.Addendum) []byte { return a.Body }))
}

func queueReceipts(batch *pgx.Batch, receipts []*ledger.StoredReceipt) {
	if len(receipts) == 0 {
		return
	}
	batch.Queue(insertReceiptsSQL,
		ids(receipts, func(r *ledger.StoredReceipt) uuid.UUID { return r.ID.UUID }),
		ids(receipts, func(r *ledger.StoredReceipt) uuid.UUID { return r.Org.UUID }),
		column(receipts, func(r *ledger.StoredReceipt) int64 { return r.Sequence }),
		ids(receipts, func(r *ledger.StoredReceipt) uuid.UUID { return r.Chain.UUID }),
		column(receipts, func(r *ledger.StoredReceipt) []byte { return notNil(r.PreviousHash) }),
		column(receipts, func(r *ledger.StoredReceipt) []byte { return r.Body }))
}

func queueHeads(batch *pgx.Batch, heads []*ledger.Head) {
	if len(heads) == 0 {
		return
	}
	batch.Queue(updateHeadsSQL,
		ids(heads, func(h *ledger.Head) uuid.UUID { return h.Org.UUID }),
		column(heads, func(h *ledger.Head) int64 { return h.Count }),
		column(heads, lastHash),
		column(heads, func(h *ledger.Head) string { return h.KeyID }),
		column(heads, func(h *ledger.Head) []byte { return h.MAC })).Exec(expect(len(heads), "heads"))
}

// expect refuses an update that did not find all its rows.
func expect(count int, what string) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(count) {
			return fmt.Errorf("%w: %d of %d %s to update", store.ErrNotFound, int64(count)-tag.RowsAffected(), count, what)
		}
		return nil
	}
}

func lastHash(h *ledger.Head) []byte {
	if h.Last == nil {
		return nil
	}
	return h.Last[:]
}

// notNil is for columns that are never null.
func notNil(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
