package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Jobs are the use cases of the worker: what was queued in a transaction is done
// after it, at least once.
type Jobs struct{ service *Service }

// Job is a piece of queued work.
type Job = store.Job

// Jobs returns the use cases of the worker.
func (s *Service) Jobs() *Jobs { return &Jobs{s} }

// jobHorizons are how long after it was first due a job may still begin, by kind, in
// milliseconds. Kinds that are not here do what their cause says is due at the moment,
// however often they run, and must run however late: an approval's deadline, a key's
// expiry, an anchor.
var jobHorizons = map[string]ledger.Time{
	// A delivery is tried ten times, and a receiver may ask for a day between two tries.
	// Three may stand behind each other in a stream, as those of an approval do.
	JobNotice: 30 * oneDay, JobWebhook: 30 * oneDay, JobEmail: 30 * oneDay,
	// One that is lost is queued anew within the hour.
	JobCheck: 7 * oneDay, JobAbandon: 7 * oneDay,
}

// refusedJob tells an organization of a job that somebody put into the queue in its name.
func (s *Service) refusedJob(ctx context.Context, job *store.Job) {
	s.log.Error("a job was put into the queue or changed outside the service, and was not run: run countersign audit", "kind", knownKind(job.Kind))
	s.tellOrLog(ctx, job.Org, verify.RowChanged(evidence.FailingJobOf(job)))
}

// knownKind is a job's kind as a log may say it: somebody else may have written it.
func knownKind(kind string) string {
	switch kind {
	case JobDeadline, JobKeyExpiry, JobNotice, JobWebhook, JobEmail, JobAnchor, JobCheck, JobAbandon:
		return kind
	}
	return "unknown"
}

// Sweep buries jobs that must not run and that no claim comes to.
func (j *Jobs) Sweep(ctx context.Context) error {
	_, err := j.service.store.SweepJobs(ctx, j.service.now())
	return err
}

// Claim leases jobs that are due until the given span has passed: of each kind as
// many as there is room for, and none of the others.
func (j *Jobs) Claim(ctx context.Context, span ledger.Time, room map[string]int) ([]*store.Job, error) {
	now := j.service.now()
	return j.service.store.ClaimJobs(ctx, now, now+span, room)
}

// Finish removes a job that is done.
func (j *Jobs) Finish(ctx context.Context, job *store.Job) error {
	return j.service.store.FinishJob(ctx, job, nil)
}

// FinishWith removes a job that is done and queues what follows from it, all or
// nothing.
func (j *Jobs) FinishWith(ctx context.Context, job *store.Job, follow []*store.Job) error {
	return j.service.store.FinishJob(ctx, job, follow)
}

// Retry puts a job back for later.
func (j *Jobs) Retry(ctx context.Context, job *store.Job, after ledger.Time, fault string) error {
	return j.service.store.RetryJob(ctx, job, j.service.now()+after, fault)
}

// Bury gives a job up.
func (j *Jobs) Bury(ctx context.Context, job *store.Job, fault string) error {
	return j.service.store.BuryJob(ctx, job, fault)
}

// Count counts the jobs that wait and those that were given up.
func (j *Jobs) Count(ctx context.Context) (waiting, buried int64, err error) {
	return j.service.store.CountJobs(ctx)
}

// Deadline moves an approval on and keeps the job until the approval has ended.
func (j *Jobs) Deadline(ctx context.Context, job *store.Job) error {
	id, err := ledger.ParseID(string(job.Body))
	if err != nil {
		return fmt.Errorf("a deadline without an approval: %w", err)
	}
	next, err := j.service.AdvanceApproval(ctx, ledger.ApprovalID{UUID: id})
	if err != nil {
		return err
	}
	if next == 0 {
		return j.Finish(ctx, job)
	}
	return j.service.store.FinishJob(ctx, job, []*store.Job{{Org: job.Org, Kind: JobDeadline, RunAt: next, Body: job.Body}})
}

// FanOut turns a notice into one delivery for each endpoint and one for the
// people who are told by e-mail, and finishes the notice in the same transaction.
func (j *Jobs) FanOut(ctx context.Context, job *store.Job) error {
	notice, err := notify.Decode(job.Body)
	if err != nil {
		return err
	}
	endpoints, err := j.endpoints(ctx, job.Org, notice.Kind)
	if err != nil {
		return err
	}
	now := j.service.now()
	var follow []*store.Job
	for _, endpoint := range endpoints {
		j.tellIfTampered(ctx, endpoint)
		if wants(endpoint, notice.Kind) {
			follow = append(follow, webhookJob(job.Org, endpoint, messageID(job), job.Body, now, job.Stream))
		}
	}
	letter, err := j.letter(ctx, job, &notice)
	if err != nil {
		return err
	}
	if len(letter.to) > 0 {
		follow = append(follow, emailJob(job, letter, now))
	}
	return j.service.store.FinishJob(ctx, job, follow)
}

