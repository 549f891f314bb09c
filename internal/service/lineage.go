package service

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/recent"
	"countersign/internal/store"
)

// lineage is what an operation knows of a chain, of those that it continues and of
// those that continue it. What it knows is a hint: the chains themselves say, inside
// the transaction, and an operation that finds more there than it has named among its
// needs is planned again with that. Who continues whom never changes, so what is known
// of it stays true.
//
// It belongs to one operation, and is changed by whoever plans that.
type lineage struct {
	asked  ledger.ChainID   // that the request names
	before []ledger.ChainID // that it continues, the oldest first
	after  []ledger.ChainID // that continue it, the oldest first
	also   []ledger.ChainID // of before, those whose state is wanted
}

// errLineage says that an operation found out only in its transaction which chains it
// needs, and names them the next time.
var errLineage = errors.New("chains of the lineage not loaded")

// need names the chains from the one that the request names to the newest.
func (l *lineage) need(needs *store.Needs) {
	needs.Chains = append(append(append(needs.Chains, l.asked), l.after...), l.also...)
}

// all are the chains in which an action may have been recorded before.
func (l *lineage) all() iter.Seq[ledger.ChainID] {
	return func(yield func(ledger.ChainID) bool) {
		for _, id := range l.before {
			if !yield(id) {
				return
			}
		}
		if !yield(l.asked) {
			return
		}
		for _, id := range l.after {
			if !yield(id) {
				return
			}
		}
	}
}

// last is the newest chain that is known.
func (l *lineage) last() ledger.ChainID {
	if len(l.after) == 0 {
		return l.asked
	}
	return l.after[len(l.after)-1]
}

// newest finds the chain in which to go on: the one that the request names, which must
// be the caller's, or the newest that continues it. It may be one that was abandoned
// and has no successor yet.
func (l *lineage) newest(b *batch, caller *Caller) (*liveChain, error) {
	live, err := b.chain(caller, l.asked)
	if err != nil {
		return nil, err
	}
	if len(live.chain.Continues) != len(l.before) {
		l.before = live.chain.Continues
		return nil, errLineage
	}
	for live.state.ContinuedBy != nil {
		id := *live.state.ContinuedBy
		// What this batch has opened is in no store, nor is anything recorded in it.
		if known := b.live[id]; (known == nil || !known.fresh) && !slices.Contains(l.after, id) {
			l.after = append(slices.Clone(l.after), id)
			return nil, errLineage
		}
		next, err := b.chainOf(live.chain.Org, id)
		if errors.Is(err, ledger.ErrNotFound) {
			return nil, fmt.Errorf("the successor of a chain is missing: %w", ledger.ErrStateTampered)
		}
		if err != nil {
			return nil, err
		}
		if from := next.chain.Predecessor(); from == nil || *from != live.chain.ID {
			return nil, fmt.Errorf("the successor of a chain continues another: %w", ledger.ErrStateTampered)
		}
		live = next
	}
	return live, nil
}

// member finds a chain that the newest one continues, or that itself.
func (l *lineage) member(b *batch, newest *liveChain, id ledger.ChainID) (*liveChain, error) {
	if b.live[id] == nil && b.loaded.Chains[id] == nil && !slices.Contains(l.also, id) {
		l.also = append(l.also, id)
		return nil, errLineage
	}
	live, err := b.chainOf(newest.chain.Org, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, fmt.Errorf("a chain that another continues is missing: %w", ledger.ErrStateTampered)
	}
	return live, err
}

// continuedBy is what an answer tells a client that named another chain than the one
// in which it goes on; nil where it named that one.
func (l *lineage) continuedBy(newest *liveChain) *ledger.ChainID {
	if newest.chain.ID == l.asked {
		return nil
	}
	id := newest.chain.ID
	return &id
}

// succeed opens the successor of an abandoned chain. The abandoned chain is locked, and
// names its successor from then on: so there is one, whoever comes first.
func (b *batch) succeed(live *liveChain, policy *ledger.Policy) (*liveChain, error) {
	chain, state, err := live.state.Succeed(live.chain, ledger.ChainID{UUID: b.service.timedID(b.now)}, policy.Version, b.now)
	if err != nil {
		return nil, err
	}
	live.changed = true
	next := &liveChain{record: newChainRecord(chain), chain: chain, state: state, summary: &ledger.Summary{}, fresh: true}
	b.live[chain.ID] = next
	b.order = append(b.order, next)
	return next, nil
}

// lineCache keeps the lineages of chains in use that have one, to spare their
// operations the second attempt. Chains that nobody abandoned are not in it.
type lineCache struct {
	known *recent.Cache[ledger.ChainID, lineage]
}

// linesInUse bounds what is kept of lineages, in bytes.
const linesInUse = 1 << 20

func newLineCache() lineCache {
	return lineCache{recent.New[ledger.ChainID, lineage](linesInUse)}
}

// lineage is what is known of a chain's.
func (s *Service) lineage(chain ledger.ChainID) *lineage {
	if known, ok := s.lines.known.Get(chain); ok {
		return &lineage{asked: chain, before: known.before, after: known.after}
	}
	return &lineage{asked: chain}
}

// alongLineage repeats an operation until it has named all chains of its lineage. Each
// attempt that fails for that has found at least one more.
func (s *Service) alongLineage(line *lineage, attempt func() error) error {
	err := attempt()
	if !errors.Is(err, errLineage) {
		return err
	}
	for errors.Is(err, errLineage) {
		err = attempt()
	}
	if err == nil {
		s.lines.known.Put(line.asked, lineage{before: line.before, after: line.after}, 100+16*(len(line.before)+len(line.after)))
	}
	return err
}

// newestOf reads the chain in which a client that names the given one goes on.
func (s *Service) newestOf(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	view, err := s.ownChain(ctx, caller, id)
	for err == nil && view.State.ContinuedBy != nil {
		from := view.Chain.ID
		if view, err = s.ownChain(ctx, caller, *view.State.ContinuedBy); err != nil {
			return nil, takenAway(err, "the successor of a chain")
		}
		if before := view.Chain.Predecessor(); before == nil || *before != from {
			return nil, visible(fmt.Errorf("the successor of a chain continues another: %w", ledger.ErrStateTampered))
		}
	}
	return view, err
}
