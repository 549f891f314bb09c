package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
)

// undeliveredError is a failure in the words of package notify, which do not repeat anything that a
// peer said.
type undeliveredError struct{ error }

func (e *undeliveredError) Unwrap() error { return e.error }

func undelivered(err error) error {
	if err == nil {
		return nil
	}
	return &undeliveredError{err}
}

// post delivers to a webhook. A delivery that is no longer wanted is finished.
func (w *Worker) post(ctx context.Context, job *service.Job) error {
	d, err := w.jobs.Delivery(ctx, job)
	if errors.Is(err, fault.ErrNotFound) {
		return w.jobs.Finish(ctx, job)
	}
	if err != nil {
		return err
	}
	attempt := w.try(ctx, job, d)
	if attempt.Err == nil {
		// It has arrived. If the worker is stopped now, it must not be sent again.
		var cancel context.CancelFunc
		ctx, cancel = recording(ctx)
		defer cancel()
	}
	if err := w.jobs.LogDelivery(ctx, job, d, attempt); err != nil {
		w.Log.Warn("an attempt to deliver is missing in the log of its webhook", "reason", reason(err))
	}
	if err = attempt.Err; notify.EndpointGone(err) {
		if err := w.jobs.DisableWebhook(ctx, job.Org, d.Webhook.ID); err != nil {
			w.Log.Warn("a webhook that answered 410 could not be disabled: the next delivery tries again", "reason", reason(err))
		}
	}
	if err != nil {
		return undelivered(err)
	}
	return w.jobs.Finish(ctx, job)
}

// try makes one attempt to deliver to a webhook.
func (w *Worker) try(ctx context.Context, job *service.Job, d *service.Delivery) service.Attempt {
	a := service.Attempt{Number: job.Attempts, At: w.Clock(), State: service.DeliveryDelivered}
	a.Code, a.Err = w.deliver(ctx, d, a.At)
	a.Took = w.Clock().Sub(a.At)
	switch {
	case a.Err == nil:
	case ctx.Err() == nil && hopeless(job, a.Err):
		a.State = service.DeliveryFailed
	default:
		a.State = service.DeliveryRetrying
	}
	return a
}

// deliver delivers to a webhook, unless its receiver hangs and another delivery is under way.
func (w *Worker) deliver(ctx context.Context, d *service.Delivery, at time.Time) (code int, err error) {
	trial, may := w.endpoints.begin(d.Webhook.ID)
	if !may {
		return 0, errHanging
	}
	silent := true // if it panics: a trial must end in any case
	defer func() { w.endpoints.end(d.Webhook.ID, trial, silent) }()
	to := notify.Endpoint{URL: d.Webhook.URL, Secrets: []ledger.Secret{d.Secret}}
	code, err = w.Webhooks.Deliver(ctx, to, d.MessageID, at, d.Notice)
	silent = notify.TimedOut(err)
	return code, err
}

// mail sends an e-mail to one person. An e-mail to several becomes a job for each, because a mail
// server that refuses one of them would refuse it for all.
func (w *Worker) mail(ctx context.Context, job *service.Job) error {
	if w.Mailer == nil {
		w.noMailer.Do(func() {
			w.Log.Warn("no mail server is configured, so e-mails are dropped: name one with --smtp-url-file")
		})
		return w.jobs.Finish(ctx, job)
	}
	d, err := w.jobs.Delivery(ctx, job)
	if err != nil {
		return err
	}
	if len(d.To) != 1 {
		return w.jobs.FinishWith(ctx, job, w.split(job, d))
	}
	notice, err := notify.Decode(d.Notice)
	if err != nil {
		return err
	}
	if err := w.Mailer.Send(ctx, d.MessageID, d.To, notice); err != nil {
		return undelivered(err)
	}
	ctx, cancel := recording(ctx) // as for a webhook
	defer cancel()
	return w.jobs.Finish(ctx, job)
}

// split makes a delivery for each recipient, in the recipient's own stream: nobody waits for
// another's mailbox, and everyone receives messages in order.
func (w *Worker) split(job *service.Job, d *service.Delivery) []*service.Job {
	now := ledger.TimeOf(w.Clock())
	jobs := make([]*service.Job, len(d.To))
	for i, address := range d.To {
		stream := job.Stream
		if stream != "" {
			stream += "/" + address
		}
		body := canon.BeginObject(nil)
		body.String("message_id", fmt.Sprintf("%s-%d", d.MessageID, i+1))
		body.Raw("notice", d.Notice)
		body.Strings("to", []string{address})
		jobs[i] = &service.Job{Org: job.Org, Kind: service.JobEmail, Stream: stream, RunAt: now, DueAt: job.DueAt, Body: body.End()}
	}
	return jobs
}

// slack brings the message about an approval up to date.
func (w *Worker) slack(ctx context.Context, job *service.Job) error {
	if w.Slack == nil {
		w.noSlack.Do(func() {
			w.Log.Warn("no Slack app is configured, so messages to Slack are dropped: name one with --slack-token-file and --slack-signing-secret-file")
		})
		return w.jobs.Finish(ctx, job)
	}
	message, err := w.jobs.Slack(ctx, job)
	if err != nil {
		return err
	}
	if message == nil {
		return w.jobs.Finish(ctx, job)
	}
	ts, err := w.Slack.Send(ctx, message.Channel, message.TS, message.Approval)
	if err != nil {
		return undelivered(err)
	}
	ctx, cancel := recording(ctx) // as for a webhook
	defer cancel()
	return w.jobs.FinishSlack(ctx, job, message, ts)
}
