package service

import (
	"sync"

	"countersign/internal/ledger"
)

// waiters wakes those who wait for an approval. A wake-up says only that there
// may be something new: who is woken reads.
type waiters struct {
	mu      sync.Mutex
	waiting map[ledger.ApprovalID]map[chan struct{}]bool
}

// add subscribes to an approval until cancel is called. The channel holds one
// wake-up, so that none is lost while its owner reads.
func (w *waiters) add(id ledger.ApprovalID) (woken <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = make(map[ledger.ApprovalID]map[chan struct{}]bool)
	}
	if w.waiting[id] == nil {
		w.waiting[id] = make(map[chan struct{}]bool)
	}
	w.waiting[id][c] = true
	return c, func() { w.remove(id, c) }
}

func (w *waiters) remove(id ledger.ApprovalID, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting[id], c)
	if len(w.waiting[id]) == 0 {
		delete(w.waiting, id)
	}
}

// wake tells those who wait for one approval.
func (w *waiters) wake(id ledger.ApprovalID) {
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
