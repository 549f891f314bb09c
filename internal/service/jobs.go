package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Jobs provides the use cases of the worker. A job that was queued in a transaction runs after
// it, at least once.
type Jobs struct{ service *Service }

// Job is a piece of queued work.
type Job = store.Job

// Jobs returns the use cases of the worker.
func (s *Service) Jobs() *Jobs { return &Jobs{s} }

// jobHorizons is how long after its first due time a job may still start, by kind.
// Kinds that are not listed are idempotent and must run however late: the
// deadline of an approval, the expiry of a key, an anchor.
var jobHorizons = map[string]time.Duration{
	// A delivery has ten attempts, and a receiver may ask for a day between two of them. Up
	// to three deliveries wait in one stream, such as those of an approval.
	JobNotice: 30 * oneDay, JobWebhook: 30 * oneDay, JobEmail: 30 * oneDay, JobSlack: 30 * oneDay,
	// A lost job is queued again within the hour.
	JobCheck: 7 * oneDay, JobAbandon: 7 * oneDay,
}

// refusedJob reports to the organization a job that the service did not queue.
func (s *findingService) refusedJob(ctx context.Context, job *store.Job) {
	s.log.Error("a job was queued or changed outside the service, and was not run: run countersign audit", "kind", knownKind(job.Kind))
	s.reportOrLog(ctx, job.Org, verify.RowChanged(evidence.FailingJobOf(job)))
}

// knownKind returns a job's kind for the log. An unknown kind may be text of an attacker.
func knownKind(kind string) string {
	switch kind {
	case JobDeadline, JobKeyExpiry, JobNotice, JobWebhook, JobEmail, JobSlack, JobAnchor, JobCheck, JobAbandon:
		return kind
	}
	return "unknown"
}

// Sweep buries jobs that must not run, and would never be claimed.
func (j *Jobs) Sweep(ctx context.Context) error {
	_, err := j.service.store.SweepJobs(ctx, j.service.now())
	return err
}

// Claim leases due jobs for the given time. The capacity bounds the number of
// jobs of each kind.
func (j *Jobs) Claim(ctx context.Context, lease time.Duration, capacity map[string]int) ([]*store.Job, error) {
	now := j.service.now()
	return j.service.store.ClaimJobs(ctx, now, now.Add(lease), capacity)
}

// Finish removes a completed job.
func (j *Jobs) Finish(ctx context.Context, job *store.Job) error {
	return j.service.store.FinishJob(ctx, job, nil)
}

// FinishWith removes a completed job and queues the jobs that follow, in one transaction.
func (j *Jobs) FinishWith(ctx context.Context, job *store.Job, follow []*store.Job) error {
	return j.service.store.FinishJob(ctx, job, follow)
}

// Retry reschedules a job to run after the given time.
func (j *Jobs) Retry(ctx context.Context, job *store.Job, after time.Duration, fault string) error {
	return j.service.store.RetryJob(ctx, job, j.service.now().Add(after), fault)
}

// Bury gives up on a job. It stays in the store.
func (j *Jobs) Bury(ctx context.Context, job *store.Job, fault string) error {
	return j.service.store.BuryJob(ctx, job, fault)
}

// Count counts the waiting and the buried jobs.
func (j *Jobs) Count(ctx context.Context) (waiting, buried int64, err error) {
	return j.service.store.CountJobs(ctx)
}

// Deadline advances an approval, and queues the job again until the approval has ended.
func (j *Jobs) Deadline(ctx context.Context, job *store.Job) error {
	id, err := ledger.ParseID(string(job.Body))
	if err != nil {
		return fmt.Errorf("deadline job without the id of an approval: %w", err)
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

// FanOut turns a notice into one delivery for each endpoint and one e-mail, and finishes the
// notice in the same transaction.
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
		j.reportIfTampered(ctx, endpoint)
		if subscribes(endpoint, notice.Kind) {
			follow = append(follow, webhookJob(now, endpoint, message{id: messageID(job), notice: job.Body, trigger: TriggerEvent, stream: job.Stream}))
		}
	}
	email, err := j.email(ctx, job, &notice)
	if err != nil {
		return err
	}
	if len(email.to) > 0 {
		follow = append(follow, emailJob(job, email, now))
	}
	return j.service.store.FinishJob(ctx, job, follow)
}

