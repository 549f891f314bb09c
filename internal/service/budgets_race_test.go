package service_test

import (
	"context"
	"sync/atomic"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// overtaken lets another batch commit once, after this one has loaded its rows.
type overtaken struct {
	store.Store
	by func() // set before the store is used
	// done says that it has happened.
	done atomic.Bool
}

func (o *overtaken) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	return o.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		if len(needs.Counters) > 0 && !o.done.Swap(true) {
			o.by()
		}
		return plan(loaded)
	})
}

// Two batches of one server count the first payments of a day concurrently. The one that knows the
// other's counter from memory, but has not loaded it, is retried. That is not mistaken for
// tampering.
//
//countersign:race
func TestFirstPaymentsOfADayAtOnce(t *testing.T) {
	db := testdb.Postgres(t)
	r := remember(t, db)
	r.settings(budgets(`{"name":"all","scope":"organization","window":"day","limit_usd":100,"decision":"deny"}`))
	one, other := r.open("one"), r.open("other")
	r.record(one, step(t, "look", "")) // the service knows the budgets from here on
	slow := &overtaken{Store: db.Open(t)}
	slow.by = func() { r.record(other, pay(t, "a", 60, "")) }
	beside := serve(t, service.Config{Store: slow, Keys: r.ring, Secrets: r.ring, Clock: r.clock.Now, Chains: r.chains})
	must[*service.Recorded](t)(beside.RecordEvent(t.Context(), r.who.agent, one, step(t, "look", "")))
	recorded := must[*service.Recorded](t)(beside.RecordEvent(t.Context(), r.who.agent, one, pay(t, "a", 50, "")))
	if !slow.done.Load() {
		t.Fatal("no batch was overtaken")
	}
	if d := recorded.Event.Decision; d.Outcome != ledger.Deny || d.PolicyName != "budget:all" {
		t.Errorf("the second payment is %s by %q: %s", d.Outcome, d.PolicyName, d.Reason)
	}
	for _, s := range []*service.Service{r.Service, beside} {
		s.WaitForFindings()
		s.ForgetFindings()
		if open := must[int](t)(s.OpenFindings(t.Context())); open != 0 {
			t.Errorf("%d findings are open", open)
		}
	}
}
