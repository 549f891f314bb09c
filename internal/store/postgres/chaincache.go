package postgres

import (
	"bytes"
	"crypto/sha256"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// The immutable part of a chain is cached while the chain is in use, because every action locks its
// chain and would read the same bytes again. It is cached only when a transaction has written the
// chain's state and committed: that state authenticates the chain, so the caller has verified it. A
// body that is changed in the database later does not affect the cache; audits and other replicas,
// which read the database, detect it.

// maxChainCache bounds the cache of chains, in bytes.
const maxChainCache = 16 << 20

// chainLoad holds the two parts of chains while they are loaded.
type chainLoad struct {
	fixed  map[ledger.ChainID]*store.ChainRecord
	moving []*store.ChainRecord
}

// loadChains locks the chains' states, and reads the immutable part of those that are not cached.
func (s *Store) loadChains(rt *roundTrip, chains []ledger.ChainID) *chainLoad {
	load := new(chainLoad)
	wanted := sorted(chains, chainUUID)
	if len(wanted) == 0 {
		return load
	}
	load.fixed = make(map[ledger.ChainID]*store.ChainRecord, len(wanted))
	load.moving = make([]*store.ChainRecord, 0, len(wanted))
	fetchAll(rt, lockChainsSQL, wanted, readMoving, func(c *store.ChainRecord) { load.moving = append(load.moving, c) })
	var unknown []uuid.UUID
	for _, id := range wanted {
		if known, ok := s.chains.Get(ledger.ChainID{UUID: id}); ok {
			load.fixed[known.ID] = known
		} else {
			unknown = append(unknown, id)
		}
	}
	fetchAll(rt, loadChainsSQL, unknown, readFixed, func(c *store.ChainRecord) { load.fixed[c.ID] = c })
	return load
}

func readMoving(r *row) *store.ChainRecord {
	return &store.ChainRecord{ID: ledger.ChainID{UUID: r.id()}, Status: ledger.ChainStatus(r.text()), State: r.bytes(), MAC: r.bytes()}
}

// joinInto combines the parts. A chain with a missing part is omitted.
func (a *chainLoad) joinInto(chains map[ledger.ChainID]*store.ChainRecord) {
	for _, moving := range a.moving {
		if fixed := a.fixed[moving.ID]; fixed != nil {
			whole := *fixed
			whole.Status, whole.State, whole.MAC = moving.Status, moving.State, moving.MAC
			chains[whole.ID] = &whole
		}
	}
}

// cacheChains caches the immutable part of the chains that a committed transaction has opened or
// changed.
func (s *Store) cacheChains(loaded *store.Loaded, changes *store.Changes) {
	for _, opened := range changes.NewChains {
		s.cacheChain(opened, opened.Status)
	}
	for _, moved := range changes.States {
		if chain := loaded.Chains[moved.ID]; chain != nil {
			s.cacheChain(chain, moved.Status)
		}
	}
}

func (s *Store) cacheChain(chain *store.ChainRecord, status ledger.ChainStatus) {
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

// readCachedOrganization reads an organization with the end of its audit log. Every transaction
// needs them and they rarely change, so each is decoded only if its bytes differ from the last
// read.
func (s *Store) readCachedOrganization(r *row) cachedOrganization {
	if len(r.values) != organizationWidth+logWidth || len(r.values[0]) != len(uuid.UUID{}) {
		r.failed = true
		return cachedOrganization{org: new(ledger.Organization)}
	}
	id := ledger.OrgID{UUID: uuid.UUID(r.values[0])}
	now := cachedOrganization{raw: bytes.Join(r.values[:organizationWidth], []byte{0}), rawEnd: bytes.Join(r.values[organizationWidth:], []byte{0})}
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
		// The service did not write this row. It must not keep the organization from being read.
		// Without an authenticator it is refused later.
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

// readKnownOrganization is readOrganization, but decodes the row only if it differs from the last that
// was read. Otherwise it returns the same record, of which it is known whether it is authentic.
func (s *Store) readKnownOrganization(r *row) *ledger.Organization {
	raw := bytes.Join(r.values, []byte{0})
	var id ledger.OrgID
	if len(r.values) == organizationWidth {
		copy(id.UUID[:], r.values[0])
	}
	if known, ok := s.orgs.Get(id); ok && bytes.Equal(known.raw, raw) {
		r.skip(len(r.values))
		return known.org
	}
	org := readOrganization(r)
	if !r.failed {
		s.orgs.Put(id, cachedOrganization{raw: raw, org: org}, 2*len(raw))
	}
	return org
}

// Number of columns of an organization and of a log's end.
const (
	organizationWidth = 6
	logWidth          = 5
)

// maxOrgCache bounds the cache of organizations, in bytes.
const maxOrgCache = 4 << 20

// cachedOrganization is an organization and the end of its audit log, which may be nil, with the
// stored bytes that they were decoded from.
type cachedOrganization struct {
	raw, rawEnd []byte
	org         *ledger.Organization
	end         *ledger.ActLog
}
