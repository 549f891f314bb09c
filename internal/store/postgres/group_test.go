package postgres

import (
	"context"
	"errors"
	"slices"
	"testing"

	"countersign/internal/store"
)

func joined(g *group[int, int], key int) *waiter[int, int] {
	w := &waiter[int, int]{key: key, done: make(chan result[int], 1)}
	g.join(w)
	return w
}

// While statements are running, later callers are combined into one next statement.
func TestGroupGathers(t *testing.T) {
	t.Parallel()
	started, release := make(chan []int, 10), make(chan struct{})
	g := &group[int, int]{what: "number", read: func(_ context.Context, keys []int) (map[int]int, error) {
		started <- slices.Clone(keys)
		<-release
		found := make(map[int]int)
		for _, key := range keys {
			if key > 0 {
				found[key] = 10 * key
			}
		}
		return found, nil
	}}
	var waiters []*waiter[int, int]
	for key := range maxReading {
		waiters = append(waiters, joined(g, key+1))
		if keys := <-started; !slices.Equal(keys, []int{key + 1}) {
			t.Errorf("a statement asks for %v, want %d alone", keys, key+1)
		}
	}
	late := []int{0, 7, 8, 8, 9}
	for _, key := range late {
		waiters = append(waiters, joined(g, key))
	}
	close(release)
	if keys := <-started; !slices.Equal(keys, late) {
		t.Errorf("the next statement asks for %v, want all of %v", keys, late)
	}
	for _, w := range waiters {
		got := <-w.done
		switch {
		case w.key == 0 && !errors.Is(got.err, store.ErrNotFound):
			t.Errorf("a key that does not exist: error %v, want %v", got.err, store.ErrNotFound)
		case w.key != 0 && (got.err != nil || got.value != 10*w.key):
			t.Errorf("%d is %d, %v", w.key, got.value, got.err)
		}
	}
}

// A read that panics or fails affects only the callers that requested its key.
func TestGroupSurvives(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	g := &group[int, int]{what: "number", read: func(_ context.Context, keys []int) (map[int]int, error) {
		switch keys[0] {
		case 1:
			panic("a row that nobody expected")
		case 2:
			return nil, refused
		}
		return map[int]int{3: 30}, nil
	}}
	if _, err := g.get(t.Context(), 1); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Errorf("a panic: error %v, want one of its own", err)
	}
	if _, err := g.get(t.Context(), 2); !errors.Is(err, refused) {
		t.Errorf("a refusal: error %v", err)
	}
	if value, err := g.get(t.Context(), 3); err != nil || value != 30 {
		t.Errorf("afterwards: %d, %v", value, err)
	}
	// A key that cannot be read does not affect the others in its statement.
	bad, good := &waiter[int, int]{key: 2, done: make(chan result[int], 1)}, &waiter[int, int]{key: 3, done: make(chan result[int], 1)}
	g.resolve([]*waiter[int, int]{bad, good})
	if got := <-bad.done; !errors.Is(got.err, refused) {
		t.Errorf("a key that cannot be read: error %v", got.err)
	}
	if got := <-good.done; got.err != nil || got.value != 30 {
		t.Errorf("the other key: %d, %v", got.value, got.err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if value, err := g.get(gone, 3); err != nil && !errors.Is(err, store.ErrUnavailable) || err == nil && value != 30 {
		t.Errorf("a caller that gave up: %d, %v", value, err)
	}
}
