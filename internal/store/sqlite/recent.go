package sqlite

import (
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// recentRecords are the records in use as this connection last read or wrote
// them, so that an action need not read back what the action before it did. They
// hold for as long as nobody else has written: SQLite counts the commits of other
// connections, and the first one empties the memory.
type recentRecords struct {
	version int64
	chains  map[ledger.ChainID]recentChain
	orgs    map[ledger.OrgID]*ledger.Organization
	keys    map[ledger.KeyID]*ledger.KeyRecord
}

type recentChain struct {
	no     int64
	record store.ChainRecord
}

const maxRecentChains = 10_000

const maxRecentKeys = 1000

func newRecentRecords() *recentRecords {
	return &recentRecords{
		chains: make(map[ledger.ChainID]recentChain),
		orgs:   make(map[ledger.OrgID]*ledger.Organization),
		keys:   make(map[ledger.KeyID]*ledger.KeyRecord),
	}
}

// begin is called inside each transaction, when nobody else can write any more.
func (r *recentRecords) begin(tx *transaction) error {
	var version int64
	err := tx.query("PRAGMA data_version", nil, func(row row) error { return row.Scan(&version) })
	if err != nil {
		return err
	}
	if version != r.version {
		r.forget()
		r.version = version
	}
	return nil
}

// find returns a copy of a chain's record, to be changed at will.
func (r *recentRecords) find(id ledger.ChainID) (*store.ChainRecord, int64) {
	recent, ok := r.chains[id]
	if !ok {
		return nil, 0
	}
	return &recent.record, recent.no
}

// committed takes over what a transaction has written.
func (r *recentRecords) committed(tx *transaction) {
	if len(r.chains) >= maxRecentChains {
		clear(r.chains)
	}
	for _, record := range tx.changes.NewChains {
		r.keep(tx, *record)
	}
	for _, moved := range tx.changes.States {
		loaded := tx.loaded.Chains[moved.ID]
		if loaded == nil {
			delete(r.chains, moved.ID)
			continue
		}
		record := *loaded
		record.Status, record.State, record.MAC = moved.Status, moved.State, moved.MAC
		r.keep(tx, record)
	}
	// These are read again when they are next wanted: the caller may go on working
	// on the records that it handed over.
	for _, org := range tx.changes.Orgs {
		delete(r.orgs, org.ID)
	}
	for _, key := range tx.changes.RevokedKeys {
		delete(r.keys, key.ID)
	}
}

func (r *recentRecords) keep(tx *transaction, record store.ChainRecord) {
	if record.Status.Sealed() {
		delete(r.chains, record.ID)
		return
	}
	r.chains[record.ID] = recentChain{no: tx.numbers[record.ID], record: record}
}

// forget is for a commit whose fate is unknown, and for those of other
// connections. Writes beside Transact touch none of the records kept here.
func (r *recentRecords) forget() {
	clear(r.chains)
	clear(r.orgs)
	clear(r.keys)
}
