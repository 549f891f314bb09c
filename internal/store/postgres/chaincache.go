package postgres

import (
	"bytes"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// What is fixed about a chain is loaded once and kept while the chain is in use:
// every action locks its chain, and would read the same bytes again. Only what a
// transaction has moved and committed is kept, so that the caller has vouched for
// it: the state that it moved authenticates the chain. A body that is changed in
// the database afterwards changes nothing here, and is found by whoever reads it
// there, as an audit and every other replica do.

// chainsInUse bounds what is kept of chains, in bytes.
const chainsInUse = 16 << 20

// askedChains are the two halves of chains on their way.
type askedChains struct {
	fixed  map[ledger.ChainID]*store.ChainRecord
	moving []*store.ChainRecord
}

// askChains locks the chains' states, and reads what is fixed about those that
// are not known.
func (s *Store) askChains(x *exchange, chains []ledger.ChainID) *askedChains {
	asked := new(askedChains)
	wanted := sorted(chains, chainUUID)
	if len(wanted) == 0 {
		return asked
	}
	asked.fixed = make(map[ledger.ChainID]*store.ChainRecord, len(wanted))
	asked.moving = make([]*store.ChainRecord, 0, len(wanted))
	askAll(x, lockChainsSQL, wanted, readMoving, func(c *store.ChainRecord) { asked.moving = append(asked.moving, c) })
	var unknown []uuid.UUID
	for _, id := range wanted {
		if known, ok := s.chains.Get(ledger.ChainID{UUID: id}); ok {
			asked.fixed[known.ID] = known
		} else {
			unknown = append(unknown, id)
		}
	}
	askAll(x, loadChainsSQL, unknown, readFixed, func(c *store.ChainRecord) { asked.fixed[c.ID] = c })
	return asked
}

func readMoving(r *row) *store.ChainRecord {
	return &store.ChainRecord{ID: ledger.ChainID{UUID: r.id()}, Status: ledger.ChainStatus(r.text()), State: r.bytes(), MAC: r.bytes()}
}

// joinInto puts the halves together; a chain without one of them is absent.
func (a *askedChains) joinInto(chains map[ledger.ChainID]*store.ChainRecord) {
	for _, moving := range a.moving {
		if fixed := a.fixed[moving.ID]; fixed != nil {
			whole := *fixed
			whole.Status, whole.State, whole.MAC = moving.Status, moving.State, moving.MAC
			chains[whole.ID] = &whole
		}
	}
}

// remember keeps what is fixed about the chains that a committed transaction has
// opened or moved.
func (s *Store) remember(loaded *store.Loaded, changes *store.Changes) {
	for _, opened := range changes.NewChains {
		s.rememberChain(opened, opened.Status)
	}
	for _, moved := range changes.States {
		if chain := loaded.Chains[moved.ID]; chain != nil {
			s.rememberChain(chain, moved.Status)
		}
	}
}

func (s *Store) rememberChain(chain *store.ChainRecord, status ledger.ChainStatus) {
	if status.Sealed() {
		s.chains.Drop(chain.ID)
		return
	}
	if _, known := s.chains.Get(chain.ID); known {
		return
	}
	fixed := *chain
	fixed.Status, fixed.State, fixed.MAC = "", nil, nil
	s.chains.Put(chain.ID, &fixed, len(fixed.Body))
}

// readKnownOrganization reads an organization, and decodes it only when it is not
// the one that was read last: it is needed by every transaction and changes
// seldom.
func (s *Store) readKnownOrganization(r *row) *ledger.Organization {
	raw := bytes.Join(r.values, []byte{0})
	if len(r.values) == 0 || len(r.values[0]) != len(uuid.UUID{}) {
		r.failed = true
		return nil
	}
	id := ledger.OrgID{UUID: uuid.UUID(r.values[0])}
	if known, ok := s.orgs.Get(id); ok && bytes.Equal(known.raw, raw) {
		r.next = len(r.values)
		return known.org
	}
	org := readOrganization(r)
	if !r.failed {
		s.orgs.Put(id, knownOrganization{raw, org}, 2*len(raw))
	}
	return org
}

// organizationsInUse bounds what is kept of organizations, in bytes.
const organizationsInUse = 4 << 20

// knownOrganization is an organization with the stored bytes that it was read
// from.
type knownOrganization struct {
	raw []byte
	org *ledger.Organization
}
