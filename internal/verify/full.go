package verify

import (
	"context"
	"errors"
	"slices"
	"time"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Effort says how much work a check of a receipt may do. All efforts perform the same checks.
type Effort int

const (
	// InFull reads the whole chain, however long it is.
	InFull Effort = iota
	// Bounded reads a chain of up to MaxEntries and MaxBytes, and reuses a verdict that is younger
	// than verdictTTL. For a larger chain it returns the result of the last full check.
	Bounded
	// Rationed is Bounded for unauthenticated callers. A process runs at most maxParallel such
	// checks at a time. A caller that has waited for maxWait gets the last verdict or ErrBusy.
	Rationed
)

// Limits of a bounded check.
const (
	MaxEntries = 20_000  // events and later entries about them
	MaxBytes   = 8 << 20 // of facts, payloads and entries
)

const (
	maxParallel = 2
	maxWait     = 2 * time.Second
	verdictTTL  = 2 * time.Second
	// maxVerdicts bounds the cache of verdicts, in bytes.
	maxVerdicts  = 4 << 20
	verdictBytes = 400
	// maxProven bounds the receipts that were proven in an epoch, in bytes.
	maxProven   = 8 << 20
	provenBytes = 60
	// unreadFor bounds how long rows count as what was read of them. Not everything that changes a
	// file tells SQLite.
	unreadFor = time.Minute
)

// ErrBusy says that an unauthenticated check was not made because too many others are running.
var ErrBusy = fault.Errorf(fault.CodeUnavailable, "too many checks are running, so this one was not made: try again in a few seconds")

var errLarge = errors.New("the chain is too large for a bounded check")

// fullChecks caches recent verdicts on chains. It is safe for concurrent use.
type fullChecks struct {
	slots    chan struct{}
	verdicts *cache.Cache[ledger.ReceiptID, *chainVerdict]
	sound    *cache.Cache[ledger.ReceiptID, soundChain]
	links    *cache.Cache[ledger.ReceiptID, *headLinks]
	proven   *cache.Cache[ledger.ReceiptID, lastRead] // see Receipts.Proven
}

func newFullChecks() fullChecks {
	return fullChecks{
		make(chan struct{}, maxParallel), cache.New[ledger.ReceiptID, *chainVerdict](maxVerdicts),
		cache.New[ledger.ReceiptID, soundChain](maxSoundChains), cache.New[ledger.ReceiptID, *headLinks](maxHeadLinks),
		cache.New[ledger.ReceiptID, lastRead](maxProven),
	}
}

// chainVerdict is the verdict on the chain behind one receipt. It is immutable.
type chainVerdict struct {
	hash   [32]byte // of the receipt
	checks []ledger.CheckResult
	at     ledger.Time // when the chain was checked
	made   ledger.Time // when this verdict was made; later than at if it repeats a stored check
	full   bool        // the events and approvals were checked
	read   lastRead    // when the rows were
	large  bool        // the chain is too large for a bounded check
	old    bool        // it was not made again, because too many other checks are running
	again  bool        // it repeats a check that was made before, and says nothing about what is stored now
}

// lastRead is when rows were read that were found in order.
type lastRead struct {
	epoch evidence.Epoch
	at    ledger.Time
}

// holds reports whether the rows are still the same, so that they need not be read.
func (l lastRead) holds(epoch evidence.Epoch, now ledger.Time) bool {
	return epoch.Known() && l.epoch == epoch && l.at <= now && now < l.at.Add(unreadFor)
}

func (v *chainVerdict) madeAt() ledger.Time { return v.made }

// chainUnknown returns the verdict on a chain that was not checked.
func chainUnknown(hash [32]byte, why string, at ledger.Time) *chainVerdict {
	v := &chainVerdict{hash: hash, at: at, made: at}
	for _, name := range chainChecked {
		v.checks = append(v.checks, ledger.CheckResult{Name: name, Status: ledger.CheckNotChecked, Detail: why})
	}
	return v
}

// chainOf judges the chain behind a receipt that is sound on its own.
func (r *Receipts) chainOf(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection, effort Effort) (*chainVerdict, error) {
	if effort == InFull {
		return r.checkChain(ctx, receipt, in, false)
	}
	var made *chainVerdict
	verdict, busy, err := recent(ctx, r, effort,
		func() *chainVerdict { return r.knownVerdict(receipt.ID, in) },
		func() (verdict *chainVerdict, err error) {
			verdict, err = r.boundedVerdict(ctx, receipt, in)
			made = verdict
			if err == nil {
				r.full.verdicts.Put(receipt.ID, verdict, verdictBytes)
			}
			return verdict, err
		})
	if err == nil && verdict != made {
		before := *verdict
		before.old, before.again = busy, true
		verdict = &before
	}
	return verdict, err
}

// recent returns the last result of a check, known, if it is younger than verdictTTL, and makes
// the check otherwise. A rationed check waits for a slot. If there is none in time, the result is
// the last one, however old, and busy is true.
func recent[T interface {
	comparable
	madeAt() ledger.Time
}](ctx context.Context, r *Receipts, effort Effort, known func() T, check func() (T, error)) (result T, busy bool, err error) {
	var none T
	last := known()
	if now := r.now(); last != none && last.madeAt() <= now && now < last.madeAt().Add(verdictTTL) {
		return last, false, nil
	}
	if effort == Rationed {
		release, err := r.full.acquire(ctx)
		switch {
		case errors.Is(err, ErrBusy) && last != none:
			return last, true, nil
		case err != nil:
			return none, false, err
		}
		defer release()
		// Another caller may have made the same check during the wait.
		if again := known(); again != none && again != last {
			return again, false, nil
		}
	}
	result, err = check()
	return result, false, err
}

// knownVerdict returns the last verdict on exactly this receipt, however old, or nil.
func (r *Receipts) knownVerdict(id ledger.ReceiptID, in *ledger.Inspection) *chainVerdict {
	known, ok := r.full.verdicts.Get(id)
	if !ok || known.hash != in.Hash {
		return nil
	}
	return known
}

// acquire waits for a slot.
func (f *fullChecks) acquire(ctx context.Context) (release func(), err error) {
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

// boundedVerdict checks a chain, or returns the last stored check if the chain is too large.
func (r *Receipts) boundedVerdict(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection) (*chainVerdict, error) {
	if known := r.knownVerdict(receipt.ID, in); known == nil || !known.large {
		verdict, err := r.checkChain(ctx, receipt, in, true)
		if !errors.Is(err, errLarge) {
			return verdict, err
		}
	}
	verdict, err := r.lastFullCheck(ctx, receipt, in)
	if err != nil {
		return nil, err
	}
	verdict.large = true
	return verdict, nil
}

// lastFullCheck returns the stored result for a large chain. A tampered row counts as no result.
func (r *Receipts) lastFullCheck(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection) (*chainVerdict, error) {
	last, err := r.store.FullCheck(ctx, receipt.Org, receipt.ID)
	switch {
	case errors.Is(err, ledger.ErrStateTampered):
		r.log.Error("the record of a full check was changed outside the service: run countersign audit")
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, err
	case err == nil && last.Hash == in.Hash:
		found, at, err := r.failedSince(ctx, receipt, last)
		if err != nil {
			return nil, err
		}
		return &chainVerdict{hash: in.Hash, checks: chainChecks(found), at: at, made: r.now(), full: true, again: true}, nil
	}
	return chainUnknown(in.Hash, "the chain is large, and was not checked in full yet", r.now()), nil
}

// failedSince returns what the last full check of a large chain found, or nil, and when. A check that
// failed later has left a finding: then the stored result is an older one that was put back.
func (r *Receipts) failedSince(ctx context.Context, receipt *store.PlacedReceipt, last *store.FullCheckRecord) (*ledger.Break, ledger.Time, error) {
	const detail = "the last full check failed"
	if last.Failed != "" {
		return &ledger.Break{Check: ledger.Check(last.Failed), Detail: detail}, last.CheckedAt, nil
	}
	for _, check := range chainChecked {
		t := &Tampering{Check: check, Receipt: receipt.ID}
		finding, err := r.store.Finding(ctx, store.FindingRef{Org: receipt.Org, Name: t.Name()})
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return nil, 0, err
		case !finding.Tampered && finding.SeenAt > last.CheckedAt:
			return &ledger.Break{Check: check, Detail: detail}, finding.SeenAt, nil
		}
	}
	return nil, last.CheckedAt, nil
}

// checkChain checks the chain and its events against what the receipt attests.
func (r *Receipts) checkChain(ctx context.Context, receipt *store.PlacedReceipt, in *ledger.Inspection, bounded bool) (*chainVerdict, error) {
	now := r.now()
	verdict := &chainVerdict{hash: in.Hash, at: now, made: now, full: true, read: lastRead{r.store.Epoch(), now}}
	a := &chainAudit{reader: r.reader, org: &ledger.Organization{ID: receipt.Org, Slug: receipt.Slug}}
	sealed := &sealedChain{
		receipt: receipt.ID, chain: receipt.Chain, attested: in.Attested, sequence: receipt.Sequence, hash: in.Hash,
	}
	if bounded && r.knownSound(ctx, a, sealed, &verdict.read) {
		verdict.checks = chainChecks(nil)
		return verdict, nil
	}
	size := &extent{bounded: bounded}
	if bounded {
		size.rows = newRowHash()
	}
	found, err := a.inspectWithin(ctx, sealed, size)
	if err != nil {
		return nil, err
	}
	if bounded && found == nil {
		r.full.sound.Put(receipt.ID, soundChain{receipt: in.Hash, rows: size.rows.sum(), read: verdict.read}, soundChainBytes)
	}
	verdict.checks = chainChecks(found)
	return verdict, nil
}

// knownSound reports whether every row behind a receipt is byte for byte what was found sound
// before. If not, a whole check says why. It reads nothing while the last reading holds, and then
// sets read to that one.
func (r *Receipts) knownSound(ctx context.Context, a *chainAudit, sealed *sealedChain, read *lastRead) bool {
	known, ok := r.full.sound.Get(sealed.receipt)
	if !ok || known.receipt != sealed.hash {
		return false
	}
	if known.read.holds(read.epoch, read.at) {
		*read = known.read
		return true
	}
	size := &extent{bounded: true, rows: newRowHash()}
	if a.hashRows(ctx, sealed, size) != nil || size.rows.sum() != known.rows {
		return false
	}
	known.read = *read
	r.full.sound.Put(sealed.receipt, known, soundChainBytes)
	return true
}

// Proven returns the result for a receipt that Prove has found to be in order in this epoch: then it
// still is, and nothing need be read. It returns nil if that is not known.
func (r *Receipts) Proven(id ledger.ReceiptID, epoch evidence.Epoch) *ledger.Verification {
	if read, ok := r.full.proven.Get(id); !ok || !read.holds(epoch, r.now()) {
		return nil
	}
	v := r.newVerification(ledger.ArtifactReceipt, id.UUID)
	v.Checks = provenChecks
	v.Integrity, v.Evidence = receiptFindings(v.Checks)
	return v
}

// provenChecks are the results of a receipt that is in order and has a successor.
var provenChecks = func() []ledger.CheckResult {
	v := &verification{}
	for _, name := range receiptChecked {
		v.add(name, "")
	}
	return append(v.checks, chainChecks(nil)...)
}()

// forget has everything behind a receipt read again that failed a check: if it was changed without
// SQLite, its epoch goes on.
func (f *fullChecks) forget(id ledger.ReceiptID) {
	f.proven.Drop(id)
	f.sound.Drop(id)
}

// Prove verifies a receipt for an outsider. The epoch must have been taken before the receipt was
// read.
func (r *Receipts) Prove(ctx context.Context, receipt *store.PlacedReceipt, epoch evidence.Epoch) (*ledger.Verification, error) {
	v, chain, err := r.verify(ctx, receipt, Rationed)
	if err != nil {
		return nil, err
	}
	// A receipt without a successor will get one, and an anchored one has anchors to be judged.
	if inOrder := slices.Equal(v.Checks, provenChecks); inOrder && chain.read.holds(epoch, r.now()) && !receipt.Anchored {
		r.full.proven.Put(receipt.ID, chain.read, provenBytes)
	}
	return v, nil
}

// chainChecks returns the results of a chain's checks, given the break that was found, or nil.
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

// extent measures the sound part of a chain that was read. Anything that is not sound is a finding
// regardless of its size, so an attacker cannot make a chain too large to be checked.
type extent struct {
	bounded bool
	entries int64
	bytes   int64
	rows    *rowHash // hashes what is read; may be nil
	export  *Export  // collects what is read; may be nil
}

// claim sets the number of entries that the chain's state attests.
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
