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

// There is one statement for each kind of record, with one array parameter per column. The cost of
// a batch grows with its bytes, not with its number of statements.
const (
	insertChainsSQL = `insert into chains (id, org_id, opened_by, external_id, environment, idempotency_key, body)
		select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[])`
	insertStatesSQL = `insert into chain_states (chain_id, org_id, status, state, mac)
		select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::bytea[])`
	updateStatesSQL = `update chain_states s set status = n.status, state = n.state, mac = n.mac
		from unnest($1::uuid[], $2::text[], $3::bytea[], $4::bytea[]) n(chain_id, status, state, mac)
		where s.chain_id = n.chain_id`
	insertEventsSQL = `insert into events (chain_id, sequence, idempotency_key, body, payload, redactions, mac)
		select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[])`
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
	rt := new(roundTrip)
	if err := sendChanges(rt, changes); err != nil {
		return err
	}
	if len(rt.statements) == 0 {
		return errNothingToWrite
	}
	rt.send(noTimeoutSQL)
	return explain("write", rt.run(ctx, conn))
}

// sendChanges sends one statement for each kind of record that changes. Rows that others reference
// come first.
func sendChanges(rt *roundTrip, changes *store.Changes) error {
	if changes == nil {
		return nil
	}
	if err := sendOrganizations(rt, changes.Orgs); err != nil {
		return err
	}
	sendKeys(rt, changes.NewKeys, changes.Keys)
	sendRotations(rt, changes.NewRotations)
	sendFindings(rt, changes.Findings)
	sendChains(rt, changes.NewChains)
	sendStates(rt, changes.States)
	sendEvents(rt, changes.NewEvents)
	sendAddenda(rt, changes.NewAddenda)
	sendReceipts(rt, changes.NewReceipts)
	sendHeads(rt, changes.Heads)
	sendCounters(rt, changes.NewCounters, changes.Counters)
	sendApprovals(rt, changes.NewApprovals, changes.Approvals)
	sendPolicies(rt, changes.NewPolicies)
	if err := sendWebhooks(rt, changes.Webhooks); err != nil {
		return err
	}
	sendTokens(rt, changes.NewTokens, changes.RevokedTokens)
	sendSigningKeys(rt, changes.SigningKeys)
	sendAnchors(rt, changes.Anchors)
	sendImported(rt, changes.NewImported)
	sendTransparencyLogs(rt, changes.Transparency)
	sendActs(rt, changes.NewActs, changes.Logs)
	sendPostings(rt, changes.NewPostings)
	sendReceiptPostings(rt, changes.ReceiptPostings)
	sendJobs(rt, changes.NewJobs)
	sendSignals(rt, changes.Signals)
	return nil
}

func sendChains(rt *roundTrip, chains []*store.ChainRecord) {
	if len(chains) == 0 {
		return
	}
	// The order of keys avoids a deadlock between two transactions that open chains with the same
	// keys.
	chains = slices.Clone(chains)
	slices.SortFunc(chains, func(a, b *store.ChainRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.IdempotencyKey, b.IdempotencyKey))
	})
	id := ids(chains, func(c *store.ChainRecord) uuid.UUID { return c.ID.UUID })
	org := ids(chains, func(c *store.ChainRecord) uuid.UUID { return c.Org.UUID })
	rt.send(insertChainsSQL, id, org,
		ids(chains, func(c *store.ChainRecord) uuid.UUID { return c.OpenedBy.UUID }),
		texts(chains, func(c *store.ChainRecord) string { return c.ExternalID }),
		texts(chains, func(c *store.ChainRecord) string { return c.Environment }),
		textsOrNull(chains, func(c *store.ChainRecord) string { return c.IdempotencyKey }),
		blobs(chains, func(c *store.ChainRecord) []byte { return c.Body }))
	rt.send(insertStatesSQL, id, org,
		texts(chains, func(c *store.ChainRecord) string { return string(c.Status) }),
		blobs(chains, func(c *store.ChainRecord) []byte { return c.State }),
		blobs(chains, func(c *store.ChainRecord) []byte { return c.MAC }))
}

