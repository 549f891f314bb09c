package sqlite

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/store"
)

// Watch implements store.Signals. One process serves the file, so it sees the commits
// of this Store only.
func (s *Store) Watch(ctx context.Context, changed func(uuid.UUID), missed func()) error {
	w := s.watchers.subscribe()
	defer s.watchers.unsubscribe(w)
	missed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.watchers.closed:
			return fmt.Errorf("%w: closed", store.ErrUnavailable)
		case <-w.wake:
		}
		pending, lost := s.watchers.take(w)
		if lost {
			missed()
		}
		for _, id := range pending {
			changed(id)
		}
	}
}

// watchers are the calls of Watch in progress. A commit appends to the queue of each
// and does not wait: a slow watcher delays neither the writer nor other watchers.
type watchers struct {
	mu     sync.Mutex // guards all and the queues of its watchers
	all    map[*watcher]struct{}
	closed chan struct{}
}

type watcher struct {
	wake    chan struct{} // holds one element while pending or lost is set
	pending []uuid.UUID
	lost    bool // signals were dropped
}

// maxPending is how many signals are queued for one watcher before they are dropped.
const maxPending = 10_000

func newWatchers() *watchers {
	return &watchers{all: make(map[*watcher]struct{}), closed: make(chan struct{})}
}

func (ws *watchers) subscribe() *watcher {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := &watcher{wake: make(chan struct{}, 1)}
	ws.all[w] = struct{}{}
	return w
}

func (ws *watchers) unsubscribe(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
}

// announce queues ids for every watcher. The caller holds Store.mu, so signals are
// queued in the order of the commits.
func (ws *watchers) announce(ids []uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		if len(w.pending)+len(ids) > maxPending {
			w.pending, w.lost = nil, true
		} else {
			w.pending = append(w.pending, ids...)
		}
		select {
		case w.wake <- struct{}{}:
		default: // it was woken already
		}
	}
}

func (ws *watchers) take(w *watcher) (pending []uuid.UUID, lost bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	pending, lost = w.pending, w.lost
	w.pending, w.lost = nil, false
	return pending, lost
}

func (ws *watchers) close() { close(ws.closed) }
