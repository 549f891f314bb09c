// Package verify checks what is stored: whether a receipt, an approval or a whole ledger is what
// the service acknowledged, and whether the database was rolled back. It only reads; callers report
// what it finds.
package verify

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Config configures a Judge.
type Config struct {
	Store *evidence.Store
	Keys  ledger.Keys
	// Timestamps judges the proofs of anchors. Without it, no anchor is trusted.
	Timestamps Timestamps
	// Watch records outside the database what was acknowledged. It is optional.
	Watch HeadWatch
	// Chains records the progress of open chains outside the database. It is optional.
	Chains ChainWatch
	// LogKeys returns the keys that sign checkpoints. Without it, no checkpoint is trusted.
	LogKeys LogKeys
	// LogMarks records outside the database how far logs were signed. It is optional.
	LogMarks *keyring.LogMarks
	// Keep stores the full check of a large chain for all replicas. It is optional and may be
	// called from several goroutines.
	Keep func(context.Context, *store.FullCheckRecord)
	Now  func() ledger.Time
	Log  *slog.Logger
}

// Judge verifies stored evidence. It is safe for concurrent use.
type Judge struct {
	store *evidence.Store
	keys  ledger.Keys
	watch HeadWatch
	// ledgers is watch if it implements LedgerWatch, otherwise nil.
	ledgers LedgerWatch
	keep    func(context.Context, *store.FullCheckRecord)
	now     func() ledger.Time
	log     *slog.Logger

	chains     ChainWatch        // nil without one
	logKeys    LogKeys           // nil without them
	logMarks   *keyring.LogMarks // likewise
	timestamps Timestamps
	judged     judgedAnchors

	sound   soundReceipts
	full    fullChecks
	entries *cache.Cache[ledger.ChainID, *Entries]
	missing atomic.Pointer[[]uuid.UUID] // organizations that are watched but not stored

	// Results of the last check for an unknown ledger: whether there are receipts although the
	// watch is empty, and the stored ledger's id, or nil.
	unremembered atomic.Bool
	stored       atomic.Pointer[uuid.UUID]
}

// New returns a Judge.
func New(c Config) *Judge {
	ledgers, _ := c.Watch.(LedgerWatch)
	return &Judge{ledgers: ledgers, store: c.Store, keys: c.Keys, watch: c.Watch, chains: c.Chains, logKeys: c.LogKeys, logMarks: c.LogMarks, keep: c.Keep, now: c.Now, log: c.Log, timestamps: c.Timestamps, judged: newJudgedAnchors(), sound: newSoundReceipts(), full: newFullChecks(), entries: newEntriesCache()}
}
