package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"countersign/internal/cache"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Effort says how much work a check of a receipt may be. All make the same checks.
type Effort int

// The efforts.
const (
	// InFull reads the chain however long it is.
	InFull Effort = iota
	// Bounded reads a chain of up to MaxEntries and MaxBytes, and reuses a verdict that
	// is younger than reusable. Of a larger chain it tells the last check in full.
	Bounded
	// Rationed is Bounded for strangers: a process makes at most maxAtOnce such checks at
	// the same time. Who has waited for maxWait gets the last verdict, or ErrBusy.
	Rationed
)

// What a bounded check reads of a chain.
const (
	MaxEntries = 20_000  // events, and what was recorded about them later
	MaxBytes   = 8 << 20 // of facts, payloads and entries
)

const (
	maxAtOnce = 2
	maxWait   = 2 * time.Second
	reusable  = ledger.Time(2_000) // milliseconds
	// verdictsInUse is how many bytes of verdicts are remembered.
	verdictsInUse = 4 << 20
	verdictBytes  = 400
)

// ErrBusy says that a stranger's check was not made: too many others are under way.
var ErrBusy = fault.Errorf(fault.CodeUnavailable, "too many checks are under way, so nothing is said about this one: try again in some seconds")

// errLarge says that a chain is larger than what a bounded check reads.
var errLarge = errors.New("the chain is too large for a bounded check")

// fullChecks are the verdicts on chains that this process has come to lately. It is safe
// for concurrent use.
type fullChecks struct {
	slots    chan struct{}
	verdicts *cache.Cache[ledger.ReceiptID, *chainVerdict]
	sound    *cache.Cache[ledger.ReceiptID, soundChain]
}

func newFullChecks() fullChecks {
	return fullChecks{
		make(chan struct{}, maxAtOnce), cache.New[ledger.ReceiptID, *chainVerdict](verdictsInUse),
		cache.New[ledger.ReceiptID, soundChain](soundChainsInUse),
	}
}

// chainVerdict is what the chain behind one receipt came to. It is not changed once it is
// made.
type chainVerdict struct {
	hash   [32]byte // of the receipt
	checks []ledger.CheckResult
	at     ledger.Time // when the chain was looked at
	made   ledger.Time // when this verdict was made; later than at where it tells an older one
	full   bool        // the events and approvals were looked at
	large  bool        // it is not for a bounded check to find out
}

// chainUnknown is the verdict on a chain that was not looked at.
func chainUnknown(hash [32]byte, why string, at ledger.Time) *chainVerdict {
	v := &chainVerdict{hash: hash, at: at, made: at}
	for _, name := range []ledger.Check{ledger.CheckChain, ledger.CheckEventsDigest, ledger.CheckApprovals} {
		v.checks = append(v.checks, ledger.CheckResult{Name: name, Status: ledger.CheckNotChecked, Detail: why})
	}
	return v
}

// chainOf judges the chain behind a receipt that is sound by itself.
func (j *Judge) chainOf(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection, effort Effort) (*chainVerdict, error) {
	if effort == InFull {
		return j.lookAtChain(ctx, receipt, in, false)
	}
	known := j.knownVerdict(receipt.ID, in)
	if known == nil || known.made > j.now() || j.now()-known.made >= reusable {
		if effort == Rationed {
			release, err := j.full.enter(ctx)
			switch {
			case errors.Is(err, ErrBusy) && known != nil:
				return known, nil
			case err != nil:
				return nil, err
			}
			defer release()
			// Another may have checked the same chain while this one waited.
			if again := j.knownVerdict(receipt.ID, in); again != nil && again != known {
				return again, nil
			}
		}
		verdict, err := j.boundedVerdict(ctx, receipt, in)
		if err != nil {
			return nil, err
		}
		j.full.verdicts.Put(receipt.ID, verdict, verdictBytes)
		known = verdict
	}
	return known, nil
}

// knownVerdict is the last on the very same receipt, however old, nil without one.
func (j *Judge) knownVerdict(id ledger.ReceiptID, in *ledger.Inspection) *chainVerdict {
	known, ok := j.full.verdicts.Get(id)
	if !ok || known.hash != in.Hash {
		return nil
	}
	return known
}

