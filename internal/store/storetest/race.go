package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

var raceCases = []testCase{
	{name: "many writers on one chain", run: manyWritersOnOneChain, concurrent: true},
	{name: "many completions in one organization", run: manyCompletions, concurrent: true},
	{name: "one chain, completed concurrently", run: oneCompletion, concurrent: true},
	{name: "chains named in crossing orders", run: crossingOrders, concurrent: true},
	{name: "one opening, repeated concurrently", run: oneOpening, concurrent: true},
	{name: "openings under crossing keys", run: crossingOpenings, concurrent: true},
	{name: "one event, repeated concurrently", run: oneEvent, concurrent: true},
	{name: "epochs and commits from elsewhere", run: epochsAndCommits, concurrent: true},
}

// together runs workers concurrently, distributed over several handles.
func (w *world) together(t *testing.T, workers int, work func(ctx context.Context, s store.Store, worker int) error) {
	t.Helper()
	handles := []store.Store{w.Store, w.open(t), w.open(t)}
	group, ctx := errgroup.WithContext(t.Context())
	for worker := range workers {
		group.Go(func() error { return work(ctx, handles[worker%len(handles)], worker) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// retry repeats a call as long as its error says that it may be repeated.
func retry(call func() error) error {
	const patience = 100
	var err error
	for range patience {
		if err = call(); !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrExists) {
			return err
		}
	}
	return fmt.Errorf("after %d attempts: %w", patience, err)
}

func manyWritersOnOneChain(t *testing.T, w *world) {
	const workers, each = 12, 15
	m := w.join(t)
	id := w.openChain(t, m)
	var inside atomic.Int64
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		for range each {
			err := s.Transact(ctx, &store.Needs{Chains: []ledger.ChainID{id}}, func(loaded *store.Loaded) (*store.Changes, error) {
				defer inside.Add(-1)
				if inside.Add(1) > 1 {
					return nil, errors.New("two transactions hold one chain")
				}
				runtime.Gosched()
				o, err := w.decode(loaded.Chains[id])
				if err != nil {
					return nil, err
				}
				changes := new(store.Changes)
				w.enter(o, newAction(""), changes)
				changes.States = []*store.ChainRecord{w.moved(o)}
				return changes, nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	events := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 10_000))
	if len(events) != workers*each {
		t.Fatalf("%d events, want %d", len(events), workers*each)
	}
	for i, event := range events {
		if event.Sequence != int64(i+1) {
			t.Fatalf("event %d has sequence %d", i+1, event.Sequence)
		}
	}
}

func manyCompletions(t *testing.T, w *world) {
	const workers, each = 8, 8
	m := w.join(t)
	chains := w.openChains(t, m, workers*each)
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for _, id := range chains[worker*each : (worker+1)*each] {
			if err := w.act(ctx, s, id, newAction("")); err != nil {
				return err
			}
			if err := w.seal(ctx, s, m, id); err != nil {
				return err
			}
		}
		return nil
	})
	head := must[*ledger.Head](t)(w.Head(t.Context(), m.org.ID))
	if head.Count != workers*each {
		t.Errorf("the head counts %d receipts, want %d", head.Count, workers*each)
	}
	sealed := make(map[ledger.ChainID]bool)
	for _, receipt := range must[[]*ledger.StoredReceipt](t)(w.Receipts(t.Context(), m.org.ID, 0, 1000)) {
		sealed[receipt.Chain] = true
	}
	if len(sealed) != workers*each {
		t.Errorf("%d chains have a receipt, want %d", len(sealed), workers*each)
	}
}

func oneCompletion(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	var won atomic.Int64
	w.together(t, 8, func(ctx context.Context, s store.Store, _ int) error {
		err := w.seal(ctx, s, m, id)
		var refusal *fault.Error
		if errors.As(err, &refusal) && refusal.Code == fault.CodeChainSealed {
			return nil
		}
		won.Add(1)
		return err
	})
	if won.Load() != 1 {
		t.Errorf("%d completions succeeded, want 1", won.Load())
	}
}

// crossingOrders deadlocks in a store that takes locks in the order of its arguments. No call is
// retried, because none has a reason to fail.
func crossingOrders(t *testing.T, w *world) {
	const workers, each, width = 9, 10, 6
	members := []*member{w.join(t), w.join(t)}
	var chains []ledger.ChainID
	for _, m := range members {
		chains = append(chains, w.openChains(t, m, width)...)
	}
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		order := rand.New(rand.NewPCG(1, uint64(worker)))
		for range each {
			needs := &store.Needs{}
			for _, i := range order.Perm(len(chains))[:width] {
				needs.Chains = append(needs.Chains, chains[i])
			}
			for _, i := range order.Perm(len(members)) {
				needs.Heads = append(needs.Heads, members[i].org.ID)
			}
			if err := w.actOnAll(ctx, s, needs); err != nil {
				return err
			}
		}
		return nil
	})
	total := 0
	for _, id := range chains {
		total += len(must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 10_000)))
	}
	if total != workers*each*width {
		t.Errorf("%d events, want %d", total, workers*each*width)
	}
}

