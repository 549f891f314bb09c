package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// The locks come first, chains before heads and each in order of id, so that
// two transactions never wait for each other in a circle. What is read after
// them is at least as new as the moment at which they were granted.
const (
	lockChainsSQL = `select ` + chainColumns + ` from chain_states s join chains c on c.id = s.chain_id
		where s.chain_id = any($1::uuid[]) order by s.chain_id for update of s`
	lockHeadsSQL = `select ` + headColumns + ` from heads where org_id = any($1::uuid[]) order by org_id for update`

	loadOrganizationsSQL = `select ` + organizationColumns + ` from organizations where id = any($1::uuid[])`
	loadKeysSQL          = `select ` + keyColumns + ` from api_keys where id = any($1::uuid[])`
	loadOpensSQL         = `select ` + chainColumns + ` from unnest($1::uuid[], $2::text[]) n(org_id, key)
		join chains c on c.org_id = n.org_id and c.idempotency_key = n.key join chain_states s on s.chain_id = c.id`
	loadRepeatsSQL = `select ` + eventColumns + ` from unnest($1::uuid[], $2::text[]) n(chain_id, key)
		join events e on e.chain_id = n.chain_id and e.idempotency_key = n.key`
	loadAddendaSQL = `select ` + addendumColumns + ` from unnest($1::uuid[], $2::bigint[]) n(chain_id, sequence)
		join addenda a on a.chain_id = n.chain_id and a.sequence = n.sequence order by a.position`
)

// load begins the transaction and reads what needs names, in one round trip.
func load(ctx context.Context, conn *pgx.Conn, needs *store.Needs) (*store.Loaded, error) {
	loaded := &store.Loaded{
		Orgs:    make(map[ledger.OrgID]*ledger.Organization, len(needs.Orgs)),
		Keys:    make(map[ledger.KeyID]*ledger.KeyRecord, len(needs.Keys)),
		Chains:  make(map[ledger.ChainID]*store.ChainRecord, len(needs.Chains)),
		Heads:   make(map[ledger.OrgID]*ledger.Head, len(needs.Heads)),
		Opens:   make(map[store.OpenRef]*store.ChainRecord, len(needs.Opens)),
		Repeats: make(map[store.EventRef]*ledger.StoredEvent, len(needs.Repeats)),
		Addenda: make(map[store.EventAt][]*ledger.Addendum, len(needs.Addenda)),
	}
	batch := new(pgx.Batch)
	batch.Queue(beginSQL)

	into(batch, lockChainsSQL, scanChain, func(c *store.ChainRecord) { loaded.Chains[c.ID] = c },
		ids(needs.Chains, func(id ledger.ChainID) uuid.UUID { return id.UUID }))
	into(batch, lockHeadsSQL, scanHead, func(h *ledger.Head) { loaded.Heads[h.Org] = h },
		ids(needs.Heads, func(id ledger.OrgID) uuid.UUID { return id.UUID }))
	into(batch, loadOrganizationsSQL, scanOrganization, func(o *ledger.Organization) { loaded.Orgs[o.ID] = o },
		ids(needs.Orgs, func(id ledger.OrgID) uuid.UUID { return id.UUID }))
	into(batch, loadKeysSQL, scanKey, func(k *ledger.KeyRecord) { loaded.Keys[k.ID] = k },
		ids(needs.Keys, func(id ledger.KeyID) uuid.UUID { return id.UUID }))
	loadReferences(batch, needs, loaded)

	return loaded, explain("load", conn.SendBatch(ctx, batch).Close())
}

// loadReferences queues what is found by more than an id. A double would come
// back twice, so each is asked for once.
func loadReferences(batch *pgx.Batch, needs *store.Needs, loaded *store.Loaded) {
	opens := distinct(needs.Opens)
	into(batch, loadOpensSQL, scanChain,
		func(c *store.ChainRecord) { loaded.Opens[store.OpenRef{Org: c.Org, Key: c.IdempotencyKey}] = c },
		ids(opens, func(o store.OpenRef) uuid.UUID { return o.Org.UUID }),
		column(opens, func(o store.OpenRef) string { return o.Key }))

	repeats := distinct(needs.Repeats)
	into(batch, loadRepeatsSQL, scanEvent,
		func(e *ledger.StoredEvent) { loaded.Repeats[store.EventRef{Chain: e.Chain, Key: e.IdempotencyKey}] = e },
		ids(repeats, func(r store.EventRef) uuid.UUID { return r.Chain.UUID }),
		column(repeats, func(r store.EventRef) string { return r.Key }))

	places := distinct(needs.Addenda)
	into(batch, loadAddendaSQL, scanAddendum,
		func(a *ledger.Addendum) {
			place := store.EventAt{Chain: a.Chain, Sequence: a.Sequence}
			loaded.Addenda[place] = append(loaded.Addenda[place], a)
		},
		ids(places, func(p store.EventAt) uuid.UUID { return p.Chain.UUID }),
		column(places, func(p store.EventAt) int64 { return p.Sequence }))
}

// into queues a statement whose rows go to keep. Nothing asked for costs
// nothing.
func into[T any](batch *pgx.Batch, sql string, scan func(pgx.Rows) (T, error), keep func(T), wanted []rawID, more ...any) {
	if len(wanted) == 0 {
		return
	}
	batch.Queue(sql, append([]any{wanted}, more...)...).Query(func(rows pgx.Rows) error {
		return eachRow("load", rows, func(rows pgx.Rows) error {
			record, err := scan(rows)
			if err == nil {
				keep(record)
			}
			return err
		})
	})
}

func ids[T any](records []T, id func(T) uuid.UUID) []rawID {
	return column(records, func(record T) rawID { return rawID(id(record)) })
}

// column is one array parameter: a value of each record.
func column[T, V any](records []T, value func(T) V) []V {
	values := make([]V, len(records))
	for i, record := range records {
		values[i] = value(record)
	}
	return values
}

func distinct[T comparable](all []T) []T {
	seen := make(map[T]bool, len(all))
	unique := make([]T, 0, len(all))
	for _, one := range all {
		if !seen[one] {
			seen[one] = true
			unique = append(unique, one)
		}
	}
	return unique
}