// endpoints lists the organization's endpoints that may receive a kind of notice.
func (j *Jobs) endpoints(ctx context.Context, org ledger.OrgID, kind notify.Kind) ([]*store.WebhookRecord, error) {
	if kind == notify.LedgerTamperFound {
		return j.service.store.EndpointsToWarn(ctx, org)
	}
	return j.service.store.Webhooks(ctx, org)
}

// Delivery is a message for one receiver.
type Delivery struct {
	MessageID string
	Trigger   string // the cause: one of the Trigger constants
	Notice    []byte // as sent
	Webhook   *store.WebhookRecord
	Secret    ledger.Secret
	To        []string // recipients of an e-mail
}

// message is a message to an endpoint.
type message struct {
	id      string // the same for all attempts and receivers
	notice  []byte
	trigger string
	stream  string // of the notice; "" for none
}

// webhookJob returns the job for a delivery. Its body is the message and the id of the
// endpoint in canonical JSON.
func webhookJob(now ledger.Time, endpoint *store.WebhookRecord, m message) *store.Job {
	w := canon.BeginObject(nil)
	w.String("message_id", m.id)
	w.Raw("notice", m.notice)
	w.String("trigger", m.trigger)
	w.String("webhook_id", endpoint.ID.String())
	stream := m.stream
	if stream != "" {
		stream = endpoint.ID.String() + "/" + stream
	}
	return &store.Job{Org: endpoint.Org, Kind: JobWebhook, Stream: stream, RunAt: now, Body: w.End()}
}

// messageID returns an id that is the same for all attempts and receivers of a message. It is
// unique even across installations and restored copies.
func messageID(job *store.Job) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d %d ", job.Org, job.No, job.RunAt)
	h.Write(job.Body)
	return "msg-" + hex.EncodeToString(h.Sum(nil)[:16])
}

func emailJob(job *store.Job, email email, now ledger.Time) *store.Job {
	w := canon.BeginObject(nil)
	w.String("message_id", messageID(job))
	w.Raw("notice", email.notice)
	w.Strings("to", email.to)
	stream := job.Stream
	if stream != "" {
		stream = "email/" + stream
	}
	return &store.Job{Org: job.Org, Kind: JobEmail, Stream: stream, RunAt: now, Body: w.End()}
}

// Delivery reads a delivery job. It returns ErrNotFound if the webhook was deleted or
// disabled.
func (j *Jobs) Delivery(ctx context.Context, job *store.Job) (*Delivery, error) {
	v, err := canon.Parse(job.Body)
	if err != nil {
		return nil, fmt.Errorf("unreadable delivery job: %w", err)
	}
	text := func(name string) string { member, _ := v.Get(name); return member.Str() }
	notice, _ := v.Get("notice")
	// A job of an earlier version has no trigger.
	d := &Delivery{MessageID: text("message_id"), Trigger: cmp.Or(text("trigger"), TriggerEvent), Notice: notice.Append(nil)}
	if job.Kind == JobEmail {
		to, _ := v.Get("to")
		for _, address := range to.Items() {
			d.To = append(d.To, address.Str())
		}
		return d, nil
	}
	decoded, err := notify.Decode(d.Notice)
	if err != nil {
		return nil, err
	}
	endpoints, err := j.endpoints(ctx, job.Org, decoded.Kind)
	if err != nil {
		return nil, err
	}
	for _, endpoint := range endpoints {
		if endpoint.ID.String() != text("webhook_id") {
			continue
		}
		j.reportIfTampered(ctx, endpoint)
		if isActive(endpoint) {
			d.Webhook = endpoint
			plain, err := j.service.secrets.Open(job.Org.UUID, webhookSecretLabel+endpoint.ID.String(), endpoint.Secret)
			d.Secret = ledger.NewSecret(string(plain))
			return d, err
		}
	}
	return nil, fault.ErrNotFound
}

