package worker

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
)

const (
	// innerRetry is the retry delay of work that depends only on the store and is never given up.
	innerRetry = 5 * time.Second
	// anchorRetry is the retry delay of an anchor if the store failed: nobody waits for it.
	anchorRetry = 5 * time.Minute
	// checkRetry is the retry delay if a ledger or its chains could not be read.
	checkRetry = 10 * time.Minute
	// recordTimeout bounds storing the result of a job.
	recordTimeout = 10 * time.Second
	// deadlineLogs is how many failures of one deadline or expiry share a log line, because it is
	// retried every few seconds indefinitely.
	deadlineLogs = 100
)

var (
	errUnknownKind = errors.New("this version does not support the job's kind")
	errPanicked    = errors.New("the job panicked")
)

// work makes one attempt and stores its result.
func (w *Worker) work(ctx context.Context, job *service.Job) {
	timed, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	err := w.attempt(timed, job)
	if err != nil && ctx.Err() != nil {
		w.release(ctx, job)
		return
	}
	w.recordResult(ctx, job, err)
}

// attempt runs the job and removes it from the queue if it succeeds. A panic must not end the
// server: the job has then failed.
func (w *Worker) attempt(ctx context.Context, job *service.Job) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			w.Log.Error("a job panicked", "kind", job.Kind, "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	switch job.Kind {
	case service.JobDeadline:
		return w.jobs.Deadline(ctx, job)
	case service.JobKeyExpiry:
		return w.jobs.KeyExpiry(ctx, job)
	case service.JobNotice:
		return w.jobs.FanOut(ctx, job)
	case service.JobWebhook:
		return w.post(ctx, job)
	case service.JobEmail:
		return w.mail(ctx, job)
	case service.JobSlack:
		return w.slack(ctx, job)
	case service.JobAnchor:
		return w.anchor(ctx, job)
	case service.JobCheck:
		return w.jobs.CheckLedger(ctx, job, w.CheckEvery)
	case service.JobAbandon:
		return w.jobs.Abandon(ctx, job)
	}
	return errUnknownKind
}

// recording returns the context to store the result of a job in, also if the job's time is up.
func recording(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
}

// recordResult decides whether a job that failed is retried, and when.
func (w *Worker) recordResult(ctx context.Context, job *service.Job, err error) {
	if err == nil {
		w.Meter.JobDone(job.Kind)
		return
	}
	w.Service.NoteTampering(job.Org, err)
	ctx, cancel := recording(ctx)
	defer cancel()
	if onlyWaits(err) {
		w.logUnstored(job, w.jobs.Retry(ctx, job, w.retryDelay(job, err), err.Error()))
		return
	}
	if hopeless(job, err) {
		w.Meter.JobBuried(job.Kind)
		w.Log.Warn("a job is given up", "kind", job.Kind, "attempts", job.Attempts, "reason", reason(err))
		w.logUnstored(job, w.jobs.Bury(ctx, job, err.Error()))
		return
	}
	w.Meter.JobRetried(job.Kind)
	w.logRetry(job, err)
	if notify.RateLimited(err) && job.Kind == service.JobSlack {
		w.logUnstored(job, w.jobs.FinishWith(ctx, job, []*service.Job{w.again(job, err)}))
		return
	}
	w.logUnstored(job, w.jobs.Retry(ctx, job, w.retryDelay(job, err), err.Error()))
}

// again returns a job that replaces one whose attempts should not count: a new job has made none. It
// may be overtaken by others of its stream.
func (w *Worker) again(job *service.Job, err error) *service.Job {
	due := ledger.TimeOf(w.Clock().Add(w.retryDelay(job, err)))
	return &service.Job{Org: job.Org, Kind: job.Kind, Stream: job.Stream, RunAt: due, DueAt: job.DueAt, Body: job.Body}
}

// onlyWaits reports whether nothing is wrong and the job is only not due yet.
func onlyWaits(err error) bool {
	var unanchored *unanchoredError
	return errors.As(err, &unanchored) && unanchored.err == nil
}

// hopeless reports whether a job is given up. That never happens to a deadline, because an
// approval's time passes whatever the store does, to a key's expiry, which the audit log must
// contain, or to a self-check and a search for abandoned chains, which queue their successors. An
// anchor may take many attempts, and only its own verdict counts.
func hopeless(job *service.Job, err error) bool {
	switch job.Kind {
	case service.JobDeadline, service.JobCheck, service.JobAbandon, service.JobKeyExpiry:
		return false
	case service.JobAnchor:
		var unanchored *unanchoredError
		return errors.As(err, &unanchored) && unanchored.final
	}
	// An attempt that was not made, or that says nothing, does not count as the last one.
	return notify.Permanent(err) || job.Attempts >= notify.MaxAttempts && !errors.Is(err, errHanging) && !notify.RateLimited(err)
}

// retryDelay returns how long to wait before the next attempt.
func (w *Worker) retryDelay(job *service.Job, err error) time.Duration {
	switch job.Kind {
	case service.JobDeadline, service.JobKeyExpiry:
		return innerRetry
	case service.JobNotice, service.JobWebhook, service.JobEmail:
		asked, _ := notify.RetryAfter(err)
		return max(asked, notify.Backoff(job.Attempts, w.Random()))
	case service.JobSlack:
		asked, _ := notify.RetryAfter(err)
		if notify.RateLimited(err) {
			return asked + time.Duration(w.Random()*float64(asked)) // not all that wait at the same moment
		}
		return max(asked, notify.Backoff(job.Attempts, w.Random()))
	case service.JobAnchor:
		var unanchored *unanchoredError
		if errors.As(err, &unanchored) {
			return unanchored.wait
		}
		return anchorRetry
	}
	return checkRetry
}

// release returns a job that was not attempted, or whose attempt was interrupted here. It is due
// immediately for another worker.
func (w *Worker) release(ctx context.Context, job *service.Job) {
	ctx, cancel := recording(ctx)
	defer cancel()
	w.logUnstored(job, w.jobs.Retry(ctx, job, 0, "the worker stopped"))
}

// logUnstored logs that a result could not be stored. The job's lease expires, and it runs again.
func (w *Worker) logUnstored(job *service.Job, err error) {
	if err != nil {
		w.Log.Warn("the result of a job could not be stored: it will run again", "kind", job.Kind, "reason", reason(err))
	}
}

func (w *Worker) logRetry(job *service.Job, err error) {
	switch job.Kind {
	case service.JobAnchor:
		w.Log.Info("an anchor could not be made and will be retried", "attempts", job.Attempts, "reason", reason(err))
	case service.JobWebhook, service.JobEmail, service.JobSlack:
		w.Log.Info("a delivery failed and will be retried", "kind", job.Kind, "attempts", job.Attempts, "reason", reason(err))
	default:
		if job.Kind == service.JobCheck || job.Kind == service.JobAbandon || job.Attempts%deadlineLogs == 1 {
			w.Log.Warn("a job failed and will be retried", "kind", job.Kind, "attempts", job.Attempts, "reason", reason(err))
		}
	}
}

// reason returns what a log may say about an error: the fixed words of a delivery, the reason of an
// anchor, and of anything else only its code. The full text is stored with the job.
func reason(err error) string {
	var undelivered *undeliveredError
	var unanchored *unanchoredError
	var own *fault.Error
	switch {
	case errors.As(err, &undelivered):
		return undelivered.Error()
	case errors.As(err, &unanchored):
		return string(unanchored.reason)
	case errors.Is(err, errUnknownKind):
		return errUnknownKind.Error()
	case errors.As(err, &own):
		return string(own.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	}
	return string(fault.CodeInternal)
}
