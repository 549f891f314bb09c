package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func signalCases(exemptions []Exemption) []testCase {
	cases := []testCase{
		{name: "signals arrive in the order of their commits", run: hearsInOrder, concurrent: true},
		{name: "every watcher receives signals", run: everyoneHears, concurrent: true},
		{name: "a transaction that is not committed sends no signals", run: uncommittedIsNotHeard, concurrent: true},
		{name: "creating an organization sends its signals", run: hearsBeginning, concurrent: true},
		{name: "a slow watcher blocks nobody", run: slowWatcher, concurrent: true},
		{name: "watching ends with its context", run: watchEnds, concurrent: true},
	}
	if !slices.Contains(exemptions, SignalsStayInHandle) {
		cases = append(cases, testCase{name: "signals arrive in every process", run: hearsOtherHandles, concurrent: true})
	}
	return cases
}

// patience is how long a case waits for something that must happen.
const patience = 30 * time.Second

// ear receives the signals of one watcher.
type ear struct {
	heard  chan uuid.UUID
	missed chan struct{}
}

// listen watches through a handle and returns once signals can arrive.
func listen(t *testing.T, s store.Store) *ear {
	t.Helper()
	e := &ear{heard: make(chan uuid.UUID, 10_000), missed: make(chan struct{}, 10_000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func(id uuid.UUID) { e.heard <- id }, func() { e.missed <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	await(t, e.missed)
	return e
}

func await[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("timed out")
		panic("unreachable")
	}
}

func (e *ear) wantNext(t *testing.T, want ...uuid.UUID) {
	t.Helper()
	for i, id := range want {
		if got := await(t, e.heard); got != id {
			t.Fatalf("signal %d of %d is %v, want %v", i+1, len(want), got, id)
		}
	}
}

func (w *world) signal(t *testing.T, ids ...uuid.UUID) {
	t.Helper()
	w.write(t, &store.Changes{Signals: ids})
}

func (w *world) changedIDs(count int) (ids []uuid.UUID) {
	for range count {
		ids = append(ids, w.approvalID().UUID)
	}
	return ids
}

func hearsInOrder(t *testing.T, w *world) {
	e := listen(t, w)
	ids := w.changedIDs(30)
	for group := range slices.Chunk(ids, 3) {
		w.signal(t, group...)
	}
	e.wantNext(t, ids...)
	if len(e.missed) != 0 {
		t.Error("missed was called again, though nothing was lost")
	}
}

func everyoneHears(t *testing.T, w *world) {
	ids := w.changedIDs(2)
	one := listen(t, w)
	w.signal(t, ids[0])
	one.wantNext(t, ids[0])
	two := listen(t, w)
	w.signal(t, ids[1])
	one.wantNext(t, ids[1])
	two.wantNext(t, ids[1])
}

func uncommittedIsNotHeard(t *testing.T, w *world) {
	m := w.join(t)
	taken := w.openChain(t, m)
	e := listen(t, w)
	ids := w.changedIDs(3)
	refusal := errors.New("refused")
	err := w.Transact(t.Context(), new(store.Needs), func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{Signals: ids[:1]}, refusal
	})
	wantError(t, "refused", err, refusal)
	chain := w.record(w.draft(m), "")
	chain.ID = taken
	err = attempt(t.Context(), w, &store.Changes{NewChains: []*store.ChainRecord{chain}, Signals: ids[1:2]})
	wantError(t, "collided", err, store.ErrExists)
	w.signal(t, ids[2])
	e.wantNext(t, ids[2])
}

func hearsBeginning(t *testing.T, w *world) {
	e := listen(t, w)
	org := w.newOrganization()
	with := &store.Changes{Signals: w.changedIDs(2)}
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), with); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	e.wantNext(t, with.Signals...)
}

// slowWatcher blocks in a callback, against the port's rules, while others commit. It must then
// receive the signals that it has not seen, or learn that it missed some.
func slowWatcher(t *testing.T, w *world) {
	ids := w.changedIDs(500)
	quick := listen(t, w)
	started, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ready := make(chan struct{}, len(ids))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	calls, missed := 0, 0
	finish := sync.OnceFunc(func() { close(done) })
	go func() {
		ended <- w.Watch(ctx, func(id uuid.UUID) {
			if calls++; calls == 1 {
				close(started)
				<-release
			}
			if id == ids[len(ids)-1] {
				finish()
			}
		}, func() {
			if missed++; missed == 2 {
				finish()
			}
			ready <- struct{}{}
		})
	}()
	await(t, ready)
	w.signal(t, ids[0])
	await(t, started)
	for group := range slices.Chunk(ids[1:], 50) {
		w.signal(t, group...)
	}
	quick.wantNext(t, ids...)
	close(release)
	await(t, done)
	cancel()
	if err := await(t, ended); err != nil {
		t.Errorf("watch: %v", err)
	}
	if calls != len(ids) && missed < 2 {
		t.Errorf("%d of %d signals arrived, and none was reported as missed", calls, len(ids))
	}
}

func watchEnds(t *testing.T, w *world) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ready := make(chan struct{}, 1)
	go func() {
		ended <- w.Watch(ctx, func(uuid.UUID) {}, func() { ready <- struct{}{} })
	}()
	await(t, ready)
	cancel()
	if err := await(t, ended); err != nil {
		t.Errorf("watch: %v", err)
	}
	w.signal(t, w.changedIDs(1)...) // no watcher is left
}

func hearsOtherHandles(t *testing.T, w *world) {
	ids := w.changedIDs(20)
	here, there := listen(t, w), listen(t, w.open(t))
	for _, id := range ids {
		w.signal(t, id)
	}
	here.wantNext(t, ids...)
	there.wantNext(t, ids...)
}