// reportIfTampered reports an endpoint that was changed outside the service. Callers send
// nothing to it.
func (j *Jobs) reportIfTampered(ctx context.Context, endpoint *store.WebhookRecord) {
	if endpoint.Tampered {
		j.service.reportOrLog(ctx, endpoint.Org, &verify.Tampering{Check: ledger.CheckRegistry, Place: "webhook " + endpoint.ID.String()})
	}
}

// DisableWebhook disables an endpoint that answered 410 Gone.
func (j *Jobs) DisableWebhook(ctx context.Context, org ledger.OrgID, id ledger.WebhookID) error {
	return j.service.disableWebhook(ctx, org, id)
}

// The kinds of jobs.
const (
	JobDeadline  = verify.JobDeadline
	JobKeyExpiry = "api_key.expiry" // body: the key's id
	JobNotice    = "notice"         // body: a notify.Notice, to be fanned out
	JobWebhook   = "webhook"        // body: see Delivery
	JobEmail     = "email"
)

// queueNotice queues a notice about a change in the transaction of that change. Notices of one
// stream are delivered in order.
func (b *batch) queueNotice(org *ledger.Organization, n notify.Notice, stream string) {
	if org.Controls.Webhooks == 0 && !mailed[n.Kind] {
		return
	}
	n.At, n.Organization = b.now, org.Slug
	if n.Link == "" {
		n.Link = b.service.link(&n)
	}
	body, err := n.Encode()
	if err != nil {
		// The notice consists of validated names, so failing to encode it is a bug, and no
		// reason to refuse the change.
		b.service.log.Error("encoding a notice failed", "kind", string(n.Kind), "error", err)
		return
	}
	b.changes.NewJobs = append(b.changes.NewJobs, &store.Job{Org: org.ID, Kind: JobNotice, Stream: stream, RunAt: b.now, Body: body})
}

// mailed holds the kinds of notices that are sent by e-mail.
var mailed = map[notify.Kind]bool{notify.ApprovalRequested: true, notify.ApprovalEscalated: true, notify.LedgerTamperFound: true}

// link returns the console's page for a notice; "" if the service does not know its own
// address.
func (s *shared) link(n *notify.Notice) string {
	switch {
	case s.publicURL == "":
		return ""
	case n.ApprovalID != "":
		return s.publicURL + "/approvals/" + n.ApprovalID
	case n.ReceiptID != "":
		return s.publicURL + "/receipts/" + n.ReceiptID
	case n.ChainID != "":
		return s.publicURL + "/chains/" + n.ChainID
	}
	return s.publicURL + "/"
}

// afterCommit announces the changes of a committed batch.
func (s *Service) afterCommit(b *batch) {
	if c := &b.changes; len(c.NewChains)+len(c.NewEvents)+len(c.States)+len(c.Heads)+len(c.Logs) > 0 {
		s.storage.wrote() // a transaction without writes proves nothing
	}
	s.judge.Heads.Note(b.changes.Heads)
	if s.signer != nil {
		s.signer.Add(b.sealed)
	}
	s.noteLogs(b.changes.Logs)
	if len(b.changes.NewJobs) > 0 {
		s.jobsAdded()
	}
}

