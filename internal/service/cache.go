package service

import (
	"bytes"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// chainCache keeps what is fixed about chains in use. Chains never change, so
// nothing here is ever stale; it is emptied when it is full.
type chainCache struct {
	mu     sync.RWMutex
	chains map[ledger.ChainID]*ledger.Chain
}

const maxCachedChains = 20_000

func (c *chainCache) decode(record *store.ChainRecord) (*ledger.Chain, error) {
	c.mu.RLock()
	chain, ok := c.chains[record.ID]
	c.mu.RUnlock()
	if ok {
		return chain, nil
	}
	chain, err := ledger.DecodeChain(record.Body)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.chains) >= maxCachedChains || c.chains == nil {
		c.chains = make(map[ledger.ChainID]*ledger.Chain)
	}
	c.chains[record.ID] = chain
	return chain, nil
}

// stateCache keeps the states of chains in use as they were last committed, to
// spare each action the decoding of what the action before it encoded. The store
// stays the only truth: a state is used when the stored bytes are the very bytes
// it was stored as, whichever replica wrote them, and not otherwise.
type stateCache struct {
	mu     sync.Mutex
	states map[ledger.ChainID]cachedState
}

type cachedState struct {
	body, mac []byte
	state     *ledger.ChainState
}

// take hands over the state of a stored record, or nil. The caller owns it and
// may change it; whoever commits it puts it back.
func (c *stateCache) take(record *store.ChainRecord) *ledger.ChainState {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached, ok := c.states[record.ID]
	if !ok {
		return nil
	}
	delete(c.states, record.ID)
	if !bytes.Equal(cached.body, record.State) || !bytes.Equal(cached.mac, record.MAC) {
		return nil
	}
	return cached.state
}

func (c *stateCache) put(live []*liveChain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.states == nil || len(c.states) >= maxCachedChains {
		c.states = make(map[ledger.ChainID]cachedState)
	}
	for _, l := range live {
		if !l.state.Status.Sealed() {
			c.states[l.record.ID] = cachedState{body: l.record.State, mac: l.record.MAC, state: l.state}
		}
	}
}
