package postgres

import (
	"context"
	"errors"
	"slices"
	"testing"

	"countersign/internal/store"
)

func joined(g *group[int, int], key int) *asker[int, int] {
	a := &asker[int, int]{key: key, told: make(chan answer[int], 1)}
	g.join(a)
	return a
}

// While statements are under way, those who come gather for one that serves them
// all.
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
	var askers []*asker[int, int]
	for key := range maxReading {
		askers = append(askers, joined(g, key+1))
		if keys := <-started; !slices.Equal(keys, []int{key + 1}) {
			t.Errorf("a statement asks for %v, want %d alone", keys, key+1)
		}
	}
	late := []int{0, 7, 8, 8, 9}
	for _, key := range late {
		askers = append(askers, joined(g, key))
	}
	close(release)
	if keys := <-started; !slices.Equal(keys, late) {
		t.Errorf("the next statement asks for %v, want all of %v", keys, late)
	}
	for _, a := range askers {
		told := <-a.told
		switch {
		case a.key == 0 && !errors.Is(told.err, store.ErrNotFound):
			t.Errorf("what does not exist: error %v, want %v", told.err, store.ErrNotFound)
		case a.key != 0 && (told.err != nil || told.value != 10*a.key):
			t.Errorf("%d is %d, %v", a.key, told.value, told.err)
		}
	}
}

// A read that panics or fails affects only those who asked for its key.
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
	// Who is asked for together with what cannot be read does not suffer for it.
	bad, good := &asker[int, int]{key: 2, told: make(chan answer[int], 1)}, &asker[int, int]{key: 3, told: make(chan answer[int], 1)}
	g.answer([]*asker[int, int]{bad, good})
	if told := <-bad.told; !errors.Is(told.err, refused) {
		t.Errorf("what cannot be read: error %v", told.err)
	}
	if told := <-good.told; told.err != nil || told.value != 30 {
		t.Errorf("beside it: %d, %v", told.value, told.err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if value, err := g.get(gone, 3); err != nil && !errors.Is(err, store.ErrUnavailable) || err == nil && value != 30 {
		t.Errorf("a caller that has gone: %d, %v", value, err)
	}
}