// approvalNotice returns the notice about an approval.
func approvalNotice(kind notify.Kind, chain *ledger.Chain, a *ledger.Approval) notify.Notice {
	n := notify.Notice{
		Kind: kind, Chain: chain.Name, Environment: chain.Environment, ChainID: chain.ID.String(), ApprovalID: a.ID.String(),
		Agent: a.AgentName, Action: a.ActionName, Amount: a.Reserved.Facts.Amount,
		Policy: a.PolicyName, Reason: a.Reason, Rules: a.Matched, Status: string(a.Status), Source: a.DecidedBy(),
	}
	if a.Status.Open() {
		n.ExpiresAt = a.ExpiresAt
	}
	if a.DeniedBy != nil {
		n.Policy, n.Reason = a.DeniedBy.PolicyName, a.DeniedBy.Reason
	}
	if a.Reviewer != nil {
		n.Reviewer = a.Reviewer.Name
	}
	return n
}

// email is an e-mail to be sent.
type email struct {
	to     []string
	notice []byte // encoded
}

// email returns the e-mail for a notice: to the approvers that the rule names when a decision
// is requested, and to the fallback approvers when half the time has passed or tampering was
// found.
func (j *Jobs) email(ctx context.Context, job *store.Job, notice *notify.Notice) (email, error) {
	switch {
	case !mailed[notice.Kind]:
		return email{}, nil
	case notice.Kind == notify.LedgerTamperFound:
		org, err := j.service.store.Organization(ctx, job.Org)
		if err != nil {
			return email{}, err
		}
		return email{j.service.tamperRecipients(org), job.Body}, nil
	}
	approval, err := j.approvalOf(ctx, notice)
	switch {
	case err != nil || approval == nil:
		return email{}, err
	case notice.Kind == notify.ApprovalRequested:
		return email{ledger.Addresses(approval.Approvers), job.Body}, nil
	case len(approval.Fallback) > 0:
		return email{approval.Escalate, job.Body}, nil
	}
	return j.untrustedEmail(job, approval, *notice)
}

// approvalOf returns the approval that a notice is about; nil if it was deleted.
func (j *Jobs) approvalOf(ctx context.Context, notice *notify.Notice) (*ledger.Approval, error) {
	id, err := ledger.ParseID(notice.ApprovalID)
	if err != nil {
		return nil, fmt.Errorf("notice without the id of an approval: %w", err)
	}
	record, err := j.service.store.Approval(ctx, ledger.ApprovalID{UUID: id})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return j.service.store.ReadApproval(record)
}

// untrustedEmail returns the e-mail to addresses that an agent chose. It contains no text of
// the agent, and the number of such e-mails is limited: otherwise an agent's key could be used
// to send arbitrary mail to anyone.
func (j *Jobs) untrustedEmail(job *store.Job, approval *ledger.Approval, notice notify.Notice) (email, error) {
	// The environment is text of the agent, too, and a reason may repeat the agent's name.
	notice.Chain, notice.Environment, notice.Agent, notice.Action, notice.Reason = "", "", "", "", ""
	notice.Amount, notice.Rules = nil, nil
	body, err := notice.Encode()
	if err != nil {
		return email{}, err
	}
	allowed := j.service.untrustedMails.take(job.No, approval, j.service.now())
	if dropped := len(approval.Escalate) - allowed; dropped > 0 {
		j.service.log.Warn("e-mails to a chain's own fallback approvers were dropped: too many within an hour", "mails", dropped, "chain_id", approval.Chain.String())
	}
	return email{approval.Escalate[:allowed], body}, nil
}

// untrustedMailCount counts the e-mails of the last hour to addresses that agents chose. Each server
// counts its own.
type untrustedMailCount struct {
	mu   sync.Mutex // guards the field below
	sent []untrustedMails
}

// untrustedMails are the e-mails of one job.
type untrustedMails struct {
	job   int64
	chain ledger.ChainID
	key   ledger.KeyID
	at    ledger.Time
	count int
}

// Bounds for the e-mails of any hour to addresses that agents chose.
const (
	maxMailsPerChain = 5
	maxMailsPerKey   = 20
)

