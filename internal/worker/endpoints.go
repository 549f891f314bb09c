package worker

import (
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/notify"
)

// errHanging is the error of an attempt that was not made.
var errHanging = notify.HeldBack("the receiver did not answer earlier deliveries in time, and one is under way to see whether it does now")

// endpoints keeps hanging receivers from occupying all workers: a receiver whose delivery timed out
// gets one delivery at a time, to see whether it answers. Other deliveries to it count as attempted
// in the meantime, because they would have hung as well.
type endpoints struct {
	mu      sync.Mutex
	hanging map[ledger.WebhookID]bool // true while the one delivery is running
}

// maxHanging bounds the map. Beyond it, all entries are dropped and detected again.
const maxHanging = 10_000

// begin reports whether a delivery may be attempted, and whether it is the trial of a hanging
// receiver.
func (e *endpoints) begin(id ledger.WebhookID) (trial, may bool) {
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

// end records whether the receiver timed out.
func (e *endpoints) end(id ledger.WebhookID, trial, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !silent {
		delete(e.hanging, id)
		return
	}
	if e.hanging == nil || len(e.hanging) >= maxHanging {
		e.hanging = make(map[ledger.WebhookID]bool)
	}
	// Deliveries that started before the receiver was known to hang do not affect a trial.
	e.hanging[id] = e.hanging[id] && !trial
}
