package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/testdb"
)

// watcher receives the signals of a store.
type watcher struct {
	heard  chan uuid.UUID
	missed chan struct{}
}

func watch(t *testing.T, s *postgres.Store) *watcher {
	t.Helper()
	w := &watcher{heard: make(chan uuid.UUID, 100), missed: make(chan struct{}, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func(id uuid.UUID) { w.heard <- id }, func() { w.missed <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	await(t, w.missed)
	return w
}

// expect sends a signal through a store and waits until the watcher receives it.
func (w *watcher) expect(t *testing.T, from *postgres.Store) {
	t.Helper()
	id := uuid.New()
	err := from.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{Signals: []uuid.UUID{id}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	if heard := await(t, w.heard); heard != id {
		t.Errorf("heard %v, want %v", heard, id)
	}
}

// A watcher whose connection breaks learns that it missed signals, and receives new ones.
//
//countersign:race
func TestSignalsSurviveTheConnection(t *testing.T) {
	t.Parallel()
	one, two, address := replicas(t)
	here, there := watch(t, one), watch(t, two)
	here.expect(t, two)
	await(t, there.heard)
	for range 2 {
		administer(t, address, `select pg_terminate_backend(a.pid, 10000) from pg_stat_activity a
			where a.datname = current_database() and a.query = 'listen "countersign_approvals_' || to_regclass('approvals')::oid || '"'`)
		await(t, here.missed)
		await(t, there.missed)
		here.expect(t, two)
		await(t, there.heard)
		there.expect(t, one)
		await(t, here.heard)
	}
}

// TestSilentConnection: a connection that delivers nothing but is never closed is detected.
//
//countersign:race
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	direct := open(t, address)
	between, through := newProxy(t, address)
	s := open(t, through)
	s.SetSilence(100 * time.Millisecond)
	w := watch(t, s)
	w.expect(t, direct)
	between.freeze()
	await(t, w.missed)
	w.expect(t, direct)
}

// TestWatchTakesNoConnection: watching does not use a connection of the pool.
//
//countersign:race
func TestWatchTakesNoConnection(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	s := open(t, testdb.WithParameter(t, address, "pool_max_conns", "1"))
	one, two := watch(t, s), watch(t, s)
	one.expect(t, s)
	await(t, two.heard)
}