// take counts the e-mails of an approval and returns how many of them the job may send.
func (m *untrustedMailCount) take(job int64, approval *ledger.Approval, now ledger.Time) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = slices.DeleteFunc(m.sent, func(u untrustedMails) bool { return now.Sub(u.at) >= time.Hour })
	ofChain, ofKey := 0, 0
	for _, u := range m.sent {
		if u.job == job { // one that is retried does not count again
			return u.count
		}
		if u.chain == approval.Chain {
			ofChain += u.count
		}
		if u.key == approval.OpenedBy {
			ofKey += u.count
		}
	}
	allowed := max(min(len(approval.Escalate), maxMailsPerChain-ofChain, maxMailsPerKey-ofKey), 0)
	if allowed > 0 { // so that there are no more entries than e-mails were sent
		m.sent = append(m.sent, untrustedMails{job, approval.Chain, approval.OpenedBy, now, allowed})
	}
	return allowed
}

// anchorService anchors decisions and heads in time.
type anchorService struct {
	*shared
	findings  *findingService
	anchoring []string // methods; empty for no anchoring
}

// JobAnchor creates one anchor, or follows up on it.
const JobAnchor = "anchor"

// anchorJobs returns the jobs that anchor a subject by the given methods.
func anchorJobs(methods []string, org ledger.OrgID, kind string, subject uuid.UUID, sequence int64, digest [32]byte, now ledger.Time) []*store.Job {
	jobs := make([]*store.Job, 0, len(methods))
	for _, method := range methods {
		w := canon.BeginObject(nil)
		w.String("digest", hex.EncodeToString(digest[:]))
		w.String("kind", kind)
		w.String("method", method)
		w.Int("sequence", sequence)
		w.String("subject", subject.String())
		jobs = append(jobs, &store.Job{Org: org, Kind: JobAnchor, Stream: kind + "/" + subject.String() + "/" + method, RunAt: now, Body: w.End()})
	}
	return jobs
}

// AnchorHeads queues the anchoring of each organization's newest receipt that is not anchored
// yet. The worker calls it hourly.
func (s *anchorService) AnchorHeads(ctx context.Context) error {
	if len(s.anchoring) == 0 {
		return nil
	}
	orgs, err := s.findings.organizations(ctx)
	if err != nil {
		return err
	}
	// Tampering with one organization must not block the anchoring of the others.
	var failed []error
	for _, org := range orgs {
		if err := s.anchorHead(ctx, org); err != nil {
			s.findings.NoteTampering(org.ID, err)
			failed = append(failed, visible(err))
		}
	}
	return errors.Join(failed...)
}

// AnchorHead queues the anchoring of the caller's newest receipt now.
func (s *anchorService) AnchorHead(ctx context.Context, caller *Caller) error {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return err
	}
	if len(s.anchoring) == 0 {
		return fault.Errorf(fault.CodeInvalid, "no anchors are configured: start the server with --tsa-url or --ots-calendars")
	}
	org, err := s.store.Organization(ctx, caller.Org)
	if err != nil {
		return visible(err)
	}
	return visible(s.anchorHead(ctx, org))
}

func (s *anchorService) anchorHead(ctx context.Context, org *ledger.Organization) error {
	receipt, err := s.judge.Receipts.Newest(ctx, org)
	if err != nil || receipt == nil {
		return err
	}
	known, err := s.store.Anchors(ctx, org.ID, store.AnchorSubject{Kind: ledger.SubjectHead, ID: receipt.ID.UUID})
	if err != nil {
		return err
	}
	methods := slices.DeleteFunc(slices.Clone(s.anchoring), func(method string) bool {
		return slices.ContainsFunc(known, func(record *store.AnchorRecord) bool { return record.Method == method && !record.Tampered })
	})
	if len(methods) == 0 {
		return nil
	}
	return s.committer.commit(ctx, &queueJobs{anchorJobs(methods, org.ID, ledger.SubjectHead, receipt.ID.UUID, receipt.Sequence, receipt.Hash(), s.now())})
}

// queueJobs is an operation that only queues jobs.
type queueJobs struct{ jobs []*store.Job }

