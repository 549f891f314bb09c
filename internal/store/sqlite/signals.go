package sqlite

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/store"
)

// Watch implements store.Signals. One process serves the file, so what is
// committed through this Store is all that there is to hear of.
func (s *Store) Watch(ctx context.Context, changed func(uuid.UUID), missed func()) error {
	w := s.watchers.join()
	defer s.watchers.leave(w)
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

// watchers are all who watch. Whoever commits only leaves word with each and goes
// on: a slow one must not hold up the others.
type watchers struct {
	mu     sync.Mutex
	all    map[*watcher]struct{}
	closed chan struct{}
}

type watcher struct {
	wake    chan struct{} // holds one token while there is something to take
	pending []uuid.UUID
	lost    bool
}

// maxPending bounds what is kept for one that does not come to take it.
const maxPending = 10_000

func newWatchers() *watchers {
	return &watchers{all: make(map[*watcher]struct{}), closed: make(chan struct{})}
}

func (ws *watchers) join() *watcher {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := &watcher{wake: make(chan struct{}, 1)}
	ws.all[w] = struct{}{}
	return w
}

func (ws *watchers) leave(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
}

// announce is called after each commit, under the writer's lock, and so in the
// order of the commits.
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
		default: // it has not taken the last word yet
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
