package service_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
)

// gate is a store whose transactions wait until it is opened, so that a test decides what is in
// one batch.
type gate struct {
	store.Store
	arrived chan struct{} // one for each transaction that waits
	open    chan struct{}
	unused  atomic.Bool // everything passes
}

func newGate(inner store.Store) *gate {
	return &gate{Store: inner, arrived: make(chan struct{}, 1000), open: make(chan struct{})}
}

func (g *gate) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if !g.unused.Load() {
		g.arrived <- struct{}{}
		<-g.open
	}
	return g.Store.Transact(ctx, needs, plan)
}

// await waits until another transaction has reached the gate.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(20 * time.Second):
		t.Fatal("no transaction came to the gate")
	}
}

// none fails if a transaction reaches the gate within a short time.
func (g *gate) none(t *testing.T) {
	t.Helper()
	for range 1000 {
		runtime.Gosched()
		select {
		case <-g.arrived:
			t.Fatal("a transaction came to the gate that was not due")
		default:
		}
	}
}

var errPoisoned = errors.New("the store refuses this event")

// poisonable refuses every transaction that contains an event with the idempotency key "poison",
// like a constraint would.
type poisonable struct{ store.Store }

func (p poisonable) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	return p.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes, err := plan(loaded)
		if err != nil {
			return nil, err
		}
		for _, event := range changes.NewEvents {
			if event.IdempotencyKey == "poison" {
				return nil, errPoisoned
			}
		}
		return changes, nil
	})
}

// meter reports to a test what is queued and what was committed together.
type meter struct {
	queued  chan int
	mu      sync.Mutex
	batches []int
	sealed  int
}

func newMeter() *meter { return &meter{queued: make(chan int, 1000)} }

var _ service.Meter = (*meter)(nil)

func (m *meter) Committed(operations int, _ time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.batches = append(m.batches, operations)
}

func (m *meter) Queued(operations int) { m.queued <- operations }

func (m *meter) Sealed(receipts int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sealed += receipts
}

func (*meter) Decided(string)                    {}
func (*meter) ApprovalMoved(string)              {}
func (*meter) OverBudget(string, string, string) {}

// await waits until n more operations have been queued.
func (m *meter) await(n int) {
	for range n {
		<-m.queued
	}
}

// batching is a service whose first transaction waits at a gate, so that everything queued behind
// it becomes one batch.
type batching struct {
	ring *keyring.Ring
	*service.Service
	plain *service.Service // the same past the gate, for what a test prepares
	gate  *gate
	meter *meter
	who   *tenant
}

func newBatching(t *testing.T, inner store.Store) *batching {
	t.Helper()
	ring, _ := servicetest.NewRing(t)
	plain := serve(t, service.Config{Store: inner, Keys: ring})
	b := &batching{plain: plain, ring: ring, gate: newGate(inner), meter: newMeter(), who: newTenant(t, plain, "acme-"+randomName())}
	b.Service = serve(t, service.Config{Store: b.gate, Keys: ring, Meter: b.meter})
	b.IgnoreSlowness()
	return b
}

// hold occupies the committer with an operation that waits at the gate.
func (b *batching) hold(t *testing.T) (release func()) {
	t.Helper()
	done := make(chan error, 1)
	chain := chainNamed(t, "holding")
	go func() {
		_, err := b.OpenChain(context.Background(), b.who.admin, chain, "")
		done <- err
	}()
	b.meter.await(1)
	<-b.gate.arrived
	var once sync.Once
	open := func() { once.Do(func() { close(b.gate.open) }) }
	t.Cleanup(open)
	return func() {
		open()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
