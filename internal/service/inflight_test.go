package service_test

import (
	"context"
	"runtime"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// inside reports to a test when a transaction has read what it decides on, and continues when the
// test says so.
type inside struct {
	store.Store
	arrived chan struct{} // before a transaction begins
	decided chan struct{} // by a transaction that has decided and not committed
	resume  chan struct{}
}

func newInside(s store.Store) *inside {
	return &inside{s, make(chan struct{}, 10), make(chan struct{}), make(chan struct{})}
}

func (i *inside) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	i.arrived <- struct{}{}
	return i.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes, err := plan(loaded)
		if changes != nil && len(changes.NewEvents) > 0 {
			i.decided <- struct{}{}
			<-i.resume
		}
		return changes, err
	})
}

// Activating the kill switch waits for an action that is being recorded: if it returned earlier,
// that action would be allowed after it.
//
//countersign:race
func TestActivatingWaitsForActionsInFlight(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("in flight")
		slow, quick := newInside(g.another()), newInside(g.another())
		writer, switcher := g.over(slow), g.over(quick)
		recorded, activated := make(chan *service.Recorded, 1), make(chan struct{})
		go func() {
			r, err := writer.RecordEvent(context.Background(), g.who.agent, chain, step(t, "look", ""))
			if err != nil {
				t.Error(err)
			}
			recorded <- r
		}()
		<-slow.decided
		go func() {
			defer close(activated)
			if _, err := switcher.ActivateKillSwitch(context.Background(), g.who.admin, "an incident"); err != nil {
				t.Error(err)
			}
		}()
		<-quick.arrived
		for range 1000 { // as long as it likes to be wrong
			runtime.Gosched()
			select {
			case <-activated:
				t.Fatal("activating has not waited for an action that was being decided")
			default:
			}
		}
		close(slow.resume)
		if r := <-recorded; r == nil || r.Event.Status != ledger.EventAllowed {
			t.Error("the action that came first is not allowed")
		}
		<-activated
		checkStopped(t, "the next action", g.record(chain, step(t, "look", "")).Event)
	})
}
