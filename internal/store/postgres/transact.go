package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Transact implements store.Writer in three round trips: begin and load, write, and commit.
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
		s.cacheChains(loaded, changes)
	}
	return err
}

// eventsAfterSQL omits the payloads and redactions, because the facts contain their hashes.
const eventsAfterSQL = `select chain_id, sequence, coalesce(idempotency_key, ''), body, null::bytea as payload, null::bytea as redactions, mac
	from events where chain_id = $1 and sequence > $2 order by sequence`

const actsAfterSQL = selectActs + `where org_id = $1 and sequence > $2 order by sequence limit $3`

const addendaAfterSQL = `select ` + addendumColumns + ` from addenda a where a.chain_id = $1 and a.position > $2 order by a.position`

// Locks come first, in the same order everywhere, so that transactions do not deadlock:
// organizations (see locks.go), chains, budget counters, heads, audit logs, and within each kind in
// order of id. Whatever is read after them is at least as recent as the time at which they were
// granted.
const (
	lockChainsSQL = `select s.chain_id, ` + movingColumns + ` from chain_states s
		where s.chain_id = any($1::uuid[]) order by s.chain_id for update`
	lockHeadsSQL = `select ` + headColumns + ` from heads where org_id = any($1::uuid[]) order by org_id for update`

	loadChainsSQL        = `select ` + fixedColumns + ` from chains c where c.id = any($1::uuid[])`
	loadOrganizationsSQL = `select id, slug, name, settings, o.controls, created_at, l.org_id, l.count, l.last_hash, l.controls, l.mac
		from (select ` + organizationColumns + ` from organizations where id = any($1::uuid[])) o left join act_logs l on l.org_id = o.id`
	loadKeysSQL        = `select ` + keyColumns + ` from api_keys where id = any($1::uuid[])`
	loadLogsSQL        = `select ` + logColumns + ` from act_logs where org_id = any($1::uuid[])`
	loadWebhooksSQL    = `select ` + webhookColumns + ` from webhooks where id = any($1::uuid[])`
	loadApprovalsSQL   = `select ` + approvalColumns + ` from approvals where id = any($1::uuid[])`
	loadApprovalsOfSQL = `select ` + approvalColumns + ` from approvals where chain_id = any($1::uuid[])`

	loadOpensSQL = `select ` + chainColumns + ` from unnest($1::uuid[], $2::uuid[], $3::text[]) n(org_id, opened_by, key)
		join chains c on c.org_id = n.org_id and c.idempotency_key = n.key and c.opened_by = n.opened_by join chain_states s on s.chain_id = c.id`
	loadRepeatsSQL = `select ` + eventColumns + ` from unnest($1::uuid[], $2::text[]) n(chain_id, key)
		join events e on e.chain_id = n.chain_id and e.idempotency_key = n.key`
	loadAddendaSQL = `select ` + addendumColumns + ` from unnest($1::uuid[], $2::bigint[]) n(chain_id, sequence)
		join addenda a on a.chain_id = n.chain_id and a.sequence = n.sequence order by a.position`
)

// load begins the transaction and reads everything in needs in one round trip.
func (s *Store) load(ctx context.Context, conn *pgx.Conn, needs *store.Needs) (*store.Loaded, error) {
	loaded := &store.Loaded{
		Orgs:      make(map[ledger.OrgID]*ledger.Organization),
		Keys:      make(map[ledger.KeyID]*ledger.KeyRecord),
		Chains:    make(map[ledger.ChainID]*store.ChainRecord, len(needs.Chains)),
		Heads:     make(map[ledger.OrgID]*ledger.Head),
		Logs:      make(map[ledger.OrgID]*ledger.ActLog),
		Ends:      make(map[ledger.OrgID]*ledger.ActLog),
		Opens:     make(map[store.OpenRef]*store.ChainRecord),
		Repeats:   make(map[store.EventRef]*ledger.StoredEvent),
		Addenda:   make(map[store.EventAt][]*ledger.Addendum),
		Approvals: make(map[ledger.ApprovalID]*store.ApprovalRecord),
		Webhooks:  make(map[ledger.WebhookID]*store.WebhookRecord),
	}
	rt := new(roundTrip)
	rt.send(beginSQL)
	lockOrganizations(rt, needs)
	chains := s.loadChains(rt, needs.Chains)
	loadCounters(rt, needs, loaded)
	heads := sorted(needs.Heads, orgUUID)
	fetchAll(rt, lockHeadsSQL, heads, readHead, func(h *ledger.Head) { loaded.Heads[h.Org] = h })
	loadLogs(rt, needs.Logs, loaded)
	s.loadByID(rt, needs, loaded)
	loadReferences(rt, needs, loaded)
	loadVerification(rt, needs, loaded)
	loadRotations(rt, needs, loaded)
	loadFindings(rt, needs, loaded)
	loadImported(rt, needs, loaded)
	loadPolls(rt, needs, loaded)
	if err := rt.run(ctx, conn); err != nil {
		return nil, explain("load", err)
	}
	chains.joinInto(loaded.Chains)
	return loaded, nil
}

