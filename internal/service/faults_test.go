package service_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// breakage is how a write fails.
type breakage string

const (
	lost breakage = "lost" // nothing is written, and the store says so
	kept breakage = "kept" // it is written, and the store cannot tell
)

// faulty makes selected writes fail.
type faulty struct {
	store.Store
	how    breakage
	breaks func(write int64) bool
	writes atomic.Int64
}

var errAbandoned = errors.New("abandoned")

func (f *faulty) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	switch {
	case !f.breaks(f.writes.Add(1)):
		return f.Store.Transact(ctx, needs, plan)
	case f.how == kept:
		if err := f.Store.Transact(ctx, needs, plan); err != nil {
			return err
		}
		return fmt.Errorf("the connection is gone: %w", store.ErrOutcomeUnknown)
	}
	err := f.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		if _, err := plan(loaded); err != nil {
			return nil, err
		}
		return nil, errAbandoned
	})
	if errors.Is(err, errAbandoned) {
		return fmt.Errorf("the disk is busy: %w", store.ErrUnavailable)
	}
	return err
}

// patient is a client that repeats a request as long as the error says to.
func patient(t *testing.T, what string, attempt func() error) {
	t.Helper()
	for range 5 {
		err := attempt()
		switch codeOf(err) {
		case "":
			return
		case fault.CodeUnavailable, fault.CodeOutcomeUnknown:
			continue
		}
		t.Fatalf("%s: %v", what, err)
	}
	t.Fatalf("%s: never answered", what)
}

// scenario is a client's working day: each request is repeated until it is answered.
func scenario(t *testing.T, s *service.Service, who *tenant) {
	t.Helper()
	ctx := t.Context()
	for _, name := range []string{"first", "second"} {
		var chain ledger.ChainID
		patient(t, "open", func() error {
			view, err := s.OpenChain(ctx, who.agent, chainNamed(t, name), "open-"+name)
			if err == nil {
				chain = view.ID
			}
			return err
		})
		var event ledger.EventID
		for i := range 2 {
			patient(t, "record", func() error {
				recorded, err := s.RecordEvent(ctx, who.agent, chain, step(t, fmt.Sprint("step-", i), fmt.Sprint("key-", i)))
				if err == nil {
					event = recorded.Event.ID
				}
				return err
			})
		}
		patient(t, "report", func() error {
			_, err := s.ReportOutcome(ctx, who.agent, chain, event, &ledger.Entry{Result: ledger.Succeeded, Detail: "done"})
			return err
		})
		patient(t, "complete", func() error {
			_, err := s.CompleteChain(ctx, who.agent, chain, &ledger.Completion{})
			return err
		})
	}
}

// checkOneEffectEach expects exactly the effects that the scenario requested.
func checkOneEffectEach(t *testing.T, s *service.Service, who *tenant) {
	t.Helper()
	ctx := t.Context()
	chains := must[[]*service.ChainView](t)(s.Chains(ctx, who.member, service.ChainFilter{Limit: 100}))
	if len(chains) != 2 {
		t.Errorf("%d chains, want 2", len(chains))
	}
	for _, chain := range chains {
		events := must[[]*service.EventView](t)(s.Events(ctx, who.member, chain.ID, 0, 100))
		if len(events) != 2 || events[0].IdempotencyKey != "key-0" || events[1].IdempotencyKey != "key-1" {
			t.Errorf("chain %s has %d events, want one for each key", chain.Name, len(events))
		}
		if len(events) == 2 && (events[0].Outcome != nil || events[1].Outcome == nil || chain.State.Entries != 3) {
			t.Errorf("chain %s has %d entries, want two events and one outcome", chain.Name, chain.State.Entries)
		}
	}
	receipts := must[[]*ledger.StoredReceipt](t)(s.Receipts(ctx, who.member, 0, 100))
	if len(receipts) != 2 || receipts[0].Sequence != 2 || receipts[1].Sequence != 1 {
		t.Errorf("%d receipts, want 2, numbered without gap", len(receipts))
	}
	checkIntact(t, s, who.slug, 2)
}

