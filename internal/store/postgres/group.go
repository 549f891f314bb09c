package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"countersign/internal/store"
)

// group reads what several callers ask for at the same time with one statement: a
// round trip costs more than the rows that it brings. A caller that is alone waits
// for nobody.
type group[K comparable, V any] struct {
	what string
	// read finds values by their keys; what does not exist is left out.
	read func(ctx context.Context, keys []K) (map[K]V, error)

	mu      sync.Mutex
	waiting []*asker[K, V]
	reading int
}

const (
	// maxReading is how many statements of a group are under way at once: while they
	// are, those who come gather for the next.
	maxReading = 2
	maxGroup   = 64
)

type asker[K comparable, V any] struct {
	key  K
	told chan answer[V]
}

type answer[V any] struct {
	value V
	err   error
}

// get finds one value; ErrNotFound when there is none.
func (g *group[K, V]) get(ctx context.Context, key K) (V, error) {
	a := &asker[K, V]{key: key, told: make(chan answer[V], 1)}
	g.join(a)
	select {
	case answered := <-a.told:
		return answered.value, answered.err
	case <-ctx.Done():
		var none V
		return none, unavailable(g.what, ctx.Err())
	}
}

func (g *group[K, V]) join(a *asker[K, V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, a)
	if g.reading < maxReading {
		g.reading++
		go g.serve()
	}
}

// serve reads for those who wait until nobody does.
func (g *group[K, V]) serve() {
	for {
		askers := g.take()
		if len(askers) == 0 {
			return
		}
		g.answer(askers)
	}
}

// take steps aside for as long as that brings more: who has come and not asked yet
// is served with the others, and one that is alone is not kept waiting.
func (g *group[K, V]) take() []*asker[K, V] {
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

func (g *group[K, V]) answer(askers []*asker[K, V]) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	keys := make([]K, len(askers))
	for i, a := range askers {
		keys[i] = a.key
	}
	found, err := g.survive(ctx, keys)
	if err != nil && len(askers) > 1 && !errors.Is(err, store.ErrUnavailable) {
		// One of them may be at fault: the others must not suffer for it.
		for _, a := range askers {
			g.answer([]*asker[K, V]{a})
		}
		return
	}
	for _, a := range askers {
		value, ok := found[a.key]
		switch {
		case err != nil:
			a.told <- answer[V]{err: err}
		case !ok:
			a.told <- answer[V]{err: fmt.Errorf("%s: %w", g.what, store.ErrNotFound)}
		default:
			a.told <- answer[V]{value: value}
		}
	}
}

// survive is read in a goroutine that no request's own handler looks after: what
// panics there must not end the server.
func (g *group[K, V]) survive(ctx context.Context, keys []K) (found map[K]V, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: reading panicked: %v", g.what, fault)
		}
	}()
	return g.read(ctx, keys)
}
