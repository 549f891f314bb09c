package worker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"time"

	"countersign/internal/anchor"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
)

// Anchoring configures how digests are anchored. Anchors of a method that is not configured stay
// pending, until a replica or a restart has it.
type Anchoring struct {
	Authority Authority // nil: no RFC 3161 authority
	Calendars Calendars // nil: no OpenTimestamps calendars
	Bitcoin   anchor.Bitcoin
}

// Authority returns tokens that it has verified; see anchor.Authority.
type Authority interface {
	Stamp(ctx context.Context, digest [32]byte, nonce uint64) ([]byte, error)
}

// Calendars return proofs and upgrade them; see anchor.Calendars.
type Calendars interface {
	Stamp(ctx context.Context, digest [32]byte, nonce [16]byte) ([]byte, error)
	Upgrade(ctx context.Context, proof []byte) (upgraded []byte, changed bool, err error)
}

// Reasons in addition to those of package anchor.
const (
	noHeaderSource anchor.Reason = "no_header_source"
	notConfigured  anchor.Reason = "not_configured"
)

const (
	// blockWait is how often the calendars are asked about a proof: there is a block every ten
	// minutes, and calendars wait for some more to follow it.
	blockWait = 30 * time.Minute
	// After patientChecks checks, which is days, a proof waits for something unusual and is checked
	// less often.
	patientChecks = 4 * 48
	longBlockWait = 6 * time.Hour
	// upgradeTime leaves a part of the attempt for the block headers, even if every calendar hangs.
	upgradeTime = jobTimeout * 2 / 3

	// maxRefusals is how often an authority may refuse or lie before that is final.
	maxRefusals = 4
	// slowestAttempt is the last step of the retry schedule for a server that is unreachable. Being
	// unreachable is not a verdict, so the attempts never end.
	slowestAttempt = 5
)

// unanchoredError says why there is no anchor yet, or never will be.
type unanchoredError struct {
	reason anchor.Reason
	err    error         // nil if nothing is wrong and it only takes time
	final  bool          // the anchor has failed
	wait   time.Duration // until the next attempt
}

func (e *unanchoredError) Error() string {
	if e.err == nil {
		return "the proof waits for a block"
	}
	return e.err.Error()
}

func (e *unanchoredError) Unwrap() error { return e.err }

var errNotConfigured = errors.New("the method is no longer configured")

// anchor makes an anchor or follows it up.
func (w *Worker) anchor(ctx context.Context, job *service.Job) error {
	known, err := w.jobs.Anchor(ctx, job)
	if err != nil {
		return err
	}
	next := *known
	var fault *unanchoredError
	switch {
	case known.Standing == ledger.AnchorVerified: // the job was queued twice
	case known.Method == ledger.MethodTSA:
		fault = w.stamp(ctx, job, &next)
	case known.Method == ledger.MethodOpenTimestamps:
		fault = w.prove(ctx, job, &next)
	default:
		return errUnknownKind
	}
	if fault == nil || string(next.Proof) != string(known.Proof) {
		// The answer may have come when the job's time was almost up. It is stored all the same: an
		// authority may charge for another one, and a calendar would begin anew.
		var cancel context.CancelFunc
		ctx, cancel = recording(ctx)
		defer cancel()
	}
	if err := w.saveAnchor(ctx, known, &next, fault); err != nil {
		return err
	}
	if fault != nil {
		return fault
	}
	return w.jobs.Finish(ctx, job)
}

// saveAnchor stores the anchor's new status.
func (w *Worker) saveAnchor(ctx context.Context, known, next *ledger.Anchor, fault *unanchoredError) error {
	switch {
	case fault == nil:
		next.Standing, next.Reason = ledger.AnchorVerified, ""
	case fault.final:
		next.Standing, next.Reason = ledger.AnchorFailed, string(fault.reason)
	default:
		next.Standing, next.Reason = ledger.AnchorPending, string(fault.reason)
	}
	stored := known.Proof != nil || known.Reason != "" || known.Standing != ledger.AnchorPending
	moved := next.Standing != known.Standing || !stored
	if !moved && next.Reason == known.Reason && string(next.Proof) == string(known.Proof) {
		return nil
	}
	if err := w.jobs.SaveAnchor(ctx, next); err != nil {
		return err
	}
	if moved {
		w.Meter.AnchorMoved(next.Method, string(next.Standing))
	}
	return nil
}

