package sqlite

import (
	"countersign/internal/ledger"
	"countersign/internal/recent"
	"countersign/internal/store"
)

// recentRecords are the records in use as this connection last read or wrote
// them, so that an action need not read back what the action before it did. They
// hold for as long as nobody else has written: SQLite counts the commits of other
// connections, and the first one empties the memory.
type recentRecords struct {
	version int64
	chains  *recent.Cache[ledger.ChainID, recentChain]
	orgs    *recent.Cache[ledger.OrgID, *ledger.Organization]
	ends    *recent.Cache[ledger.OrgID, *ledger.ActLog] // of the audit logs
	keys    *recent.Cache[ledger.KeyID, *ledger.KeyRecord]
}

type recentChain struct {
	no     int64
	record store.ChainRecord
}

// How many bytes are kept of each.
const (
	chainsInUse = 16 << 20
	orgsInUse   = 4 << 20
	keysInUse   = 1 << 20
	endsInUse   = 1 << 20
)

// keySize is about how many bytes a key takes.
func keySize(key *ledger.KeyRecord) int {
	size := 500 + len(key.Owner)
	for _, name := range key.Agents {
		size += len(name) + 16
	}
	return size
}

func newRecentRecords() *recentRecords {
	return &recentRecords{
		chains: recent.New[ledger.ChainID, recentChain](chainsInUse),
		orgs:   recent.New[ledger.OrgID, *ledger.Organization](orgsInUse),
		ends:   recent.New[ledger.OrgID, *ledger.ActLog](endsInUse),
		keys:   recent.New[ledger.KeyID, *ledger.KeyRecord](keysInUse),
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
	chain, ok := r.chains.Get(id)
	if !ok {
		return nil, 0
	}
	return &chain.record, chain.no
}

// committed takes over what a transaction has written.
func (r *recentRecords) committed(tx *transaction) {
	for _, record := range tx.changes.NewChains {
		r.keep(tx, *record)
	}
	for _, moved := range tx.changes.States {
		loaded := tx.loaded.Chains[moved.ID]
		if loaded == nil {
			r.chains.Drop(moved.ID)
			continue
		}
		record := *loaded
		record.Status, record.State, record.MAC = moved.Status, moved.State, moved.MAC
		r.keep(tx, record)
	}
	// These are read again when they are next wanted: the caller may go on working
	// on the records that it handed over.
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

func (r *recentRecords) keep(tx *transaction, record store.ChainRecord) {
	if record.Status.Sealed() {
		r.chains.Drop(record.ID)
		return
	}
	size := len(record.Body) + len(record.State) + len(record.MAC)
	r.chains.Put(record.ID, recentChain{no: tx.numbers[record.ID], record: record}, size)
}

// forget is for a commit whose fate is unknown, and for those of other
// connections. Writes beside Transact drop what they touch of the records kept here.
func (r *recentRecords) forget() {
	r.chains.Clear()
	r.orgs.Clear()
	r.ends.Clear()
	r.keys.Clear()
}
