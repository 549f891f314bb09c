package worker

import (
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/notify"
)

// errHanging stands for an attempt that was not made.
var errHanging = notify.HeldBack("the receiver did not answer earlier deliveries in time, and one is under way to see whether it does now")

// endpoints keeps receivers that hang from taking all the places: one that let a
// delivery run out of time is given one at a time, to see whether it answers. What
// else is due to it meanwhile counts as tried: it would have hung as well.
type endpoints struct {
	mu      sync.Mutex
	hanging map[ledger.WebhookID]bool // true: the one delivery is under way
}

// mostHanging bounds what is remembered. Beyond it all are forgotten, and found
// out again.
const mostHanging = 10_000

// enter reports whether a delivery may be tried, and whether it is the one that
// tries out a receiver that hangs.
func (e *endpoints) enter(id ledger.WebhookID) (trial, may bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	busy, hangs := e.hanging[id]
	if busy {
		return false, false
	}
	if hangs {
		e.hanging[id] = true
	}
	return hangs, true
}

// leave says whether the receiver was silent.
func (e *endpoints) leave(id ledger.WebhookID, trial, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !silent {
		delete(e.hanging, id)
		return
	}
	if e.hanging == nil || len(e.hanging) >= mostHanging {
		e.hanging = make(map[ledger.WebhookID]bool)
	}
	// Those that began before it was known to hang leave a trial alone.
	e.hanging[id] = e.hanging[id] && !trial
}