// stamp requests a token from the authority. A broken answer can be an accident in transit, so it
// is not final immediately.
func (w *Worker) stamp(ctx context.Context, job *service.Job, a *ledger.Anchor) *unanchoredError {
	if w.Anchoring.Authority == nil {
		return w.outOfReach(job, notConfigured, errNotConfigured)
	}
	token, err := w.Anchoring.Authority.Stamp(ctx, a.Digest, nonce())
	if err == nil {
		a.Proof = token
		return nil
	}
	reason := anchor.ReasonOf(err)
	if reason == anchor.Unavailable || reason == "" {
		return w.outOfReach(job, anchor.Unavailable, err)
	}
	return &unanchoredError{
		reason: reason, err: err, final: job.Attempts >= maxRefusals, wait: notify.Backoff(job.Attempts, w.Random()),
	}
}

func (w *Worker) outOfReach(job *service.Job, reason anchor.Reason, err error) *unanchoredError {
	return &unanchoredError{reason: reason, err: err, wait: notify.Backoff(min(job.Attempts, slowestAttempt), w.Random())}
}

// nonce returns a random nonce that is not 0, which means none.
func nonce() uint64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return binary.BigEndian.Uint64(random[:]) | 1
}

// prove gets a proof from the calendars, or upgrades the existing one, and verifies it.
func (w *Worker) prove(ctx context.Context, job *service.Job, a *ledger.Anchor) *unanchoredError {
	if w.Anchoring.Calendars == nil {
		return w.outOfReach(job, notConfigured, errNotConfigured)
	}
	if len(a.Proof) == 0 {
		var random [16]byte
		_, _ = rand.Read(random[:]) // never fails
		proof, err := w.Anchoring.Calendars.Stamp(ctx, a.Digest, random)
		if err != nil {
			return w.outOfReach(job, orUnavailable(err), err)
		}
		a.Proof = proof
		return w.awaitBlock(job, "", nil)
	}
	fault := w.upgrade(ctx, a)
	verdict, err := w.Anchoring.Bitcoin.Verify(ctx, a.Proof, a.Digest)
	switch {
	case err != nil && w.Anchoring.Bitcoin.Headers == nil:
		return w.awaitBlock(job, noHeaderSource, err)
	case err != nil:
		return w.awaitBlock(job, orUnavailable(err), err)
	case verdict.Status == anchor.Failed:
		return &unanchoredError{reason: verdict.Reason, err: errors.New("the proof is not valid"), final: true}
	case verdict.Status == anchor.Pending && fault != nil:
		return w.awaitBlock(job, orUnavailable(fault), fault)
	case verdict.Status == anchor.Pending:
		return w.awaitBlock(job, "", nil)
	}
	a.Block = verdict.Block()
	return nil
}

func (w *Worker) upgrade(ctx context.Context, a *ledger.Anchor) error {
	ctx, cancel := context.WithTimeout(ctx, upgradeTime)
	defer cancel()
	proof, changed, err := w.Anchoring.Calendars.Upgrade(ctx, a.Proof)
	if changed {
		a.Proof = proof
	}
	return err
}

func (w *Worker) awaitBlock(job *service.Job, reason anchor.Reason, err error) *unanchoredError {
	wait := blockWait
	if job.Attempts > patientChecks {
		wait = longBlockWait
	}
	const spread = 0.2
	return &unanchoredError{reason: reason, err: err, wait: wait + time.Duration(float64(wait)*spread*w.Random())}
}

// orUnavailable returns the reason of an error, or Unavailable if it has none.
func orUnavailable(err error) anchor.Reason {
	if reason := anchor.ReasonOf(err); reason != "" {
		return reason
	}
	return anchor.Unavailable
}
