package postgres

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	addLegacyUsesSQL = `insert into legacy_uses (org_id, day, route, requests) select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[])
		on conflict (org_id, day, route) do update
		set requests = legacy_uses.requests + least(excluded.requests, 9007199254740992 - legacy_uses.requests)`
	selectLegacyUsesSQL = `select org_id, day, route, requests from legacy_uses where day >= $1 and ($2::uuid is null or org_id = $2)
		and ($3::uuid is null or (org_id, day, route) > ($3, $4, $5)) order by org_id, day, route limit $6`
)

func compareLegacyUses(a, b store.LegacyUseRef) int {
	return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.Day, b.Day), cmp.Compare(a.Route, b.Route))
}

// AddLegacyUses implements store.LegacyUses. Rows are written in one order: in different
// orders two replicas would wait for each other.
func (s *Store) AddLegacyUses(ctx context.Context, uses map[store.LegacyUseRef]int64) error {
	if len(uses) == 0 {
		return nil
	}
	sorted := slices.SortedFunc(maps.Keys(uses), compareLegacyUses)
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(addLegacyUsesSQL,
			ids(sorted, func(u store.LegacyUseRef) uuid.UUID { return u.Org.UUID }),
			ints(sorted, func(u store.LegacyUseRef) int64 { return int64(u.Day) }),
			texts(sorted, func(u store.LegacyUseRef) string { return u.Route }),
			ints(sorted, func(u store.LegacyUseRef) int64 { return uses[u] }))
		x.send(patientCommitSQL)
		return explain("add legacy uses", x.run(ctx, conn))
	})
}

// LegacyUses implements store.LegacyUses.
func (s *Store) LegacyUses(ctx context.Context, query store.LegacyUseQuery) ([]*store.LegacyUse, error) {
	var org, afterOrg any
	after := store.LegacyUseRef{}
	if query.Org != nil {
		org = bytesOf(query.Org.UUID)
	}
	if query.After != nil {
		after, afterOrg = *query.After, bytesOf(query.After.Org.UUID)
	}
	return list(ctx, s, "legacy uses", selectLegacyUsesSQL, []any{int64(query.Since), org, afterOrg, int64(after.Day), after.Route, query.Limit},
		func(r *row) *store.LegacyUse {
			return &store.LegacyUse{LegacyUseRef: store.LegacyUseRef{Org: ledger.OrgID{UUID: r.id()}, Day: r.time(), Route: r.text()}, Requests: r.int()}
		})
}
