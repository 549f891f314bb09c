package httpapi

import (
	"context"

	"countersign/internal/ledger"
)

// MostBodiesOfEach bounds the large bodies of an organization that are in memory.
const MostBodiesOfEach = mostBodiesOfEach

// Polls is how many requests wait for a decision.
func (a *API) Polls() int {
	a.polls.mu.Lock()
	defer a.polls.mu.Unlock()
	return a.polls.total
}

// HoldLarge keeps large bodies from being parsed until the returned function is called.
func (a *API) HoldLarge() (release func()) {
	for range cap(a.large.free) {
		a.large.free <- struct{}{}
	}
	return func() {
		for range cap(a.large.free) {
			<-a.large.free
		}
	}
}

// HoldReads keeps an organization's agents from reading until the returned function is
// called.
func (a *API) HoldReads(org ledger.OrgID) (release func()) {
	for range mostReads {
		a.agents.enter(context.Background(), org)
	}
	return func() {
		for range mostReads {
			a.agents.leave(org)
		}
	}
}
