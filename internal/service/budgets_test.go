package service_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// Of concurrent payments on two replicas, each is decided by what the chain has spent and reserved
// before it.
//
//countersign:race
func TestParallelPaymentsNeverOverspend(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		chain := g.open("budget")
		amounts := rand.New(rand.NewPCG(1, 2))
		var payers sync.WaitGroup
		for i := range 60 {
			dollars := float64(amounts.IntN(6000)) + 0.01
			payers.Go(func() {
				if _, err := replicas[i%2].RecordEvent(context.Background(), g.who.agent, chain, payment(t, dollars, "")); err != nil {
					t.Error(err)
				}
			})
		}
		payers.Wait()
		single, cumulative := ledger.MoneyOf(5000), ledger.MoneyOf(10000)
		var spent, waiting ledger.Money
		var asked []ledger.ApprovalID
		for _, stored := range must[[]*service.EventView](t)(g.Events(t.Context(), g.who.member, chain, 0, 100)) {
			event := must[*ledger.RecordedEvent](t)(ledger.DecodeEvent(stored.Body))
			amount := *event.Action.Facts.Amount
			free := amount.Cmp(single) <= 0 && spent.Add(waiting).Cmp(cumulative) <= 0
			switch {
			case free != (event.Status == ledger.EventAllowed):
				t.Errorf("event %d of %s USD is %s with %s spent and %s waiting", event.Sequence, amount, event.Status, spent, waiting)
			case free:
				spent = spent.Add(amount)
			default:
				waiting = waiting.Add(amount)
				asked = append(asked, event.Approval)
			}
		}
		state := g.chainState(chain)
		if state.Metrics.FinancialExposure.Cmp(spent) != 0 || state.Pending.Exposure.Cmp(waiting) != 0 {
			t.Errorf("the chain has spent %s and holds %s, its events %s and %s", state.Metrics.FinancialExposure, state.Pending.Exposure, spent, waiting)
		}
		if len(asked) == 0 || spent.Cmp(ledger.Money{}) == 0 {
			t.Fatal("payments of one kind alone show nothing")
		}
		g.settleAll(chain, asked, replicas, spent)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// settleAll decides the open approvals concurrently, while more is being spent.
func (g *governed) settleAll(chain ledger.ChainID, asked []ledger.ApprovalID, replicas []*service.Service, spent ledger.Money) {
	g.t.Helper()
	ctx := context.Background()
	var crowd sync.WaitGroup
	var mu sync.Mutex
	for i, id := range asked {
		crowd.Go(func() {
			view, err := replicas[i%2].DecideApproval(ctx, g.who.member, id, &ledger.Verdict{Approve: i%3 != 0})
			if err != nil {
				g.t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if view.Status == ledger.ApprovalApproved {
				spent = spent.Add(*view.Reserved.Facts.Amount)
			}
		})
		crowd.Go(func() {
			recorded, err := replicas[(i+1)%2].RecordEvent(ctx, g.who.agent, chain, payment(g.t, 1, ""))
			if err != nil {
				g.t.Error(err)
			} else if recorded.Event.Status != ledger.EventAwaiting {
				g.t.Errorf("a payment above the cumulative threshold is %s", recorded.Event.Status)
			}
		})
	}
	crowd.Wait()
	state := g.chainState(chain)
	if state.Metrics.FinancialExposure.Cmp(spent) != 0 {
		g.t.Errorf("the chain has spent %s, what was allowed and approved is %s", state.Metrics.FinancialExposure, spent)
	}
	checkMoney(g.t, "what still waits", state.Pending.Exposure, float64(len(asked)))
	completed := g.complete(chain)
	checkMoney(g.t, "what waits in a sealed chain", completed.State.Pending.Exposure, 0)
	if completed.State.Metrics.FinancialExposure.Cmp(spent) != 0 {
		g.t.Errorf("completing changed the exposure to %s", completed.State.Metrics.FinancialExposure)
	}
}
