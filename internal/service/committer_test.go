package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// Operations that arrive while a batch is being committed are committed together in the next one.
//
//countersign:race
func TestBatchesUnderLoad(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		inner := db.Open(t)
		b := newBatching(t, inner)
		release := b.hold(t)
		const many = 50
		results := make(chan error, many)
		for i := range many {
			chain := chainNamed(t, fmt.Sprint("chain-", i))
			go func() {
				_, err := b.OpenChain(context.Background(), b.who.agent, chain, fmt.Sprint("key-", i))
				results <- err
			}()
		}
		b.meter.await(many)
		release()
		for range many {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		b.Close()
		if want := []int{1, many}; !slices.Equal(b.meter.batches, want) {
			t.Errorf("committed in batches of %v, want %v", b.meter.batches, want)
		}
		chains := must[[]*service.ChainView](t)(b.Chains(t.Context(), b.who.member, service.ChainFilter{Limit: 200}))
		if len(chains) != many+1 {
			t.Errorf("%d chains are stored, want %d", len(chains), many+1)
		}
	})
}

// With enough operations, as many batches run concurrently as there are committers, and the number
// does not shrink over time.
//
//countersign:race
func TestBatchesSideBySide(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const committers, many = 4, 64
		ring, _ := servicetest.NewRing(t)
		gate, meter := newGate(db.Open(t)), newMeter()
		who := newTenant(t, serve(t, service.Config{Store: gate.Store, Keys: ring}), "acme")
		s := serve(t, service.Config{Store: gate, Keys: ring, Meter: meter, Committers: committers})
		s.IgnoreSlowness()
		open := sync.OnceFunc(func() { close(gate.open) })
		t.Cleanup(open)
		results := make(chan error, 1+committers*many)
		send := func(operations int) {
			chain := chainNamed(t, "side-by-side")
			for range operations {
				go func() {
					_, err := s.OpenChain(context.Background(), who.agent, chain, "")
					results <- err
				}()
			}
			meter.await(operations)
		}
		settle := func(operations int) {
			for range operations {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
		}
		gate.unused.Store(true)
		for range 20 { // in which they quarrel over what there is
			send(committers)
			settle(committers)
		}
		gate.unused.Store(false)
		send(1)
		gate.await(t)
		for range committers - 1 {
			send(many - 1)
			gate.none(t)
			send(1)
			gate.await(t)
		}
		send(many)
		gate.none(t)
		open()
		settle(1 + committers*many)
	})
}

// planned is an operation of a batch, with the error code that it must end with.
type planned struct {
	name string
	run  func(context.Context) error
	want fault.Code
}

// inOneBatch commits operations together, in order.
func (b *batching) inOneBatch(t *testing.T, operations []planned) {
	t.Helper()
	release := b.hold(t)
	results := make([]chan error, len(operations))
	for i, operation := range operations {
		results[i] = make(chan error, 1)
		go func() { results[i] <- operation.run(context.Background()) }()
		b.meter.await(1)
	}
	release()
	for i, operation := range operations {
		checkCode(t, operation.name, <-results[i], operation.want)
	}
}

// An operation that is refused, or that the store rejects, does not affect the others in its
// batch.
//
//countersign:race
func TestOneBadOperationDoesNotSpoilOthers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		inner := db.Open(t)
		b := newBatching(t, poisonable{inner})
		other := serve(t, service.Config{Store: inner, Keys: b.ring})
		stranger := newTenant(t, other, "other").agent
		chain, sealed := b.prepare(t)
		record := func(caller *service.Caller, id ledger.ChainID, name, key string) func(context.Context) error {
			action := step(t, name, key)
			return func(ctx context.Context) error { _, err := b.RecordEvent(ctx, caller, id, action); return err }
		}
		agent := b.who.agent
		b.inOneBatch(t, []planned{
			{"good", record(agent, chain, "one", "k1"), ""},
			{"unknown chain", record(agent, ledger.ChainID{}, "one", ""), fault.CodeNotFound},
			{"another organization's", record(stranger, chain, "one", ""), fault.CodeNotFound},
			{"sealed", record(agent, sealed, "one", ""), fault.CodeChainSealed},
			{"repeated", record(agent, chain, "one", "k1"), ""},
			{"conflict", record(agent, chain, "two", "k1"), fault.CodeIdempotencyConflict},
			{"refused by the store", record(agent, chain, "three", "poison"), fault.CodeInternal},
			{"good as well", record(agent, chain, "two", "k2"), ""},
		})
		events := must[[]*service.EventView](t)(b.Events(t.Context(), b.who.member, chain, 0, 200))
		var keys []string
		for _, event := range events {
			keys = append(keys, event.IdempotencyKey)
		}
		if want := []string{"k1", "k2"}; !slices.Equal(keys, want) {
			t.Errorf("recorded %q, want %q", keys, want)
		}
		checkIntact(t, b.Service, b.who.slug, 1)
	})
}

// prepare creates an open and a sealed chain.
func (b *batching) prepare(t *testing.T) (open, sealed ledger.ChainID) {
	t.Helper()
	first := must[*service.ChainView](t)(b.plain.OpenChain(t.Context(), b.who.agent, chainNamed(t, "open"), ""))
	second := must[*service.ChainView](t)(b.plain.OpenChain(t.Context(), b.who.agent, chainNamed(t, "sealed"), ""))
	must[*service.Completed](t)(b.plain.CompleteChain(t.Context(), b.who.agent, second.ID, &ledger.Completion{}))
	return first.ID, second.ID
}