// endpoints are those of an organization that may be told of something.
func (j *Jobs) endpoints(ctx context.Context, org ledger.OrgID, kind notify.Kind) ([]*store.WebhookRecord, error) {
	if kind == notify.LedgerTamperFound {
		return j.service.store.EndpointsToWarn(ctx, org)
	}
	return j.service.store.Webhooks(ctx, org)
}

// Delivery is a message on its way to one receiver.
type Delivery struct {
	MessageID string
	Notice    []byte // as the receiver gets it
	Webhook   *store.WebhookRecord
	Secret    ledger.Secret
	To        []string // of an e-mail
}

// A job to deliver carries, in canonical JSON, where the message goes and the
// message itself.
func webhookJob(org ledger.OrgID, endpoint *store.WebhookRecord, messageID string, notice []byte, now ledger.Time, stream string) *store.Job {
	w := canon.BeginObject(nil)
	w.String("message_id", messageID)
	w.Raw("notice", notice)
	w.String("webhook_id", endpoint.ID.String())
	if stream != "" {
		stream = endpoint.ID.String() + "/" + stream
	}
	return &store.Job{Org: org, Kind: JobWebhook, Stream: stream, RunAt: now, Body: w.End()}
}

// messageID is the same for every attempt and every receiver, and no two messages
// share one, whichever installation or restored copy they come from.
func messageID(job *store.Job) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d %d ", job.Org, job.No, job.RunAt)
	h.Write(job.Body)
	return "msg-" + hex.EncodeToString(h.Sum(nil)[:16])
}

func emailJob(job *store.Job, letter letter, now ledger.Time) *store.Job {
	w := canon.BeginObject(nil)
	w.String("message_id", messageID(job))
	w.Raw("notice", letter.notice)
	w.Strings("to", letter.to)
	stream := job.Stream
	if stream != "" {
		stream = "email/" + stream
	}
	return &store.Job{Org: job.Org, Kind: JobEmail, Stream: stream, RunAt: now, Body: w.End()}
}

// Delivery reads a job to deliver. A webhook that is not wanted any more is
// ledger.ErrNotFound.
func (j *Jobs) Delivery(ctx context.Context, job *store.Job) (*Delivery, error) {
	v, err := canon.Parse(job.Body)
	if err != nil {
		return nil, fmt.Errorf("a delivery that cannot be read: %w", err)
	}
	text := func(name string) string { member, _ := v.Get(name); return member.Str() }
	notice, _ := v.Get("notice")
	d := &Delivery{MessageID: text("message_id"), Notice: notice.Append(nil)}
	if job.Kind == JobEmail {
		to, _ := v.Get("to")
		for _, address := range to.Items() {
			d.To = append(d.To, address.Str())
		}
		return d, nil
	}
	told, err := notify.Decode(d.Notice)
	if err != nil {
		return nil, err
	}
	endpoints, err := j.endpoints(ctx, job.Org, told.Kind)
	if err != nil {
		return nil, err
	}
	for _, endpoint := range endpoints {
		if endpoint.ID.String() != text("webhook_id") {
			continue
		}
		j.tellIfTampered(ctx, endpoint)
		if wanted(endpoint) {
			d.Webhook = endpoint
			plain, err := j.service.secrets.Open(job.Org.UUID, webhookSecretLabel+endpoint.ID.String(), endpoint.Secret)
			d.Secret = ledger.NewSecret(string(plain))
			return d, err
		}
	}
	return nil, ledger.ErrNotFound
}

// tellIfTampered tells the organization of an endpoint that was changed outside the
// service. The endpoint itself is told nothing more.
func (j *Jobs) tellIfTampered(ctx context.Context, endpoint *store.WebhookRecord) {
	if endpoint.Tampered {
		j.service.tellOrLog(ctx, endpoint.Org, &verify.Tampering{Check: ledger.CheckRegistry, Place: "webhook " + endpoint.ID.String()})
	}
}

// Gone stops telling an endpoint that says it exists no more.
func (j *Jobs) Gone(ctx context.Context, org ledger.OrgID, id ledger.WebhookID) error {
	return j.service.disableWebhook(ctx, org, id)
}
