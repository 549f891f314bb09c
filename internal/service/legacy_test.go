package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// unwillingToCount fails to add uses of legacy routes once.
type unwillingToCount struct {
	store.Store
	failsOnce
}

func (u *unwillingToCount) AddLegacyUses(ctx context.Context, uses map[store.LegacyUseRef]int64) error {
	if err := u.write(); err != nil {
		return err
	}
	return u.Store.AddLegacyUses(ctx, uses)
}

const legacyRoute = "/public/approvals/{approval_id}"

// The use of a legacy route costs no write of its own. It is counted by day for the organization
// of the approval, or for none if there is no such approval, without the approval's id. A failed
// flush loses nothing, and replicas add to the same counters.
//
//countersign:race
func TestLegacyUseIsAddedUp(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		u := &unwillingToCount{Store: g.another()}
		s, other := g.over(u), g.replica()
		asked := g.ask(g.open("n"))
		verify := func(s *service.Service, id ledger.ApprovalID) {
			_, _ = s.VerifyApprovalPublicly(t.Context(), legacyRoute, id)
		}
		today := ledger.TimeOf(g.clock.Now().UTC().Truncate(24 * time.Hour))
		for range 3 {
			verify(s, asked)
		}
		verify(s, ledger.ApprovalID{UUID: uuid.New()})
		verify(other, asked)
		if u.writes.Load() != 0 {
			t.Error("a use was written before it was flushed")
		}
		if err := s.FlushLegacyUse(t.Context()); err == nil {
			t.Error("the failure was not told")
		}
		g.clock.Advance(24 * time.Hour)
		verify(s, asked)
		done(t, s.FlushLegacyUse(t.Context()))
		done(t, other.FlushLegacyUse(t.Context()))
		if done(t, s.FlushLegacyUse(t.Context())); u.writes.Load() != 2 {
			t.Errorf("%d writes, want 2", u.writes.Load())
		}
		use := func(org ledger.OrgID, day ledger.Time, requests int64) *store.LegacyUse {
			return &store.LegacyUse{LegacyUseRef: store.LegacyUseRef{Org: org, Day: day, Route: legacyRoute}, Requests: requests}
		}
		const day = ledger.Time(86_400_000)
		ours := []*store.LegacyUse{use(g.who.admin.Org, today, 4), use(g.who.admin.Org, today+day, 1)}
		rival := newTenant(t, g.Service, "rival")
		list := must[[]*store.LegacyUse](t)
		for _, c := range []struct {
			name      string
			got, want []*store.LegacyUse
		}{
			{"all", list(g.Operator().LegacyUse(t.Context(), "", 90)), append([]*store.LegacyUse{use(ledger.OrgID{}, today, 1)}, ours...)},
			{"the organization's", list(g.Operator().LegacyUse(t.Context(), "acme", 90)), ours},
			{"today's", list(g.Operator().LegacyUse(t.Context(), "acme", 1)), ours[1:]},
			{"an admin's", list(g.LegacyUse(t.Context(), g.who.admin, 2)), ours},
			{"another admin's", list(g.LegacyUse(t.Context(), rival.admin, 2)), nil},
		} {
			if diff := cmp.Diff(c.want, c.got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
		}
		_, err := g.LegacyUse(t.Context(), g.reviewer("member"), 2)
		checkCode(t, "a member", err, fault.CodeForbidden)
		_, err = g.Operator().LegacyUse(t.Context(), "nobody", 2)
		checkCode(t, "an unknown organization", err, fault.CodeNotFound)
	})
}

// However many organizations are requested between two flushes, the memory is bounded and every
// request is counted.
func TestLegacyUseIsBounded(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	g := govern(t, db)
	const requests = 12_000
	for range requests {
		g.NoteLegacyUse(legacyRoute, ledger.OrgID{UUID: uuid.New()})
	}
	done(t, g.FlushLegacyUse(t.Context()))
	uses := must[[]*store.LegacyUse](t)(g.Operator().LegacyUse(t.Context(), "", 1))
	total := int64(0)
	for _, use := range uses {
		total += use.Requests
	}
	if len(uses) != 10_001 || total != requests || uses[0].Org != (ledger.OrgID{}) || uses[0].Requests != 2_000 {
		t.Errorf("%d counters with %d requests, the first %+v", len(uses), total, uses[0])
	}
}
