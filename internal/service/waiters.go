package service

import (
	"sync"

	"github.com/google/uuid"
)

// waiters wakes those who wait for an approval, when the approval has changed or the
// API key under which they wait. A wake-up says only that there may be something new:
// who is woken reads.
type waiters struct {
	mu      sync.Mutex
	waiting map[uuid.UUID]map[chan struct{}]bool // by what they wait for
}

// add subscribes to what has these ids until cancel is called. The channel holds one
// wake-up, so that none is lost while its owner reads.
func (w *waiters) add(ids ...uuid.UUID) (woken <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = make(map[uuid.UUID]map[chan struct{}]bool)
	}
	for _, id := range ids {
		if w.waiting[id] == nil {
			w.waiting[id] = make(map[chan struct{}]bool)
		}
		w.waiting[id][c] = true
	}
	return c, func() { w.remove(c, ids) }
}

func (w *waiters) remove(c chan struct{}, ids []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.waiting[id], c)
		if len(w.waiting[id]) == 0 {
			delete(w.waiting, id)
		}
	}
}

// wake tells those who wait for what has this id.
func (w *waiters) wake(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.waiting[id] {
		nudge(c)
	}
}

// wakeAll is for when word may have been lost.
func (w *waiters) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, channels := range w.waiting {
		for c := range channels {
			nudge(c)
		}
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
