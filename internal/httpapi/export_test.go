package httpapi

import (
	"context"

	"countersign/internal/ledger"
)

// MaxBodiesPerOrg is the maximum number of an organization's large bodies in memory.
const MaxBodiesPerOrg = maxBodiesPerOrg

// Polls returns the number of requests that wait for a decision.
func (a *API) Polls() int {
	a.polls.mu.Lock()
	defer a.polls.mu.Unlock()
	return a.polls.total
}

// HoldLarge takes all slots for parsing large bodies until release is called.
func (a *API) HoldLarge() (release func()) {
	for range cap(a.parses.taken) {
		a.parses.taken <- struct{}{}
	}
	return func() {
		for range cap(a.parses.taken) {
			<-a.parses.taken
		}
	}
}

// HoldReads takes all read slots of an organization's agents until release is called.
func (a *API) HoldReads(org ledger.OrgID) (release func()) {
	for range maxReads {
		a.agents.enter(context.Background(), org)
	}
	return func() {
		for range maxReads {
			a.agents.leave(org)
		}
	}
}
