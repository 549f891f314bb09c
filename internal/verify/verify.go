// Package verify checks what is stored: whether a receipt, an approval or a whole ledger is what
// the service acknowledged, and whether the database was rolled back. It only reads. The self-check
// passes what it finds to a Reporter, which stores it; other checks return it.
package verify

import (
	"context"
	"log/slog"

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

// Judge verifies stored evidence: whole ledgers itself, everything else through its parts. It is
// safe for concurrent use, and its fields do not change.
type Judge struct {
	*reader
	Receipts  *Receipts
	Approvals *Approvals
	Heads     *Heads
	Chains    *Chains
	Logs      *Logs
	Findings  *Findings

	entries *cache.Cache[ledger.ChainID, *Entries]
}

// New returns a Judge.
func New(c Config) *Judge {
	r := &reader{store: c.Store, keys: c.Keys, keep: c.Keep, now: c.Now, log: c.Log}
	stamps := &anchors{reader: r, timestamps: c.Timestamps, judged: newJudgedAnchors()}
	ledgers, _ := c.Watch.(LedgerWatch)
	return &Judge{
		reader:    r,
		Receipts:  &Receipts{reader: r, anchors: stamps, sound: newSoundReceipts(), full: newFullChecks()},
		Approvals: &Approvals{reader: r, anchors: stamps},
		Heads:     &Heads{reader: r, watch: c.Watch, ledgers: ledgers, logMarks: c.LogMarks},
		Chains:    &Chains{reader: r, watch: c.Chains},
		Logs:      &Logs{reader: r, logKeys: c.LogKeys, logMarks: c.LogMarks},
		Findings:  &Findings{r},
		entries:   newEntriesCache(),
	}
}

// MissingArtifact returns the verification of an artifact that is not stored. The service deletes
// none, so it has failed.
func (j *Judge) MissingArtifact(artifact string, id uuid.UUID) *ledger.Verification {
	v := j.newVerification(artifact, id)
	v.Integrity = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "artifact_missing"}
	return v
}
