// Package verify judges what is stored: whether a receipt, an approval or a whole
// ledger is as the service acknowledged it, and whether the database has gone back.
// It reads and writes nothing; what it finds is told by whoever asked.
package verify

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Config is what a Judge stands on.
type Config struct {
	Store *evidence.Store
	Keys  ledger.Keys
	// Timestamps judges the proofs of anchors; without it none is believed.
	Timestamps Timestamps
	// Watch remembers outside the database what was acknowledged; optional.
	Watch HeadWatch
	// Chains remembers outside the database how far open chains have come; optional.
	Chains ChainWatch
	// LogKeys knows the keys that sign checkpoints; without them none is believed.
	LogKeys LogKeys
	// Keep remembers the full check of a large chain, for all who serve the database;
	// optional. It may be called from several goroutines.
	Keep func(context.Context, *store.FullCheckRecord)
	Now  func() ledger.Time
	Log  *slog.Logger
}

// Judge says what holds of stored evidence. It is safe for concurrent use.
type Judge struct {
	store *evidence.Store
	keys  ledger.Keys
	watch HeadWatch
	// ledgers is the watch, where it knows of ledgers; nil else.
	ledgers LedgerWatch
	keep    func(context.Context, *store.FullCheckRecord)
	now     func() ledger.Time
	log     *slog.Logger

	chains     ChainWatch // nil without one
	logKeys    LogKeys    // nil without them
	timestamps Timestamps
	judged     judgedAnchors

	sound   soundReceipts
	full    fullChecks
	entries *cache.Cache[ledger.ChainID, *Entries]
	missing atomic.Pointer[[]uuid.UUID] // organizations that the watch knows and the store does not

	// Of the last look, too: whether there are receipts that a blank watch does not know,
	// and the ledger that the store holds, nil for none.
	unremembered atomic.Bool
	stored       atomic.Pointer[uuid.UUID]
}

// New makes a judge.
func New(c Config) *Judge {
	ledgers, _ := c.Watch.(LedgerWatch)
	return &Judge{ledgers: ledgers, store: c.Store, keys: c.Keys, watch: c.Watch, chains: c.Chains, logKeys: c.LogKeys, keep: c.Keep, now: c.Now, log: c.Log, timestamps: c.Timestamps, judged: newJudgedAnchors(), sound: newSoundReceipts(), full: newFullChecks(), entries: newEntriesCache()}
}
