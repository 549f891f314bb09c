package service

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/recent"
)

// chainPolls remembers which chains were asked for by requests that recorded nothing, until
// the worker writes it down: a read must not cost a write. What is recorded in a chain
// moves the chain's own state, and needs no note.
//
// A moment is written down only when it lies PollGrain or more after all that is
// stored of the chain. So a chain that lives for minutes costs nothing, and one that is
// polled all day a row that is written six times an hour at most, over all replicas
// about as often. What is not written yet is at most PollGrain and pollLag old, and the
// sealing of abandoned chains waits that much longer.
type chainPolls struct {
	mu      sync.Mutex
	noted   map[polledChain]polledAt // since the last flush
	written *recent.Cache[ledger.ChainID, ledger.Time]
}

type polledChain struct {
	org   ledger.OrgID
	chain ledger.ChainID
}

// polledAt is when a chain was polled, and a moment at which something is stored of it.
type polledAt struct{ since, at ledger.Time }

const (
	// shortestGrain is below what any organization can set, in milliseconds.
	shortestGrain = ledger.Time(100)
	// pollLag is how long a poll may take to be written down, in milliseconds: two
	// flushes of the worker, with something to spare for the clocks of replicas.
	pollLag = ledger.Time(15_000)
	// pollsInUse bounds what is kept of moments that were written down, in bytes.
	pollsInUse = 1 << 20
)

func newChainPolls() chainPolls {
	return chainPolls{written: recent.New[ledger.ChainID, ledger.Time](pollsInUse)}
}

// note remembers a request for a chain of which something was stored at since.
func (p *chainPolls) note(chain *ledger.Chain, since, now ledger.Time) {
	p.noteAt(polledChain{chain.Org, chain.ID}, since, now)
}

func (p *chainPolls) noteAt(chain polledChain, since, now ledger.Time) {
	if now-since < shortestGrain {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noted == nil {
		p.noted = make(map[polledChain]polledAt)
	}
	earlier, known := p.noted[chain]
	if !known && len(p.noted) >= maxLastUses {
		return // the next poll after a flush is remembered
	}
	p.noted[chain] = polledAt{max(since, earlier.since), max(now, earlier.at)}
}

func (p *chainPolls) take() map[polledChain]polledAt {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.noted
	p.noted = nil
	return taken
}

// polledBy notes a read of a chain by the key that opened it. Who else looks at a chain,
// such as a member in the console, does not keep it open.
func (s *Service) polledBy(caller *Caller, view *ChainView) {
	if view.OpenedBy == caller.Key && !view.State.Status.Sealed() {
		s.chainPolls.note(view.Chain, view.State.LastAt, s.now())
	}
}

// FlushChainPolls writes down when chains were last polled. The worker calls it every few
// seconds. What could not be written is noted again, for the next
// time.
func (s *Service) FlushChainPolls(ctx context.Context) error {
	taken := s.chainPolls.take()
	again := func(org func(ledger.OrgID) bool) {
		for chain, polled := range taken {
			if org(chain.org) {
				s.chainPolls.noteAt(chain, polled.since, polled.at)
			}
		}
	}
	grains, failed := s.pollGrains(ctx, taken)
	due := make(map[ledger.ChainID]ledger.Time)
	for chain, polled := range taken {
		written, _ := s.chainPolls.written.Get(chain.chain)
		if grain, ok := grains[chain.org]; ok && polled.at-max(polled.since, written) >= grain {
			due[chain.chain] = polled.at
		}
	}
	if err := s.store.TouchChains(ctx, due); err != nil {
		again(func(ledger.OrgID) bool { return true })
		return visible(err)
	}
	for chain, at := range due {
		s.chainPolls.written.Put(chain, at, 100)
	}
	again(func(org ledger.OrgID) bool { _, ok := grains[org]; return !ok })
	return failed
}

// pollGrains reads the organizations of polled chains. One that cannot be read does not
// keep the others from being written down.
func (s *Service) pollGrains(ctx context.Context, polled map[polledChain]polledAt) (map[ledger.OrgID]ledger.Time, error) {
	grains := make(map[ledger.OrgID]ledger.Time)
	faults := make(map[ledger.OrgID]error)
	for chain := range polled {
		if _, ok := grains[chain.org]; ok || faults[chain.org] != nil {
			continue
		}
		org, err := s.organization(ctx, chain.org)
		if err != nil {
			faults[chain.org] = err
			continue
		}
		grains[chain.org] = org.Settings.PollGrain()
	}
	return grains, errors.Join(slices.Collect(maps.Values(faults))...)
}
