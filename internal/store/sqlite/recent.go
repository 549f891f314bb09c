package sqlite

import (
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// recentChains are the records of chains in use as this connection last wrote
// them, so that an action need not read back what the action before it wrote.
// They hold for as long as nobody else has written: SQLite counts the commits of
// other connections, and the first one empties the memory.
type recentChains struct {
	version int64
	chains  map[ledger.ChainID]recentChain
}

type recentChain struct {
	no     int64
	record store.ChainRecord
}

const maxRecentChains = 10_000

func newRecentChains() *recentChains {
	return &recentChains{chains: make(map[ledger.ChainID]recentChain)}
}

// begin is called inside each transaction, when nobody else can write any more.
func (r *recentChains) begin(tx *transaction) error {
	var version int64
	err := tx.query("PRAGMA data_version", nil, func(row row) error { return row.Scan(&version) })
	if err != nil {
		return err
	}
	if version != r.version {
		clear(r.chains)
		r.version = version
	}
	return nil
}

// find returns a copy of a chain's record, to be changed at will.
func (r *recentChains) find(id ledger.ChainID) (*store.ChainRecord, int64) {
	recent, ok := r.chains[id]
	if !ok {
		return nil, 0
	}
	return &recent.record, recent.no
}

// committed takes over what a transaction has written.
func (r *recentChains) committed(tx *transaction) {
	if len(r.chains) >= maxRecentChains {
		clear(r.chains)
	}
	for _, record := range tx.changes.NewChains {
		r.keep(tx, *record)
	}
	for _, moved := range tx.changes.States {
		if loaded := tx.loaded.Chains[moved.ID]; loaded != nil {
			record := *loaded
			record.Status, record.State, record.MAC = moved.Status, moved.State, moved.MAC
			r.keep(tx, record)
		}
	}
}

func (r *recentChains) keep(tx *transaction, record store.ChainRecord) {
	if record.Status.Sealed() {
		delete(r.chains, record.ID)
		return
	}
	r.chains[record.ID] = recentChain{no: tx.numbers[record.ID], record: record}
}

// forget is for a commit whose fate is unknown.
func (r *recentChains) forget() { clear(r.chains) }
