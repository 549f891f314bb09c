package storetest

import (
	"context"
	"math"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var legacyCases = []testCase{
	{name: "uses of legacy routes add up", run: addsLegacyUses},
	{name: "uses of legacy routes are listed by organization, day and route", run: listsLegacyUses},
	{name: "a counter of legacy use ends before it overflows", run: fullLegacyUse},
	{name: "uses of many replicas are all counted", run: replicasAddLegacyUses, concurrent: true},
}

// legacyDay returns the start of a day, counted from 1970.
func legacyDay(n int) ledger.Time { return ledger.Time(0).Add(time.Duration(n) * 24 * time.Hour) }

func addLegacyUses(t *testing.T, s store.Store, uses map[store.LegacyUseRef]int64) {
	t.Helper()
	if err := s.AddLegacyUses(t.Context(), uses); err != nil {
		t.Fatalf("add legacy uses: %v", err)
	}
}

func (w *world) legacyUses(t *testing.T, query store.LegacyUseQuery) []*store.LegacyUse {
	t.Helper()
	return must[[]*store.LegacyUse](t)(w.open(t).LegacyUses(t.Context(), query))
}

// addsLegacyUses also counts uses without an organization and for one that does not exist.
func addsLegacyUses(t *testing.T, w *world) {
	m := w.join(t)
	ours := store.LegacyUseRef{Org: m.org.ID, Day: legacyDay(1), Route: "/old/{id}"}
	gone := store.LegacyUseRef{Org: ledger.OrgID{UUID: w.receiptID().UUID}, Day: legacyDay(1), Route: "/old/{id}"}
	nobodys := store.LegacyUseRef{Day: legacyDay(1), Route: "/old/{id}"}
	addLegacyUses(t, w, nil)
	addLegacyUses(t, w, map[store.LegacyUseRef]int64{ours: 3, gone: 1, nobodys: 2})
	addLegacyUses(t, w, map[store.LegacyUseRef]int64{ours: 4, nobodys: 5})
	for ref, want := range map[store.LegacyUseRef]int64{ours: 7, gone: 1, nobodys: 7} {
		assertEqual(t, "uses", w.legacyUses(t, store.LegacyUseQuery{Org: &ref.Org, Limit: 9}), []*store.LegacyUse{{LegacyUseRef: ref, Requests: want}})
	}
}

func listsLegacyUses(t *testing.T, w *world) {
	m := w.join(t)
	var all []*store.LegacyUse
	added := make(map[store.LegacyUseRef]int64)
	for _, org := range []ledger.OrgID{{}, m.org.ID} {
		for day := range 3 {
			for _, route := range []string{"/B", "/a/{id}", "/ä"} {
				use := &store.LegacyUse{LegacyUseRef: store.LegacyUseRef{Org: org, Day: legacyDay(day), Route: route}, Requests: int64(len(all) + 1)}
				all = append(all, use)
				added[use.LegacyUseRef] = use.Requests
			}
		}
	}
	addLegacyUses(t, w, added)
	assertEqual(t, "all", w.legacyUses(t, store.LegacyUseQuery{Limit: 100}), all)
	assertEqual(t, "of one organization", w.legacyUses(t, store.LegacyUseQuery{Org: &m.org.ID, Limit: 100}), all[9:])
	assertEqual(t, "of the last day", w.legacyUses(t, store.LegacyUseQuery{Org: &m.org.ID, Since: legacyDay(2), Limit: 100}), all[15:])
	var found []*store.LegacyUse
	query := store.LegacyUseQuery{Limit: 4}
	for {
		page := w.legacyUses(t, query)
		if len(page) == 0 {
			break
		}
		found = append(found, page...)
		query.After = &page[len(page)-1].LegacyUseRef
	}
	assertEqual(t, "page by page", found, all)
}

// fullLegacyUse tests a counter at its limit, which an attacker can write: other counters must
// still be written.
func fullLegacyUse(t *testing.T, w *world) {
	full, other := store.LegacyUseRef{Route: "/full"}, store.LegacyUseRef{Route: "/other"}
	addLegacyUses(t, w, map[store.LegacyUseRef]int64{full: math.MaxInt64})
	addLegacyUses(t, w, map[store.LegacyUseRef]int64{full: 5, other: 6})
	assertEqual(t, "uses", w.legacyUses(t, store.LegacyUseQuery{Limit: 9}),
		[]*store.LegacyUse{{LegacyUseRef: full, Requests: 1 << 53}, {LegacyUseRef: other, Requests: 6}})
}

func replicasAddLegacyUses(t *testing.T, w *world) {
	const workers, each, width = 8, 6, 5
	var want []*store.LegacyUse
	for day := range width {
		want = append(want, &store.LegacyUse{LegacyUseRef: store.LegacyUseRef{Day: legacyDay(day), Route: "/old"}, Requests: workers * each})
	}
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		for range each {
			uses := make(map[store.LegacyUseRef]int64)
			for _, use := range want {
				uses[use.LegacyUseRef] = 1
			}
			if err := s.AddLegacyUses(ctx, uses); err != nil {
				return err
			}
		}
		return nil
	})
	assertEqual(t, "uses", w.legacyUses(t, store.LegacyUseQuery{Limit: 100}), want)
}