func sendStates(rt *roundTrip, states []*store.ChainRecord) {
	if len(states) == 0 {
		return
	}
	rt.update(len(states), "chain states", updateStatesSQL,
		ids(states, func(c *store.ChainRecord) uuid.UUID { return c.ID.UUID }),
		texts(states, func(c *store.ChainRecord) string { return string(c.Status) }),
		blobs(states, func(c *store.ChainRecord) []byte { return c.State }),
		blobs(states, func(c *store.ChainRecord) []byte { return c.MAC }))
}

func sendEvents(rt *roundTrip, events []*ledger.StoredEvent) {
	if len(events) == 0 {
		return
	}
	rt.send(insertEventsSQL,
		ids(events, func(e *ledger.StoredEvent) uuid.UUID { return e.Chain.UUID }),
		ints(events, func(e *ledger.StoredEvent) int64 { return e.Sequence }),
		textsOrNull(events, func(e *ledger.StoredEvent) string { return e.IdempotencyKey }),
		blobs(events, func(e *ledger.StoredEvent) []byte { return e.Body }),
		blobs(events, func(e *ledger.StoredEvent) []byte { return e.Payload }),
		blobs(events, func(e *ledger.StoredEvent) []byte { return e.Redactions }),
		blobs(events, func(e *ledger.StoredEvent) []byte { return e.MAC }))
}

func sendAddenda(rt *roundTrip, addenda []*ledger.Addendum) {
	if len(addenda) == 0 {
		return
	}
	rt.send(insertAddendaSQL,
		ids(addenda, func(a *ledger.Addendum) uuid.UUID { return a.Chain.UUID }),
		ints(addenda, func(a *ledger.Addendum) int64 { return a.Position }),
		ints(addenda, func(a *ledger.Addendum) int64 { return a.Sequence }),
		blobs(addenda, func(a *ledger.Addendum) []byte { return a.Body }))
}

func sendReceipts(rt *roundTrip, receipts []*ledger.StoredReceipt) {
	if len(receipts) == 0 {
		return
	}
	rt.send(insertReceiptsSQL,
		ids(receipts, func(r *ledger.StoredReceipt) uuid.UUID { return r.ID.UUID }),
		ids(receipts, func(r *ledger.StoredReceipt) uuid.UUID { return r.Org.UUID }),
		ints(receipts, func(r *ledger.StoredReceipt) int64 { return r.Sequence }),
		ids(receipts, func(r *ledger.StoredReceipt) uuid.UUID { return r.Chain.UUID }),
		blobs(receipts, func(r *ledger.StoredReceipt) []byte { return notNil(r.PreviousHash) }),
		blobs(receipts, func(r *ledger.StoredReceipt) []byte { return r.Body }))
}

func sendHeads(rt *roundTrip, heads []*ledger.Head) {
	if len(heads) == 0 {
		return
	}
	rt.update(len(heads), "heads", updateHeadsSQL, headParameters(heads)...)
}

func headParameters(heads []*ledger.Head) [][]byte {
	return [][]byte{
		ids(heads, func(h *ledger.Head) uuid.UUID { return h.Org.UUID }),
		ints(heads, func(h *ledger.Head) int64 { return h.Count }),
		blobs(heads, func(h *ledger.Head) []byte { return hashOrNil(h.Last) }),
		texts(heads, func(h *ledger.Head) string { return h.KeyID }),
		blobs(heads, func(h *ledger.Head) []byte { return h.MAC }),
	}
}

// expect returns an error unless the statement changed exactly count rows.
func expect(tag pgconn.CommandTag, count int, what string) error {
	if tag.RowsAffected() != int64(count) {
		return fmt.Errorf("%w: %d of %d %s to update", store.ErrNotFound, int64(count)-tag.RowsAffected(), count, what)
	}
	return nil
}

func hashOrNil(hash *[32]byte) []byte {
	if hash == nil {
		return nil
	}
	return hash[:]
}

// notNil replaces nil, for columns that cannot be null.
func notNil(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
