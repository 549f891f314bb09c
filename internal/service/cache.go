package service

import (
	"bytes"

	"countersign/internal/ledger"
	"countersign/internal/recent"
	"countersign/internal/store"
)

// How many bytes are kept of what was used lately.
const (
	chainsInUse = 16 << 20
	statesInUse = 40 << 20
)

// chainCache keeps what is fixed about chains in use. Chains never change, so
// nothing here is ever stale.
type chainCache struct {
	chains *recent.Cache[ledger.ChainID, *ledger.Chain]
}

func newChainCache() chainCache {
	return chainCache{recent.New[ledger.ChainID, *ledger.Chain](chainsInUse)}
}

// decode reads a chain and refuses a body that is not its row's: a chain is found by its
// columns, so they must say what the body says. What it returns
// is vouched for only once the chain's state is authenticated, for the state's
// authenticator covers it; then it may be kept.
func (c *chainCache) decode(record *store.ChainRecord) (*ledger.Chain, error) {
	chain, ok := c.chains.Get(record.ID)
	if !ok {
		var err error
		if chain, err = ledger.DecodeChain(record.Body); err != nil {
			return nil, err
		}
	}
	if chain.ID != record.ID || chain.Org != record.Org || chain.OpenedBy != record.OpenedBy || chain.ExternalID != record.ExternalID ||
		chain.Environment != record.Environment || chain.IdempotencyKey != record.IdempotencyKey {
		return nil, ledger.ErrStateTampered
	}
	return chain, nil
}

// keep takes the chain's stored bytes for its size: it holds their text, and more
// beside it.
func (c *chainCache) keep(chain *ledger.Chain, body []byte) {
	if _, known := c.chains.Get(chain.ID); !known {
		c.chains.Put(chain.ID, chain, 500+2*len(body))
	}
}

// stateCache keeps the states of chains in use as they were last committed, to
// spare each action the decoding of what the action before it encoded, and each
// completion the reading of what it summarises. The store stays the only truth: a
// state is used when the stored bytes, and the chain that their authenticator
// covers, are the very ones it was stored with, whichever replica wrote them, and
// not otherwise.
type stateCache struct {
	states *recent.Cache[ledger.ChainID, *cachedState]
}

func newStateCache() stateCache {
	return stateCache{recent.New[ledger.ChainID, *cachedState](statesInUse)}
}

type cachedState struct {
	chain     [32]byte
	body, mac []byte
	state     *ledger.ChainState
	summary   *ledger.Summary
}

// maxSummary bounds what one chain's summary may hold in memory.
const maxSummary = 512 << 10

// size is about what the decoded state takes, which says what its bytes say, and
// the lines of the summary beside it.
func (c *cachedState) size() int {
	bytes := 500 + 2*len(c.body)
	if c.summary != nil {
		bytes += c.summary.Size()
	}
	return bytes
}

// take hands over what is kept of a live chain's stored record and reports
// whether there was anything. The chain owns it and may change it; whoever
// commits the chain puts it back.
func (c *stateCache) take(live *liveChain) bool {
	cached, ok := c.states.Take(live.record.ID)
	if !ok || cached.chain != live.chain.Hash() || !bytes.Equal(cached.body, live.record.State) || !bytes.Equal(cached.mac, live.record.MAC) {
		return false
	}
	live.state, live.summary = cached.state, cached.summary
	return true
}

// summarised reports whether a chain's summary is at hand. It is a hint: by the
// time the chain is loaded it may be gone.
func (c *stateCache) summarised(id ledger.ChainID) bool {
	cached, ok := c.states.Get(id)
	return ok && cached.summary != nil
}

func (c *stateCache) put(live []*liveChain) {
	for _, l := range live {
		if l.summary != nil && l.summary.Size() > maxSummary {
			l.summary = nil
		}
		if !l.state.Status.Sealed() {
			cached := &cachedState{chain: l.chain.Hash(), body: l.record.State, mac: l.record.MAC, state: l.state, summary: l.summary}
			c.states.Put(l.record.ID, cached, cached.size())
		}
	}
}