// Whichever write fails, before or after it is stored, a client that repeats its requests gets
// exactly one effect of each.
//
//countersign:race
func TestEveryWriteBrokenTwoWays(t *testing.T) {
	testdb.OnEach(t, func(whole *testing.T, db *testdb.Database) {
		inner := db.Open(whole)
		ring, _ := servicetest.NewRing(whole)
		plain := serve(whole, service.Config{Store: inner, Keys: ring})
		const writes = 10
		for _, how := range []breakage{lost, kept} {
			breaks := map[string]func(int64) bool{"every other write": func(n int64) bool { return n%2 == 1 }}
			for n := range int64(writes) {
				breaks[fmt.Sprintf("write %d", n+1)] = func(write int64) bool { return write == n+1 }
			}
			for name, broken := range breaks {
				whole.Run(fmt.Sprintf("%s %s", name, how), func(t *testing.T) {
					who := newTenant(t, plain, "org-"+randomName())
					f := &faulty{Store: inner, how: how, breaks: broken}
					// Until the whole test ends: a service that closes cancels reads, and on a slow machine
					// the driver can fail the next request on such a connection.
					s := serve(whole, service.Config{Store: f, Keys: ring})
					scenario(t, s, who)
					if f.writes.Load() <= writes {
						t.Fatalf("%d writes were made, so none was broken", f.writes.Load())
					}
					checkOneEffectEach(t, plain, who)
				})
			}
		}
	})
}

// If another replica seals a chain between two attempts, the answer is the stored receipt, not one
// that was only planned.
//
//countersign:race
func TestCompletionRetriedAfterAnotherReplica(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		other := serve(t, service.Config{Store: db.Open(t), Keys: ring})
		who := newTenant(t, other, "acme")
		chain := must[*service.ChainView](t)(other.OpenChain(t.Context(), who.agent, chainNamed(t, "one"), ""))
		rival := &rivalled{Store: db.Open(t), rival: func() error {
			_, err := other.CompleteChain(context.Background(), who.agent, chain.ID, &ledger.Completion{})
			return err
		}}
		s := serve(t, service.Config{Store: rival, Keys: ring})
		completed := must[*service.Completed](t)(s.CompleteChain(t.Context(), who.agent, chain.ID, &ledger.Completion{}))
		stored := must[*ledger.StoredReceipt](t)(other.ReceiptOfChain(t.Context(), who.agent, chain.ID))
		if string(completed.Receipt) != string(stored.Body) {
			t.Errorf("answered with a receipt that is not stored:\n%s\nstored:\n%s", completed.Receipt, stored.Body)
		}
		checkIntact(t, s, "acme", 1)
	})
}

// rivalled lets a rival do the same between the plan and a refused commit.
type rivalled struct {
	store.Store
	rival func() error
	done  atomic.Bool
}

func (r *rivalled) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if r.done.Swap(true) {
		return r.Store.Transact(ctx, needs, plan)
	}
	err := r.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		if _, err := plan(loaded); err != nil {
			return nil, err
		}
		return nil, errAbandoned
	})
	if !errors.Is(err, errAbandoned) {
		return err
	}
	return errors.Join(store.ErrExists, r.rival())
}

// preceded refuses the first transaction that opens several chains, as if another replica had
// stored the same row first.
type preceded struct {
	store.Store
	refused atomic.Bool
}

func (p *preceded) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	return p.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes, err := plan(loaded)
		if err == nil && len(changes.NewChains) > 1 && !p.refused.Swap(true) {
			return nil, store.ErrExists
		}
		return changes, err
	})
}

// A batch that conflicts with a row that another replica has stored meanwhile is committed as a
// whole at the second attempt: such a conflict does not make every caller wait for a transaction
// of its own.
//
//countersign:race
func TestBatchesThatMeetStayWhole(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		gate, count := newGate(&preceded{Store: db.Open(t)}), newMeter()
		gate.unused.Store(true)
		s := serve(t, service.Config{Store: gate, Keys: ring, Meter: count})
		s.IgnoreSlowness()
		who := newTenant(t, s, "acme")
		gate.unused.Store(false)
		opened := make(chan error, 20)
		open := func(name string) {
			request := chainNamed(t, name)
			go func() {
				_, err := s.OpenChain(context.Background(), who.agent, request, name)
				opened <- err
			}()
		}
		open("first")
		gate.await(t)
		for i := range 19 {
			open(fmt.Sprint("chain ", i))
		}
		for depth := 0; depth < 19; {
			depth = <-count.queued
		}
		count.mu.Lock()
		count.batches = nil
		count.mu.Unlock()
		gate.unused.Store(true)
		close(gate.open)
		for range 20 {
			if err := <-opened; err != nil {
				t.Error(err)
			}
		}
		count.mu.Lock()
		defer count.mu.Unlock()
		if len(count.batches) > 2 {
			t.Errorf("20 operations took %d transactions: %v", len(count.batches), count.batches)
		}
	})
}
