package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"countersign/internal/store"
)

// group combines concurrent lookups into one statement, because a round trip costs more than the
// rows that it returns. A single caller does not wait for others.
type group[K comparable, V any] struct {
	what string
	// read finds values by their keys. Keys that do not exist are missing from the result.
	read func(ctx context.Context, keys []K) (map[K]V, error)

	mu      sync.Mutex // guards the fields below
	waiting []*waiter[K, V]
	reading int
}

const (
	// maxReading bounds the number of concurrent statements of a group. Later callers join the next
	// statement.
	maxReading = 2
	maxGroup   = 64
)

type waiter[K comparable, V any] struct {
	key  K
	done chan result[V]
}

type result[V any] struct {
	value V
	err   error
}

// get returns one value, or ErrNotFound.
func (g *group[K, V]) get(ctx context.Context, key K) (V, error) {
	w := &waiter[K, V]{key: key, done: make(chan result[V], 1)}
	g.join(w)
	select {
	case r := <-w.done:
		return r.value, r.err
	case <-ctx.Done():
		var none V
		return none, unavailable(g.what, ctx.Err())
	}
}

func (g *group[K, V]) join(w *waiter[K, V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, w)
	if g.reading < maxReading {
		g.reading++
		go g.serve()
	}
}

// serve runs statements until no caller is waiting. join starts it; at most maxReading run at once.
func (g *group[K, V]) serve() {
	for {
		waiters := g.take()
		if len(waiters) == 0 {
			return
		}
		g.resolve(waiters)
	}
}

// take removes the next waiters from the queue. It yields as long as that brings more, so that
// callers about to join are included but a single caller does not have to wait.
func (g *group[K, V]) take() []*waiter[K, V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	for seen := 0; seen < len(g.waiting) && len(g.waiting) < maxGroup; {
		seen = len(g.waiting)
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	n := min(len(g.waiting), maxGroup)
	taken := g.waiting[:n:n]
	if g.waiting = g.waiting[n:]; len(g.waiting) == 0 {
		g.waiting = nil
	}
	if n == 0 {
		g.reading--
	}
	return taken
}

func (g *group[K, V]) resolve(waiters []*waiter[K, V]) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	keys := make([]K, len(waiters))
	for i, w := range waiters {
		keys[i] = w.key
	}
	found, err := g.safeRead(ctx, keys)
	if err != nil && len(waiters) > 1 && !errors.Is(err, store.ErrUnavailable) {
		// One key may cause the error. Retry one by one, so that it does not fail the others.
		for _, w := range waiters {
			g.resolve([]*waiter[K, V]{w})
		}
		return
	}
	for _, w := range waiters {
		value, ok := found[w.key]
		switch {
		case err != nil:
			w.done <- result[V]{err: err}
		case !ok:
			w.done <- result[V]{err: fmt.Errorf("%s: %w", g.what, store.ErrNotFound)}
		default:
			w.done <- result[V]{value: value}
		}
	}
}

// safeRead calls read and recovers from a panic. It runs in a goroutine without a request handler,
// where a panic would end the server.
func (g *group[K, V]) safeRead(ctx context.Context, keys []K) (found map[K]V, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: reading panicked: %v", g.what, fault)
		}
	}()
	return g.read(ctx, keys)
}