// A chain that is completed while its last event is still queued is sealed with that event,
// whether or not this process has seen the earlier events.
//
//countersign:race
func TestRecordAndCompleteInOneBatch(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for _, earlier := range []int{0, 2} {
			t.Run(fmt.Sprint(earlier, " events before"), func(t *testing.T) {
				checkLateEvent(t, newBatching(t, db.Open(t)), earlier)
			})
		}
	})
}

func checkLateEvent(t *testing.T, b *batching, earlier int) {
	t.Helper()
	chain, _ := b.prepare(t)
	for range earlier {
		must[*service.Recorded](t)(b.plain.RecordEvent(t.Context(), b.who.agent, chain, step(t, "one", "")))
	}
	first, late := step(t, "one", ""), step(t, "late", "")
	var completed *service.Completed
	b.inOneBatch(t, []planned{
		{"record", func(ctx context.Context) error { _, err := b.RecordEvent(ctx, b.who.agent, chain, first); return err }, ""},
		{"complete", func(ctx context.Context) (err error) {
			completed, err = b.CompleteChain(ctx, b.who.agent, chain, &ledger.Completion{})
			return err
		}, ""},
		{"complete again", func(ctx context.Context) error {
			again, err := b.CompleteChain(ctx, b.who.agent, chain, &ledger.Completion{})
			if err == nil && again.Receipt == nil {
				err = store.ErrNotFound
			}
			return err
		}, ""},
		{"too late", func(ctx context.Context) error { _, err := b.RecordEvent(ctx, b.who.agent, chain, late); return err }, fault.CodeChainSealed},
		{"failed instead", func(ctx context.Context) error {
			_, err := b.CompleteChain(ctx, b.who.agent, chain, &ledger.Completion{Failed: true})
			return err
		}, fault.CodeChainSealed},
	})
	if completed == nil {
		t.Fatal("the chain was not completed")
	}
	for _, part := range []string{fmt.Sprintf(`"total_actions":%d`, earlier+1), `"action_name":"one"`, fmt.Sprintf(`"count":%d`, earlier+1)} {
		if !strings.Contains(string(completed.Receipt), part) {
			t.Errorf("the receipt lacks %s:\n%s", part, completed.Receipt)
		}
	}
	checkIntact(t, b.Service, b.who.slug, 2)
}

// Closing the service commits the queued operations and refuses later ones.
//
//countersign:race
func TestClosedServiceDrainsAndRefuses(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		b := newBatching(t, db.Open(t))
		release := b.hold(t)
		result := make(chan error, 1)
		queued := chainNamed(t, "queued")
		go func() {
			_, err := b.OpenChain(context.Background(), b.who.agent, queued, "queued")
			result <- err
		}()
		b.meter.await(1)
		closed := make(chan struct{})
		go func() { b.Close(); close(closed) }()
		release()
		<-closed
		if err := <-result; err != nil {
			t.Errorf("what was queued before is lost: %v", err)
		}
		_, err := b.OpenChain(t.Context(), b.who.agent, chainNamed(t, "late"), "")
		checkCode(t, "after closing", err, fault.CodeUnavailable)
	})
}

// A caller that stops waiting gets the error that the outcome is unknown, and its repeated request
// has one effect.
//
//countersign:race
func TestCallerThatStopsWaiting(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		b := newBatching(t, db.Open(t))
		chain, _ := b.prepare(t)
		release := b.hold(t)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		action := step(t, "one", "once")
		go func() {
			_, err := b.RecordEvent(ctx, b.who.agent, chain, action)
			result <- err
		}()
		b.meter.await(1)
		cancel()
		checkCode(t, "stopped waiting", <-result, fault.CodeOutcomeUnknown)
		release()
		recorded := must[*service.Recorded](t)(b.RecordEvent(t.Context(), b.who.agent, chain, step(t, "one", "once")))
		if recorded.Event.Sequence != 1 {
			t.Errorf("the repeated action is event %d", recorded.Event.Sequence)
		}
		events := must[[]*service.EventView](t)(b.Events(t.Context(), b.who.member, chain, 0, 10))
		if len(events) != 1 {
			t.Errorf("%d events are stored, want one", len(events))
		}
		checkIntact(t, b.Service, b.who.slug, 1)
	})
}

// Callers that give up leave their operations queued. While the store stalls, these must not fill
// the memory.
//
//countersign:race
func TestTheQueueIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	b := newBatching(t, testdb.SQLite(t).Open(t))
	chain, _ := b.prepare(t)
	release := b.hold(t)
	gaveUp, giveUp := context.WithCancel(t.Context())
	giveUp()
	large := step(t, "large", "")
	large.Payload = []byte(`{"text":"` + strings.Repeat("x", 1<<20-64) + `"}`)
	const bound = 64
	refusedAfter := 0
	for i := range 2 * bound {
		if _, err := b.RecordEvent(gaveUp, b.who.agent, chain, large); codeOf(err) == fault.CodeUnavailable {
			refusedAfter = i
			break
		}
	}
	release()
	if refusedAfter == 0 || refusedAfter > bound+1 {
		t.Errorf("refused after %d operations of 1 MiB, want about %d", refusedAfter, bound)
	}
}
