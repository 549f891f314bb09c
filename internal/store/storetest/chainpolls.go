package storetest

import (
	"context"
	"math/rand/v2"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var chainPollCases = []testCase{
	{name: "the last poll of a chain is remembered by every handle", run: touchesChains},
	{name: "an earlier poll changes nothing", run: earlierChainPoll},
	{name: "the poll of an unknown chain is left out", run: unknownPoll},
	{name: "no poll is no error", run: noPoll},
	{name: "the latest poll of many replicas is remembered", run: latestChainPoll, concurrent: true},
}

func (w *world) poll(t *testing.T, id ledger.ChainID, at ledger.Time) {
	t.Helper()
	if err := w.TouchChains(t.Context(), map[ledger.ChainID]ledger.Time{id: at}); err != nil {
		t.Fatalf("touch: %v", err)
	}
}

func assertPolled(t *testing.T, s store.Store, want map[ledger.ChainID]ledger.Time, chains ...ledger.ChainID) {
	t.Helper()
	err := s.Transact(t.Context(), &store.Needs{Polls: chains}, func(loaded *store.Loaded) (*store.Changes, error) {
		assertEqual(t, "polls", loaded.Polls, want)
		return &store.Changes{}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	assertEqual(t, "read", must[map[ledger.ChainID]ledger.Time](t)(s.Polled(t.Context(), chains)), want)
}

func touchesChains(t *testing.T, w *world) {
	m := w.join(t)
	polled, other := w.openChain(t, m), w.openChain(t, m)
	at := w.now()
	w.poll(t, polled, at)
	want := map[ledger.ChainID]ledger.Time{polled: at}
	assertPolled(t, w, want, polled, other, polled)
	assertPolled(t, w.open(t), want, polled, other)
	assertPolled(t, w, map[ledger.ChainID]ledger.Time{})
}

func earlierChainPoll(t *testing.T, w *world) {
	chain := w.openChain(t, w.join(t))
	earlier, later := w.now(), w.now()
	w.poll(t, chain, later)
	w.poll(t, chain, earlier)
	assertPolled(t, w, map[ledger.ChainID]ledger.Time{chain: later}, chain)
}

func unknownPoll(t *testing.T, w *world) {
	chain := w.openChain(t, w.join(t))
	at, unknown := w.now(), w.chainID()
	if err := w.TouchChains(t.Context(), map[ledger.ChainID]ledger.Time{unknown: at, chain: at}); err != nil {
		t.Fatalf("touch: %v", err)
	}
	assertPolled(t, w, map[ledger.ChainID]ledger.Time{chain: at}, chain, unknown)
}

func noPoll(t *testing.T, w *world) {
	if err := w.TouchChains(t.Context(), nil); err != nil {
		t.Errorf("touch: %v", err)
	}
}

func latestChainPoll(t *testing.T, w *world) {
	const workers, each, width = 9, 6, 5
	chains := w.openChains(t, w.join(t), width)
	base := w.now()
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for _, i := range rand.New(rand.NewPCG(7, uint64(worker))).Perm(each) {
			polled := make(map[ledger.ChainID]ledger.Time)
			for _, id := range chains {
				polled[id] = base + ledger.Time(i*workers+worker)
			}
			if err := s.TouchChains(ctx, polled); err != nil {
				return err
			}
		}
		return nil
	})
	want := make(map[ledger.ChainID]ledger.Time)
	for _, id := range chains {
		want[id] = base + workers*each - 1
	}
	assertPolled(t, w, want, chains...)
}