// tenant is zero: the service itself queues the jobs, for any organization.
func (o *queueJobs) tenant() ledger.OrgID { return ledger.OrgID{} }
func (o *queueJobs) size() int            { return smallOperation }
func (o *queueJobs) need(*store.Needs)    {}
func (o *queueJobs) plan(b *batch) error {
	b.changes.NewJobs = append(b.changes.NewJobs, o.jobs...)
	return nil
}

// Anchor reads an anchor job, with the proof so far.
func (j *Jobs) Anchor(ctx context.Context, job *store.Job) (*ledger.Anchor, error) {
	v, err := canon.Parse(job.Body)
	if err != nil {
		return nil, fmt.Errorf("unreadable anchor job: %w", err)
	}
	text := func(name string) string { member, _ := v.Get(name); return member.Str() }
	digest, err := hex.DecodeString(text("digest"))
	if err != nil || len(digest) != 32 {
		return nil, errors.New("anchor job without a digest")
	}
	subject, err := ledger.ParseID(text("subject"))
	if err != nil {
		return nil, fmt.Errorf("anchor job without a subject: %w", err)
	}
	sequence, _ := v.Get("sequence")
	number, _ := sequence.Int()
	anchor := &ledger.Anchor{
		Org: job.Org, Kind: text("kind"), Subject: subject, Sequence: number, Method: text("method"),
		Digest: [32]byte(digest), Standing: ledger.AnchorPending,
	}
	known, err := j.service.store.Anchors(ctx, job.Org, store.AnchorSubject{Kind: anchor.Kind, ID: subject})
	if err != nil {
		return nil, err
	}
	for _, record := range known {
		if record.Method == anchor.Method && record.Digest == anchor.Digest && !record.Tampered {
			anchor.Standing, anchor.Reason, anchor.Proof = ledger.AnchorStanding(record.Status), record.Reason, record.Proof
			anchor.Block = record.Block
		}
	}
	return anchor, nil
}

// SaveAnchor stores the status of an anchor. A verified anchor is also entered into the audit
// log in the same transaction, so that an audit knows which anchors must exist.
func (j *Jobs) SaveAnchor(ctx context.Context, anchor *ledger.Anchor) error {
	record := &store.AnchorRecord{
		Org: anchor.Org, Subject: store.AnchorSubject{Kind: anchor.Kind, ID: anchor.Subject}, Sequence: anchor.Sequence, Method: anchor.Method,
		Digest: anchor.Digest, Status: string(anchor.Standing), Reason: anchor.Reason, Proof: anchor.Proof,
		Block: anchor.Block, UpdatedAt: j.service.now(),
	}
	if anchor.Standing != ledger.AnchorVerified {
		return j.service.store.PutAnchor(ctx, record)
	}
	return j.service.committer.commit(ctx, &makeAnchor{anchor, record})
}

// makeAnchor writes a verified anchor with its audit log entry. It does not change the
// organization, so it locks only the audit log.
type makeAnchor struct {
	anchor *ledger.Anchor
	record *store.AnchorRecord
}

func (o *makeAnchor) tenant() ledger.OrgID { return o.anchor.Org }

func (o *makeAnchor) size() int { return smallOperation + len(o.record.Proof) }

func (o *makeAnchor) need(needs *store.Needs) {
	needs.Orgs = append(needs.Orgs, o.anchor.Org)
	needs.Logs = append(needs.Logs, o.anchor.Org)
}

func (o *makeAnchor) plan(b *batch) error {
	org, err := b.org(o.anchor.Org)
	if err != nil {
		return err
	}
	if err := b.logAct(ledger.ActorService, org, anchorAuditEntry(o.anchor)); err != nil {
		return err
	}
	b.changes.Anchors = append(b.changes.Anchors, o.record)
	return nil
}

func anchorAuditEntry(anchor *ledger.Anchor) *auditEntry {
	return &auditEntry{action: ledger.ActAnchorMade, target: anchor.Subject.String(), detail: anchor.MadeDetail()}
}