func (w *world) actOnAll(ctx context.Context, s store.Store, needs *store.Needs) error {
	return s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes := new(store.Changes)
		for _, id := range needs.Chains {
			o, err := w.decode(loaded.Chains[id])
			if err != nil {
				return nil, err
			}
			w.enter(o, newAction(""), changes)
			changes.States = append(changes.States, w.moved(o))
		}
		for _, org := range needs.Heads {
			changes.Heads = append(changes.Heads, loaded.Heads[org])
		}
		return changes, nil
	})
}

// openOnce opens chains with idempotency keys unless they exist, like the service, and returns the
// chains with these keys.
func (w *world) openOnce(ctx context.Context, s store.Store, m *member, keys ...string) ([]ledger.ChainID, error) {
	needs := new(store.Needs)
	for _, key := range keys {
		needs.Opens = append(needs.Opens, store.OpenRef{Org: m.org.ID, By: m.key.ID, Key: key})
	}
	var found []ledger.ChainID
	err := retry(func() error {
		found = found[:0]
		return s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
			changes := new(store.Changes)
			for _, ref := range needs.Opens {
				chain := loaded.Opens[ref]
				if chain == nil {
					chain = w.record(w.draft(m), ref.Key)
					changes.NewChains = append(changes.NewChains, chain)
				}
				found = append(found, chain.ID)
			}
			return changes, nil
		})
	})
	return found, err
}

func oneOpening(t *testing.T, w *world) {
	const workers = 12
	m := w.join(t)
	var seen [workers]ledger.ChainID
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		found, err := w.openOnce(ctx, s, m, "once")
		if err == nil {
			seen[worker] = found[0]
		}
		return err
	})
	chains := must[[]*store.ChainRecord](t)(w.Chains(t.Context(), store.ChainQuery{Org: m.org.ID, Limit: 100}))
	if len(chains) != 1 {
		t.Fatalf("%d chains were opened, want 1", len(chains))
	}
	for worker, id := range seen {
		if id != chains[0].ID {
			t.Errorf("worker %d got another chain than the one that was opened", worker)
		}
	}
}

func crossingOpenings(t *testing.T, w *world) {
	const workers, width = 9, 8
	m := w.join(t)
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		order := rand.New(rand.NewPCG(2, uint64(worker)))
		var keys []string
		for _, i := range order.Perm(width) {
			keys = append(keys, fmt.Sprint("key ", i))
		}
		_, err := w.openOnce(ctx, s, m, keys...)
		return err
	})
	if chains := must[[]*store.ChainRecord](t)(w.Chains(t.Context(), store.ChainQuery{Org: m.org.ID, Limit: 100})); len(chains) != width {
		t.Errorf("%d chains were opened, want %d", len(chains), width)
	}
}

func oneEvent(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	ref := store.EventRef{Chain: id, Key: "once"}
	needs := &store.Needs{Chains: []ledger.ChainID{id}, Repeats: []store.EventRef{ref}}
	w.together(t, 12, func(ctx context.Context, s store.Store, _ int) error {
		return s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
			changes := new(store.Changes)
			if loaded.Repeats[ref] != nil {
				return changes, nil
			}
			o, err := w.decode(loaded.Chains[id])
			if err != nil {
				return nil, err
			}
			w.enter(o, newAction(ref.Key), changes)
			changes.States = []*store.ChainRecord{w.moved(o)}
			return changes, nil
		})
	})
	if events := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 100)); len(events) != 1 {
		t.Errorf("%d events were recorded, want 1", len(events))
	}
}

// epochsAndCommits: an epoch that was taken before a commit of another handle is never seen again after
// it, whatever this handle writes at the same time.
func epochsAndCommits(t *testing.T, w *world) {
	m := w.join(t)
	other := w.open(t)
	hasEpochs := w.Epoch() != 0
	for range 50 {
		before := w.Epoch()
		writing := new(errgroup.Group)
		writing.Go(func() error {
			for range 3 {
				if err := w.addKey(t.Context(), w.Store, w.newKey(m.org.ID)); err != nil {
					return err
				}
			}
			return nil
		})
		if err := w.addKey(t.Context(), other, w.newKey(m.org.ID)); err != nil {
			t.Errorf("add a key with the other handle: %v", err)
		}
		for range 20 { // it is 0 while this handle writes
			if now := w.Epoch(); now != 0 && now == before {
				t.Errorf("epoch %d goes on after another handle has committed", now)
			}
		}
		if err := writing.Wait(); err != nil {
			t.Fatal(err)
		}
		if now := w.Epoch(); hasEpochs && (now == 0 || now == before) {
			t.Fatalf("the epoch was %d, and is %d after another handle has committed", before, now)
		}
	}
}
