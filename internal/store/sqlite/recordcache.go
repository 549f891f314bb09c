package sqlite

import (
	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// recordCache keeps records as the writing connection last read or wrote them, so
// that an action does not read back what the action before it wrote. It is valid
// until another connection commits: SQLite counts those commits, and a new count
// clears the cache.
//
// The caches lock themselves. Together they are consistent because only a write
// transaction uses them, which holds Store.mu.
type recordCache struct {
	version int64 // data_version of the writing connection when the cache was last valid
	epoch   int64 // Loaded.Epoch: how often the cache was cleared
	chains  *cache.Cache[ledger.ChainID, cachedChain]
	orgs    *cache.Cache[ledger.OrgID, *ledger.Organization]
	ends    *cache.Cache[ledger.OrgID, *ledger.ActLog] // ends of audit logs
	keys    *cache.Cache[ledger.KeyID, *ledger.KeyRecord]
}

type cachedChain struct {
	no     int64 // row number
	record store.ChainRecord
}

// The limits of the caches, in bytes.
const (
	chainCacheBytes = 16 << 20
	orgCacheBytes   = 4 << 20
	keyCacheBytes   = 1 << 20
	endCacheBytes   = 1 << 20
)

// keySize is roughly the size of an API key in memory, in bytes.
func keySize(key *ledger.KeyRecord) int {
	size := 500 + len(key.Owner) + len(key.SignInAs) + len(key.SlackMember)
	for _, name := range key.Agents {
		size += len(name) + 16
	}
	return size
}

func newRecordCache() *recordCache {
	return &recordCache{
		epoch:  1,
		chains: cache.New[ledger.ChainID, cachedChain](chainCacheBytes),
		orgs:   cache.New[ledger.OrgID, *ledger.Organization](orgCacheBytes),
		ends:   cache.New[ledger.OrgID, *ledger.ActLog](endCacheBytes),
		keys:   cache.New[ledger.KeyID, *ledger.KeyRecord](keyCacheBytes),
	}
}

// validate clears the cache when another connection has committed. Inside a write
// transaction no other connection can commit, and the cache stays valid to its end.
func (r *recordCache) validate(writer *connection) error {
	var version int64
	err := writer.query("PRAGMA data_version", nil, func(row row) error { return row.Scan(&version) })
	if err != nil {
		return err
	}
	if version != r.version {
		r.clear()
		r.version = version
	}
	return nil
}

// chain returns a copy of a chain's record, which the caller may change, and its row
// number; nil when the chain is not cached.
func (r *recordCache) chain(id ledger.ChainID) (*store.ChainRecord, int64) {
	chain, ok := r.chains.Get(id)
	if !ok {
		return nil, 0
	}
	return &chain.record, chain.no
}

// update applies what a transaction has committed.
func (r *recordCache) update(tx *transaction) {
	for _, record := range tx.changes.NewChains {
		r.putChain(tx, *record)
	}
	for _, moved := range tx.changes.States {
		loaded := tx.loaded.Chains[moved.ID]
		if loaded == nil {
			r.chains.Drop(moved.ID)
			continue
		}
		record := *loaded
		record.Status, record.State, record.MAC = moved.Status, moved.State, moved.MAC
		r.putChain(tx, record)
	}
	// The caller may go on changing these records, so they are dropped here and read
	// again on demand.
	for _, org := range tx.changes.Orgs {
		r.orgs.Drop(org.ID)
	}
	for _, log := range tx.changes.Logs {
		r.ends.Drop(log.Org)
	}
	for _, key := range tx.changes.Keys {
		r.keys.Drop(key.ID)
	}
}

// putChain caches an open chain and drops a sealed one, which never changes again.
func (r *recordCache) putChain(tx *transaction, record store.ChainRecord) {
	if record.Status.Sealed() {
		r.chains.Drop(record.ID)
		return
	}
	size := len(record.Body) + len(record.State) + len(record.MAC)
	r.chains.Put(record.ID, cachedChain{no: tx.numbers[record.ID], record: record}, size)
}

// clear empties the cache, after a commit with an unknown outcome and after commits of
// other connections. Writes other than Transact drop the records that they change.
func (r *recordCache) clear() {
	r.epoch++
	r.chains.Clear()
	r.orgs.Clear()
	r.ends.Clear()
	r.keys.Clear()
}