func (s *Store) loadByID(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	orgs := sorted(slices.Concat(needs.Orgs, needs.Govern), orgUUID)
	fetchAll(rt, loadOrganizationsSQL, orgs, s.readCachedOrganization, func(o cachedOrganization) {
		if loaded.Orgs[o.org.ID] = o.org; o.end != nil {
			loaded.Ends[o.org.ID] = o.end
		}
	})
	keys := sorted(needs.Keys, keyUUID)
	fetchAll(rt, loadKeysSQL, keys, readKey, func(k *ledger.KeyRecord) { loaded.Keys[k.ID] = k })
	keep := func(a *store.ApprovalRecord) { loaded.Approvals[a.ID] = a }
	approvals := sorted(needs.Approvals, approvalUUID)
	fetchAll(rt, loadApprovalsSQL, approvals, readApproval, keep)
	chains := sorted(needs.ApprovalsOf, chainUUID)
	fetchAll(rt, loadApprovalsOfSQL, chains, readApproval, keep)
	webhooks := sorted(needs.Webhooks, func(id ledger.WebhookID) uuid.UUID { return id.UUID })
	fetchAll(rt, loadWebhooksSQL, webhooks, readWebhook, func(w *store.WebhookRecord) { loaded.Webhooks[w.ID] = w })
}

// loadReferences loads records that are found by more than an id. Duplicates would be returned
// twice, so each is requested once.
func loadReferences(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	if opens := distinct(needs.Opens); len(opens) > 0 {
		fetch(rt, loadOpensSQL, readChain,
			func(c *store.ChainRecord) {
				loaded.Opens[store.OpenRef{Org: c.Org, By: c.OpenedBy, Key: c.IdempotencyKey}] = c
			},
			ids(opens, func(o store.OpenRef) uuid.UUID { return o.Org.UUID }),
			ids(opens, func(o store.OpenRef) uuid.UUID { return o.By.UUID }),
			texts(opens, func(o store.OpenRef) string { return o.Key }))
	}
	if repeats := distinct(needs.Repeats); len(repeats) > 0 {
		fetch(rt, loadRepeatsSQL, readEvent,
			func(e *ledger.StoredEvent) { loaded.Repeats[store.EventRef{Chain: e.Chain, Key: e.IdempotencyKey}] = e },
			ids(repeats, func(r store.EventRef) uuid.UUID { return r.Chain.UUID }),
			texts(repeats, func(r store.EventRef) string { return r.Key }))
	}
	if places := distinct(needs.Addenda); len(places) > 0 {
		fetch(rt, loadAddendaSQL, readAddendum,
			func(a *ledger.Addendum) {
				at := store.EventAt{Chain: a.Chain, Sequence: a.Sequence}
				loaded.Addenda[at] = append(loaded.Addenda[at], a)
			},
			ids(places, func(p store.EventAt) uuid.UUID { return p.Chain.UUID }),
			ints(places, func(p store.EventAt) int64 { return p.Sequence }))
	}
}

// fetchAll loads records by their ids. It sends nothing if there are none.
func fetchAll[T any](rt *roundTrip, sql string, wanted []uuid.UUID, read func(*row) T, keep func(T)) {
	if len(wanted) > 0 {
		fetch(rt, sql, read, keep, ids(wanted, itself))
	}
}

func itself(id uuid.UUID) uuid.UUID { return id }

// sorted returns each id once, in order.
func sorted[T any](all []T, id func(T) uuid.UUID) []uuid.UUID {
	if len(all) == 0 {
		return nil
	}
	wanted := make([]uuid.UUID, len(all))
	for i, one := range all {
		wanted[i] = id(one)
	}
	slices.SortFunc(wanted, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(wanted)
}

func distinct[T comparable](all []T) []T {
	if len(all) < 2 {
		return all
	}
	seen := make(map[T]struct{}, len(all))
	unique := make([]T, 0, len(all))
	for _, one := range all {
		if _, ok := seen[one]; !ok {
			seen[one] = struct{}{}
			unique = append(unique, one)
		}
	}
	return unique
}
