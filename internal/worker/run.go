package worker

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"countersign/internal/fault"
	"countersign/internal/notify"
	"countersign/internal/service"
)

const (
	// innerRetry is how soon work is tried again that needs nobody but the store.
	innerRetry = 5 * time.Second
	// anchorRetry is how soon an anchor is tried again when it was the store that
	// failed: nobody waits for it.
	anchorRetry = 5 * time.Minute
	// checkRetry is how soon a ledger or chains that could not be read are looked at again.
	checkRetry = 10 * time.Minute
	// aftermath bounds the writing down of what became of a job.
	aftermath = 10 * time.Second
	// deadlineLogs is how many failures of one deadline share a log line: it is
	// tried every few seconds for as long as it takes.
	deadlineLogs = 100
)

var (
	errUnknownKind = errors.New("this version does not know the job's kind")
	errPanicked    = errors.New("the job panicked")
)

// work makes one attempt and writes down what became of it.
func (w *Worker) work(ctx context.Context, job *service.Job) {
	timed, cancel := context.WithTimeout(ctx, longestJob)
	defer cancel()
	err := w.attempt(timed, job)
	if err != nil && ctx.Err() != nil {
		w.giveBack(ctx, job)
		return
	}
	w.settle(ctx, job, err)
}

// attempt does the job; done, it is out of the queue. One that panics must not take
// the server with it: it has failed, as others do.
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
	case service.JobAnchor:
		return w.anchor(ctx, job)
	case service.JobCheck:
		return w.jobs.CheckLedger(ctx, job, span(w.CheckEvery))
	case service.JobAbandon:
		return w.jobs.Abandon(ctx, job)
	}
	return errUnknownKind
}

// settle decides whether a job that failed is tried again, and when.
func (w *Worker) settle(ctx context.Context, job *service.Job, err error) {
	if err == nil {
		w.Meter.JobDone(job.Kind)
		return
	}
	w.Service.NoteTampering(job.Org, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aftermath)
	defer cancel()
	if onlyWaits(err) {
		w.written(job, w.jobs.Retry(ctx, job, span(w.patience(job, err)), err.Error()))
		return
	}
	if hopeless(job, err) {
		w.Meter.JobBuried(job.Kind)
		w.Log.Warn("a job is given up", "kind", job.Kind, "attempts", job.Attempts, "reason", reason(err))
		w.written(job, w.jobs.Bury(ctx, job, err.Error()))
		return
	}
	w.Meter.JobRetried(job.Kind)
	w.logRetry(job, err)
	w.written(job, w.jobs.Retry(ctx, job, span(w.patience(job, err)), err.Error()))
}

// onlyWaits: nothing went wrong, and the job's time has not come yet.
func onlyWaits(err error) bool {
	var unanchored *unanchoredError
	return errors.As(err, &unanchored) && unanchored.err == nil
}

// hopeless: an approval's time passes whatever the store says, so a deadline
// never is; nor is a key's expiry, which the audit log must tell, nor a check of the
// ledger or a search for abandoned chains, without which there is no next. An anchor
// may take many attempts, and only its own verdict counts.
func hopeless(job *service.Job, err error) bool {
	switch job.Kind {
	case service.JobDeadline, service.JobCheck, service.JobAbandon, service.JobKeyExpiry:
		return false
	case service.JobAnchor:
		var unanchored *unanchoredError
		return errors.As(err, &unanchored) && unanchored.final
	}
	// What was not tried is not given up.
	return notify.Permanent(err) || job.Attempts >= notify.MaxAttempts && !errors.Is(err, errHanging)
}

// patience is how long to wait before the next attempt.
func (w *Worker) patience(job *service.Job, err error) time.Duration {
	switch job.Kind {
	case service.JobDeadline, service.JobNotice, service.JobKeyExpiry:
		return innerRetry
	case service.JobWebhook, service.JobEmail:
		asked, _ := notify.RetryAfter(err)
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

// giveBack returns a job that was not attempted, or whose attempt was broken off
// here: it is due at once for whoever comes next.
func (w *Worker) giveBack(ctx context.Context, job *service.Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aftermath)
	defer cancel()
	w.written(job, w.jobs.Retry(ctx, job, 0, "the worker stopped"))
}

// written notes what could not be written down. The job's lease runs out, and it
// is done once more.
func (w *Worker) written(job *service.Job, err error) {
	if err != nil {
		w.Log.Warn("what became of a job was not stored: it will be done again", "kind", job.Kind, "reason", reason(err))
	}
}

func (w *Worker) logRetry(job *service.Job, err error) {
	switch job.Kind {
	case service.JobAnchor:
		w.Log.Info("an anchor could not be had and will be tried again", "attempts", job.Attempts, "reason", reason(err))
	case service.JobWebhook, service.JobEmail:
		w.Log.Info("a delivery failed and will be tried again", "kind", job.Kind, "attempts", job.Attempts, "reason", reason(err))
	default:
		if job.Kind == service.JobCheck || job.Kind == service.JobAbandon || job.Attempts%deadlineLogs == 1 {
			w.Log.Warn("a job failed and will be tried again", "kind", job.Kind, "attempts", job.Attempts, "reason", reason(err))
		}
	}
}

// reason is what a log may say of an error: the words of a delivery, which are
// fixed, the reason of an anchor, and of anything else no more than its code. The
// whole text stands with the job in the store.
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
