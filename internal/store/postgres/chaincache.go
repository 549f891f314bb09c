package postgres

import (
	"bytes"
	"crypto/sha256"

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

// readKnownOrganization reads an organization with the end of its audit log, and decodes
// either only when it is not the one that was read last: they are needed by every
// transaction and change seldom.
func (s *Store) readKnownOrganization(r *row) knownOrganization {
	if len(r.values) != organizationWidth+logWidth || len(r.values[0]) != len(uuid.UUID{}) {
		r.failed = true
		return knownOrganization{org: new(ledger.Organization)}
	}
	id := ledger.OrgID{UUID: uuid.UUID(r.values[0])}
	now := knownOrganization{raw: bytes.Join(r.values[:organizationWidth], []byte{0}), rawEnd: bytes.Join(r.values[organizationWidth:], []byte{0})}
	known, ok := s.orgs.Get(id)
	if ok && bytes.Equal(known.raw, now.raw) && bytes.Equal(known.rawEnd, now.rawEnd) {
		r.skip(len(r.values))
		return known
	}
	if ok && bytes.Equal(known.raw, now.raw) {
		now.org = known.org
		r.skip(organizationWidth)
	} else {
		now.org = readOrganization(r)
	}
	switch log := r.values[organizationWidth:]; {
	case log[0] == nil:
		r.skip(logWidth)
	case log[2] != nil && len(log[2]) != sha256.Size || len(log[3]) != sha256.Size:
		// Somebody else wrote it. It must not keep the organization from being read, and
		// without an authenticator it is refused.
		now.end = &ledger.ActLog{Org: id}
		r.skip(logWidth)
	default:
		now.end = readLog(r)
	}
	if !r.failed {
		s.orgs.Put(id, now, 2*(len(now.raw)+len(now.rawEnd)))
	}
	return now
}

// How many columns an organization and the end of a log have.
const (
	organizationWidth = 6
	logWidth          = 5
)

// organizationsInUse bounds what is kept of organizations, in bytes.
const organizationsInUse = 4 << 20

// knownOrganization is an organization and the end of its audit log, nil where there is
// none, with the stored bytes that they were read from.
type knownOrganization struct {
	raw, rawEnd []byte
	org         *ledger.Organization
	end         *ledger.ActLog
}