// enter waits for a place among those who check.
func (f *fullChecks) enter(ctx context.Context) (release func(), err error) {
	release = func() { <-f.slots }
	select {
	case f.slots <- struct{}{}:
		return release, nil
	default:
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case f.slots <- struct{}{}:
		return release, nil
	case <-timer.C:
		return nil, ErrBusy
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// boundedVerdict looks at a chain, or, where it is too large, for the last look at it.
func (j *Judge) boundedVerdict(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection) (*chainVerdict, error) {
	if known := j.knownVerdict(receipt.ID, in); known == nil || !known.large {
		verdict, err := j.lookAtChain(ctx, receipt, in, true)
		if !errors.Is(err, errLarge) {
			return verdict, err
		}
	}
	verdict, err := j.lastFullCheck(ctx, receipt, in)
	if err != nil {
		return nil, err
	}
	verdict.large = true
	return verdict, nil
}

// lastFullCheck is what is remembered of a large chain. A row that somebody has changed
// says nothing.
func (j *Judge) lastFullCheck(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection) (*chainVerdict, error) {
	last, err := j.store.FullCheck(ctx, receipt.Org, receipt.ID)
	switch {
	case errors.Is(err, ledger.ErrStateTampered):
		j.log.Error("the record of a full check was changed outside the service: run countersign audit")
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, err
	case err == nil && last.Hash == in.Hash:
		var found *ledger.Break
		if last.Failed != "" {
			found = &ledger.Break{Check: ledger.Check(last.Failed), Detail: "the last full check failed"}
		}
		return &chainVerdict{hash: in.Hash, checks: chainChecks(found), at: last.CheckedAt, made: j.now(), full: true}, nil
	}
	return chainUnknown(in.Hash, "the chain is large, and was not checked in full yet", j.now()), nil
}

// lookAtChain holds the chain and its events against what the receipt attests.
func (j *Judge) lookAtChain(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection, bounded bool) (*chainVerdict, error) {
	now := j.now()
	verdict := &chainVerdict{hash: in.Hash, at: now, made: now, full: true}
	a := &audit{judge: j, org: &ledger.Organization{ID: receipt.Org, Slug: receipt.Slug}}
	sealed := &sealedChain{
		receipt: receipt.ID, chain: receipt.Chain, attested: in.Attested, sequence: receipt.Sequence, hash: in.Hash,
	}
	if bounded && j.soundBefore(ctx, a, sealed) {
		verdict.checks = chainChecks(nil)
		return verdict, nil
	}
	size := &extent{bounded: bounded}
	if bounded {
		size.rows = &rowHash{sha256.New()}
	}
	found, err := a.inspectWithin(ctx, sealed, size)
	if err != nil {
		return nil, err
	}
	if bounded && found == nil {
		j.full.sound.Put(receipt.ID, soundChain{receipt: in.Hash, rows: size.rows.sum()}, soundChainBytes)
	}
	verdict.checks = chainChecks(found)
	return verdict, nil
}

// soundBefore reports whether everything behind a receipt is, byte by byte, what was found
// sound before. Whatever else there is to say is for a whole check to find.
func (j *Judge) soundBefore(ctx context.Context, a *audit, sealed *sealedChain) bool {
	known, ok := j.full.sound.Get(sealed.receipt)
	if !ok || known.receipt != sealed.hash {
		return false
	}
	size := &extent{bounded: true, rows: &rowHash{sha256.New()}}
	return a.hashRows(ctx, sealed, size) == nil && size.rows.sum() == known.rows
}

// chainChecks are the checks of a chain in which a break was found, or none.
func chainChecks(found *ledger.Break) []ledger.CheckResult {
	v := &verification{}
	switch {
	case found == nil:
		v.add(ledger.CheckChain, "")
		v.add(ledger.CheckEventsDigest, "")
		v.add(ledger.CheckApprovals, "")
	case found.Check == ledger.CheckApprovals:
		v.add(ledger.CheckChain, "")
		v.add(ledger.CheckEventsDigest, "")
		v.add(ledger.CheckApprovals, found.Detail)
	case found.Check == ledger.CheckEventsDigest:
		v.add(ledger.CheckChain, "")
		v.add(ledger.CheckEventsDigest, found.Detail)
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "the chain's events failed")
	default:
		v.add(found.Check, found.Detail)
		v.skip(ledger.CheckEventsDigest, ledger.CheckNotChecked, "the chain's record failed")
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "the chain's record failed")
	}
	return v.checks
}

// extent counts what is read of a chain and found in order. What is not in order is a
// finding, however large it is: nobody makes a chain too large to be checked by what he
// puts into it.
type extent struct {
	bounded bool
	entries int64
	bytes   int64
	rows    *rowHash // over what is read; nil where nobody asks
	export  *Export  // collects what is read; nil where nobody asks
}

// claim takes the number of entries that the chain's state attests.
func (e *extent) claim(entries int64) error {
	e.entries = entries
	return e.within()
}

func (e *extent) add(bytes int) error {
	e.bytes += int64(bytes)
	return e.within()
}

func (e *extent) within() error {
	if e.bounded && e.large() || e.export != nil && e.bytes > maxExport {
		return errLarge
	}
	return nil
}

func (e *extent) large() bool { return e.entries > MaxEntries || e.bytes > MaxBytes }
