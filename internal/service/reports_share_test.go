package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// timed records how long the plans of transactions take.
type timed struct {
	store.Store
	mu    sync.Mutex
	plans []time.Duration
	// failAt is the number of the transaction that the store refuses, 0 for none. Those
	// who set it have no request under way.
	failAt int
}

func (s *timed) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if s.failAt > 0 {
		if s.failAt--; s.failAt == 0 {
			return store.ErrUnavailable
		}
	}
	return s.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		began := time.Now()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.plans = append(s.plans, time.Since(began))
		}()
		return plan(loaded)
	})
}

// slowRules returns rules that read the chain and are as slow as rules inside a transaction may
// be.
func slowRules() *service.PolicyDocument {
	var rules []string
	for i := range 10 {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","when":"[1,2,3,4,5,6,7,8].exists(i, [1,2,3,4,5,6,7,8].exists(j, i*j+chain.tokens > 100000000+%d))","decision":"allow_with_flag","reason":"r"}`, i, i))
	}
	return &service.PolicyDocument{Text: []byte(`{"rules":[` + strings.Join(rules, ",") + `]}`)}
}

func reportOf(t *testing.T, events int) []*ledger.Action {
	t.Helper()
	var list []string
	for i := range events {
		list = append(list, fmt.Sprintf(`{"agent_name":"agent %d","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":1},"decision_source":"offline_stub","idempotency_key":"%d"}`, i%7, i))
	}
	return request(t, ledger.ParseReported, `{"events":[`+strings.Join(list, ",")+`]}`)
}

// A report whose events take long to decide is recorded in several transactions, so that nobody
// waits for all of them. Each event has its result, in order, counts once in the budgets, and is a
// repeat when the report is sent again.
func TestLongReportsShareTheirTransactions(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const events = 200
		ring, _ := servicetest.NewRing(t)
		watched := &timed{Store: db.Open(t)}
		g := &governed{t: t, db: db, store: watched, ring: ring, clock: newClock()}
		g.Service = g.over(watched)
		g.who = newTenant(t, g.Service, "acme")
		g.settings(budgets(`{"name":"agents","scope":"agent","window":"day","limit_usd":100,"decision":"deny"}`))
		must[*service.PolicyView](t)(g.PutPolicy(t.Context(), g.who.admin, slowRules()))
		chain := g.open("offline")
		watched.plans = nil
		for sent := range 2 {
			report := must[*service.Report](t)(g.ReportEvents(t.Context(), g.who.agent, chain, reportOf(t, events)))
			if len(report.Results) != events {
				t.Fatalf("sent %d times: %d results", sent+1, len(report.Results))
			}
			for i, result := range report.Results {
				if result.Err != nil || result.Event.Sequence != int64(i+1) || result.Event.Action.IdempotencyKey != fmt.Sprint(i) {
					t.Fatalf("sent %d times: the result of event %d is %+v %v", sent+1, i, result.Recorded, result.Err)
				}
			}
		}
		g.checkUse("agents/agent 0", 29, 0)
		// Far below what all of it takes, and above what one event may on a busy machine.
		if longest, all := slices.Max(watched.plans), sum(watched.plans); len(watched.plans) < 5 || longest > all/2 {
			t.Errorf("%d transactions, of which the longest took %v of %v", len(watched.plans), longest, all)
		}
	})
}

// If the store fails in the middle of a report, the error does not say that nothing was stored,
// and what the client sends again is recorded once.
func TestReportsEndInTheMiddle(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		failing := &timed{Store: db.Open(t)}
		g := &governed{t: t, db: db, store: failing, ring: ring, clock: newClock()}
		g.Service = g.over(failing)
		g.who = newTenant(t, g.Service, "acme")
		must[*service.PolicyView](t)(g.PutPolicy(t.Context(), g.who.admin, slowRules()))
		chain := g.open("offline")
		g.record(chain, step(t, "look", "")) // the set is known from here on
		failing.failAt = 1
		_, err := g.ReportEvents(t.Context(), g.who.agent, chain, reportOf(t, 200))
		checkCode(t, "a report of which nothing is stored", err, fault.CodeUnavailable)
		failing.failAt = 3
		_, err = g.ReportEvents(t.Context(), g.who.agent, chain, reportOf(t, 200))
		checkCode(t, "a report of which a part is stored", err, fault.CodeOutcomeUnknown)
		report := must[*service.Report](t)(g.ReportEvents(t.Context(), g.who.agent, chain, reportOf(t, 200)))
		for i, result := range report.Results {
			if result.Err != nil || result.Event.Sequence != int64(i+2) {
				t.Fatalf("sent again, the result of event %d is %+v %v", i, result.Recorded, result.Err)
			}
		}
	})
}

func sum(spans []time.Duration) (all time.Duration) {
	for _, span := range spans {
		all += span
	}
	return all
}
