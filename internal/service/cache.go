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

// decode reads a chain and refuses a body that is not its row's. What it returns
// is vouched for only once the chain's state is authenticated, for the state's
// authenticator covers it; then it may be kept.
func (c *chainCache) decode(record *store.ChainRecord) (*ledger.Chain, error) {
	c.mu.RLock()
	chain, ok := c.chains[record.ID]
	c.mu.RUnlock()
	if !ok {
		var err error
		if chain, err = ledger.DecodeChain(record.Body); err != nil {
			return nil, err
		}
	}
	if chain.ID != record.ID || chain.Org != record.Org || chain.OpenedBy != record.OpenedBy {
		return nil, ledger.ErrStateTampered
	}
	return chain, nil
}

func (c *chainCache) keep(chain *ledger.Chain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.chains) >= maxCachedChains || c.chains == nil {
		c.chains = make(map[ledger.ChainID]*ledger.Chain)
	}
	c.chains[chain.ID] = chain
}

// trustedOrgs remembers organizations that were found authentic, as loaded: a store
// lends out the same record until it has changed, and nobody changes what is lent.
type trustedOrgs struct {
	mu   sync.Mutex
	orgs map[ledger.OrgID]*ledger.Organization
}

const maxTrustedOrgs = 10_000

func (t *trustedOrgs) authentic(org *ledger.Organization, keys ledger.Keys) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.orgs[org.ID] == org {
		return true
	}
	if !org.Authentic(keys) {
		return false
	}
	if t.orgs == nil || len(t.orgs) >= maxTrustedOrgs {
		t.orgs = make(map[ledger.OrgID]*ledger.Organization)
	}
	t.orgs[org.ID] = org
	return true
}

// stateCache keeps the states of chains in use as they were last committed, to
// spare each action the decoding of what the action before it encoded, and each
// completion the reading of what it summarises. The store stays the only truth: a
// state is used when the stored bytes, and the chain that their authenticator
// covers, are the very ones it was stored with, whichever replica wrote them, and
// not otherwise.
type stateCache struct {
	mu     sync.Mutex
	states map[ledger.ChainID]cachedState
}

type cachedState struct {
	chain     [32]byte
	body, mac []byte
	state     *ledger.ChainState
	summary   *ledger.Summary
}

// maxSummaryLines bounds what one chain's summary may hold in memory.
const maxSummaryLines = 1000

// take hands over what is kept of a live chain's stored record and reports
// whether there was anything. The chain owns it and may change it; whoever
// commits the chain puts it back.
func (c *stateCache) take(live *liveChain) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached, ok := c.states[live.record.ID]
	if !ok {
		return false
	}
	delete(c.states, live.record.ID)
	if cached.chain != live.chain.Hash() || !bytes.Equal(cached.body, live.record.State) || !bytes.Equal(cached.mac, live.record.MAC) {
		return false
	}
	live.state, live.summary = cached.state, cached.summary
	return true
}

// summarised reports whether a chain's summary is at hand. It is a hint: by the
// time the chain is loaded it may be gone.
func (c *stateCache) summarised(id ledger.ChainID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[id].summary != nil
}

func (c *stateCache) put(live []*liveChain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.states == nil || len(c.states) >= maxCachedChains {
		c.states = make(map[ledger.ChainID]cachedState)
	}
	for _, l := range live {
		if l.state.Status.Sealed() {
			continue
		}
		if l.summary != nil && l.summary.Lines() > maxSummaryLines {
			l.summary = nil
		}
		c.states[l.record.ID] = cachedState{chain: l.chain.Hash(), body: l.record.State, mac: l.record.MAC, state: l.state, summary: l.summary}
	}
}
