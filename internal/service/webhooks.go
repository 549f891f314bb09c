package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"countersign/internal/cache"
	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// webhookService manages the endpoints that receive notifications, and tests them.
type webhookService struct {
	*shared
	deliverer       Deliverer
	mail            bool // the server sends e-mail
	slack           bool // the server has a Slack app
	privateWebhooks bool // endpoints may be at addresses that are not public
	escalationHooks *cache.Cache[ledger.OrgID, escalationHook]
	untrustedMails  untrustedMailCount
	tests           chan struct{} // semaphore: holds a value for each running test
}

// WebhookRequest is a request to add an endpoint.
type WebhookRequest struct {
	URL         string
	Events      []string
	Description string
}

// ParseWebhookRequest reads the body of a request that creates a webhook.
func ParseWebhookRequest(v canon.Value) (*WebhookRequest, error) {
	f := canon.NewFields(v)
	request := &WebhookRequest{
		URL:         f.RequiredName("url", 2000),
		Events:      f.Texts("events", int64(len(notify.Kinds())), 100),
		Description: f.Name("description", 200),
	}
	for i, kind := range request.Events {
		if !notify.Kind(kind).Known() {
			f.Fault("events", "element %d is no kind of event", i)
		}
	}
	return request, f.Err()
}

const (
	webhookSecretLabel = "webhook/" // followed by the id of the record
	maxWebhooks        = 20         // of one organization
)

// CreateWebhook adds an endpoint. The secret that signs its messages is returned once.
func (s *webhookService) CreateWebhook(ctx context.Context, caller *Caller, request *WebhookRequest) (*store.WebhookRecord, ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, ledger.Secret{}, err
	}
	if err := notify.CheckURL(request.URL, s.privateWebhooks); err != nil {
		return nil, ledger.Secret{}, fault.Invalid(fault.FieldError{Pointer: "/url", Detail: err.Error()})
	}
	secret := notify.NewSecret(s.entropy())
	id := ledger.WebhookID{UUID: s.timedID(s.now())}
	sealed, err := s.secrets.Seal(caller.Org.UUID, webhookSecretLabel+id.String(), []byte(secret.Reveal()))
	if err != nil {
		return nil, ledger.Secret{}, fmt.Errorf("seal a webhook's secret: %w", err)
	}
	record := &store.WebhookRecord{
		ID: id, Org: caller.Org, URL: request.URL,
		Events: request.Events, Description: request.Description, Secret: sealed, CreatedAt: s.now(),
	}
	err = s.govern(ctx, caller, func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		if org.Controls.Webhooks >= maxWebhooks {
			return nil, fault.Errorf(fault.CodeInvalid, "there are %d webhooks, the most there can be: delete one first", maxWebhooks)
		}
		org.Controls.Webhooks++
		b.changes.Webhooks = append(b.changes.Webhooks, record)
		return webhookAuditEntry(ledger.ActWebhookCreate, record, "", webhookStatus(record)), nil
	})
	if err != nil {
		return nil, ledger.Secret{}, err
	}
	return record, secret, nil
}

// Webhooks lists the organization's endpoints.
func (s *webhookService) Webhooks(ctx context.Context, caller *Caller) ([]*store.WebhookRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	records, err := s.store.Webhooks(ctx, caller.Org)
	return records, visible(err)
}

// DeleteWebhook deletes an endpoint. It is idempotent.
func (s *webhookService) DeleteWebhook(ctx context.Context, caller *Caller, id ledger.WebhookID) error {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return err
	}
	return s.changeWebhook(ctx, caller, caller.Org, id, ledger.ActWebhookDelete, func(record *store.WebhookRecord, now ledger.Time) {
		record.DeletedAt = &now
	})
}

// disableWebhook disables an endpoint that answered 410 Gone.
func (s *webhookService) disableWebhook(ctx context.Context, org ledger.OrgID, id ledger.WebhookID) error {
	return s.changeWebhook(ctx, nil, org, id, ledger.ActWebhookDisable, func(record *store.WebhookRecord, now ledger.Time) {
		record.DisabledAt = &now
	})
}

func (s *webhookService) changeWebhook(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.WebhookID, action string, change func(*store.WebhookRecord, ledger.Time)) error {
	op := &act{caller: caller, actor: ledger.ActorService, org: org}
	op.needs = func(needs *store.Needs) { needs.Webhooks = append(needs.Webhooks, id) }
	op.change = func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		loaded := b.loaded.Webhooks[id]
		if loaded == nil || loaded.Org != org.ID {
			return nil, fault.ErrNotFound
		}
		// Of a record that was tampered with, only the id is known. Deleting it replaces it
		// by an empty row. The record may never have been counted, and subtracting it could
		// disable the others, so the count stays one too high.
		before, record := isActive(loaded), *loaded
		record.Tampered = false
		change(&record, b.now)
		if loaded.Tampered && record.DeletedAt == nil {
			return nil, errWebhookTampered
		}
		if record.DeletedAt != nil && loaded.DeletedAt != nil || isActive(&record) == before && record.DeletedAt == nil {
			return nil, nil
		}
		if before && !isActive(&record) {
			org.Controls.Webhooks = max(org.Controls.Webhooks-1, 0)
		}
		b.loaded.Webhooks[id] = &record
		b.changes.Webhooks = append(b.changes.Webhooks, &record)
		return webhookAuditEntry(action, &record, webhookStatus(loaded), webhookStatus(&record)), nil
	}
	return s.committer.commit(ctx, op)
}

// isActive reports whether an endpoint receives notifications.
func isActive(record *store.WebhookRecord) bool {
	return record.DeletedAt == nil && record.DisabledAt == nil && !record.Tampered
}

// subscribes reports whether an endpoint receives notifications of a kind.
func subscribes(record *store.WebhookRecord, kind notify.Kind) bool {
	return isActive(record) && (len(record.Events) == 0 || slices.Contains(record.Events, string(kind)))
}

// The states of a message after an attempt to deliver it.
const (
	DeliveryDelivered = "delivered"
	DeliveryRetrying  = "retrying" // another attempt follows
	DeliveryFailed    = "failed"   // no other attempt follows
)

// The causes of an attempt.
const (
	TriggerEvent      = "event"
	TriggerTest       = "test"
	TriggerRedelivery = "redelivery"
)

const (
	keptDeliveries = 200         // attempts in the log of one webhook
	deliveryAge    = 30 * oneDay // after which an attempt is deleted

	// maxWebhookTests is how many tests of webhooks may run in a process: each holds a
	// request open until the receiver answers.
	maxWebhookTests = 8
	// logTimeout bounds how long storing an attempt may take.
	logTimeout = 10 * time.Second
)

// Deliverer makes one attempt to deliver to a webhook.
type Deliverer interface {
	Deliver(ctx context.Context, to notify.Endpoint, messageID string, at time.Time, body []byte) (status int, err error)
}

// Attempt is the result of one attempt to deliver.
type Attempt struct {
	Number int // starts at 1
	At     time.Time
	Took   time.Duration
	Code   int // the HTTP status of the answer; 0 without one
	Err    error
	State  string // one of the Delivery constants
}

// logDelivery stores an attempt in the webhook's log. It ignores the end of ctx, because the
// attempt was made.
func (s *webhookService) logDelivery(ctx context.Context, org ledger.OrgID, d *Delivery, a Attempt) (*store.DeliveryRecord, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logTimeout)
	defer cancel()
	notice, err := notify.Decode(d.Notice)
	if err != nil {
		return nil, err
	}
	at := ledger.TimeOf(a.At)
	record := &store.DeliveryRecord{
		ID: ledger.DeliveryID{UUID: s.timedID(at)}, Org: org, Webhook: d.Webhook.ID, MessageID: d.MessageID, Kind: string(notice.Kind), Trigger: d.Trigger,
		Attempt: int64(a.Number), State: a.State, Code: int64(a.Code), At: at, Duration: a.Took.Truncate(time.Millisecond), Notice: d.Notice,
	}
	if a.Err != nil {
		record.Class, record.Error = string(notify.ClassOf(a.Err)), a.Err.Error()
	}
	return record, s.store.AddDelivery(ctx, record, keptDeliveries, at.Add(-deliveryAge))
}

// LogDelivery stores an attempt at a job in the log of its webhook.
func (j *Jobs) LogDelivery(ctx context.Context, job *store.Job, d *Delivery, a Attempt) error {
	_, err := j.service.logDelivery(ctx, job.Org, d, a)
	return err
}

// WebhookDeliveries lists the attempts to deliver to one endpoint, newest first: those
// before the given one, or all.
func (s *webhookService) WebhookDeliveries(ctx context.Context, caller *Caller, id ledger.WebhookID, before *ledger.DeliveryID, limit int) ([]*store.DeliveryRecord, error) {
	if _, err := s.Webhook(ctx, caller, id); err != nil {
		return nil, err
	}
	deliveries, err := s.store.Deliveries(ctx, store.DeliveryQuery{Org: caller.Org, Webhook: &id, Since: s.now().Add(-deliveryAge), Before: before, Limit: limit})
	return deliveries, visible(err)
}

// Webhook returns one of the organization's endpoints.
func (s *webhookService) Webhook(ctx context.Context, caller *Caller, id ledger.WebhookID) (*store.WebhookRecord, error) {
	records, err := s.Webhooks(ctx, caller)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		if record.ID == id {
			return record, nil
		}
	}
	return nil, fault.ErrNotFound
}

// Redeliver queues the message of an attempt again, unchanged and with the same message id. The
// row is authenticated, so text that an attacker wrote into the database is never sent.
func (s *webhookService) Redeliver(ctx context.Context, caller *Caller, id ledger.WebhookID, attempt ledger.DeliveryID) error {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return err
	}
	found, err := s.store.Delivery(ctx, attempt)
	if err != nil {
		return visible(err)
	}
	if found.Org != caller.Org || found.Webhook != id || found.At < s.now().Add(-deliveryAge) {
		return fault.ErrNotFound
	}
	return s.aboutWebhook(ctx, caller, id, ledger.ActWebhookRedeliver, func(b *batch, _ *ledger.Organization, record *store.WebhookRecord) error {
		b.changes.NewJobs = append(b.changes.NewJobs, webhookJob(b.now, record, message{id: found.MessageID, notice: found.Notice, trigger: TriggerRedelivery}))
		return nil
	})
}

// TestWebhook delivers a test message to one endpoint and returns the attempt. There are no
// retries.
func (s *webhookService) TestWebhook(ctx context.Context, caller *Caller, id ledger.WebhookID) (*store.DeliveryRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	select {
	case s.tests <- struct{}{}:
		defer func() { <-s.tests }()
	default:
		return nil, fault.Errorf(fault.CodeRateLimited, "%d tests of webhooks are running: try again when one has ended", maxWebhookTests)
	}
	d := &Delivery{MessageID: "test-" + s.randomID().String(), Trigger: TriggerTest}
	err := s.aboutWebhook(ctx, caller, id, ledger.ActWebhookTest, func(b *batch, org *ledger.Organization, record *store.WebhookRecord) (err error) {
		n := notify.Notice{Kind: notify.WebhookTest, At: b.now, Organization: org.Slug}
		if s.publicURL != "" {
			n.Link = s.publicURL + "/webhooks/" + id.String()
		}
		d.Webhook = record
		d.Notice, err = n.Encode()
		return err
	})
	if err != nil {
		return nil, err
	}
	plain, err := s.secrets.Open(caller.Org.UUID, webhookSecretLabel+id.String(), d.Webhook.Secret)
	if err != nil {
		return nil, err
	}
	return s.deliverTest(ctx, caller.Org, d, ledger.NewSecret(string(plain)))
}

func (s *webhookService) deliverTest(ctx context.Context, org ledger.OrgID, d *Delivery, secret ledger.Secret) (*store.DeliveryRecord, error) {
	a := Attempt{Number: 1, At: s.clock(), State: DeliveryDelivered}
	a.Code, a.Err = s.deliverer.Deliver(ctx, notify.Endpoint{URL: d.Webhook.URL, Secrets: []ledger.Secret{secret}}, d.MessageID, a.At, d.Notice)
	a.Took = s.clock().Sub(a.At)
	if a.Err != nil {
		a.State = DeliveryFailed
	}
	record, err := s.logDelivery(ctx, org, d, a)
	if err != nil {
		return nil, visible(err)
	}
	if notify.EndpointGone(a.Err) {
		if err := s.disableWebhook(ctx, org, d.Webhook.ID); err != nil {
			return nil, err
		}
	}
	return record, nil
}

// aboutWebhook commits an act about an active endpoint. do adds to the batch first.
func (s *webhookService) aboutWebhook(ctx context.Context, caller *Caller, id ledger.WebhookID, action string, do func(*batch, *ledger.Organization, *store.WebhookRecord) error) error {
	op := &act{caller: caller, org: caller.Org}
	op.needs = func(needs *store.Needs) { needs.Webhooks = append(needs.Webhooks, id) }
	op.change = func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		record := b.loaded.Webhooks[id]
		switch {
		case record == nil || record.Org != org.ID || record.DeletedAt != nil:
			return nil, fault.ErrNotFound
		case record.Tampered:
			return nil, errWebhookTampered
		case record.DisabledAt != nil:
			return nil, errWebhookDisabled
		}
		if err := do(b, org, record); err != nil {
			return nil, err
		}
		return webhookAuditEntry(action, record, "", ""), nil
	}
	return s.committer.commit(ctx, op)
}

var (
	errWebhookTampered = fmt.Errorf("a webhook fails its authenticator: %w", ledger.ErrStateTampered)
	errWebhookDisabled = fault.Errorf(fault.CodeInvalid, "the webhook is disabled, because its endpoint answered that it is gone: delete it, and make a new one")
)

// NoRecipient is an organization in which an escalation would reach nobody: no webhook receives
// it, no e-mail would be sent, and it would appear in no Slack channel.
type NoRecipient struct {
	Slug      string
	Approvers int  // fallback approvers in the settings
	Mail      bool // the server sends e-mail
	Slack     bool // the server has a Slack app
	Asked     bool // it has approvals, decided or not; set only by EscalationsWithoutRecipient
}

// Why describes what is missing.
func (u *NoRecipient) Why() string {
	switch {
	case u.Approvers > 0:
		return "the settings name fallback approvers, but the server has no mail server to reach them by"
	case u.Mail:
		return "the settings name no fallback approvers; only addresses that a chain brings are notified"
	default:
		return "the settings name no fallback approvers, and the server has no mail server"
	}
}

// Remedy describes what an admin or the operator can do about it.
func (u *NoRecipient) Remedy() string {
	slack := ""
	if u.Slack {
		slack = "set a Slack channel in the settings, "
	}
	switch {
	case u.Approvers > 0:
		return slack + "start the server with --smtp-url-file, or add a webhook for approval.escalated"
	case u.Mail:
		return slack + "name fallback approvers in the settings, or add a webhook for approval.escalated"
	default:
		return slack + "add a webhook for approval.escalated, or name fallback approvers in the settings and start the server with --smtp-url-file"
	}
}

// EscalationsWithoutRecipient lists the organizations in which an escalation would reach nobody, and
// counts all organizations. It reads an organization's webhooks only if they may have
// changed since the last call.
func (s *webhookService) EscalationsWithoutRecipient(ctx context.Context) (without []*NoRecipient, organizations int, err error) {
	return s.noRecipient(ctx, s.mail, s.slack)
}

// EscalationsWithoutRecipient is Service.EscalationsWithoutRecipient for a command that runs
// beside the server: its flags say whether the server sends e-mail and has a Slack app.
func (o *Operator) EscalationsWithoutRecipient(ctx context.Context, mail, slack bool) (without []*NoRecipient, organizations int, err error) {
	return o.service.noRecipient(ctx, mail, slack)
}

func (s *webhookService) noRecipient(ctx context.Context, mail, slack bool) (without []*NoRecipient, organizations int, err error) {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return nil, 0, visible(err)
	}
	asked, err := s.store.OrganizationsWithApprovals(ctx)
	if err != nil {
		return nil, 0, visible(err)
	}
	hasAsked := make(map[ledger.OrgID]bool, len(asked))
	for _, id := range asked {
		hasAsked[id] = true
	}
	for _, org := range orgs {
		found, err := s.noRecipientIn(ctx, org, mail, slack)
		if err != nil {
			return nil, 0, err
		}
		if found != nil {
			found.Asked = hasAsked[org.ID]
			without = append(without, found)
		}
	}
	return without, len(orgs), nil
}

// NoRecipient reports whether an escalation would reach nobody in the caller's organization; nil
// if it would reach someone.
func (s *webhookService) NoRecipient(ctx context.Context, caller *Caller) (*NoRecipient, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	org, err := s.store.Organization(ctx, caller.Org)
	if err != nil {
		return nil, visible(err)
	}
	return s.noRecipientIn(ctx, org, s.mail, s.slack)
}

func (s *webhookService) noRecipientIn(ctx context.Context, org *ledger.Organization, mail, slack bool) (*NoRecipient, error) {
	approvers := len(org.Settings.FallbackApprovers)
	if mail && approvers > 0 || slack && org.Settings.SlackChannel != "" {
		return nil, nil
	}
	found, err := s.hasEscalationEndpoint(ctx, org)
	if err != nil || found {
		return nil, err
	}
	return &NoRecipient{Slug: org.Slug, Approvers: approvers, Mail: mail, Slack: slack}, nil
}

// hasEscalationEndpoint reports whether a webhook receives escalations.
func (s *webhookService) hasEscalationEndpoint(ctx context.Context, org *ledger.Organization) (bool, error) {
	if org.Controls.Webhooks == 0 {
		return false, nil
	}
	if hook, ok := s.escalationHooks.Get(org.ID); ok && hook.act == org.Controls.Act {
		return hook.found, nil
	}
	endpoints, err := s.store.Webhooks(ctx, org.ID)
	if err != nil {
		return false, visible(err)
	}
	found := slices.ContainsFunc(endpoints, func(e *store.WebhookRecord) bool { return subscribes(e, notify.ApprovalEscalated) })
	s.escalationHooks.Put(org.ID, escalationHook{org.Controls.Act, found}, 16)
	return found, nil
}

// escalationHook caches whether an organization has a webhook that receives escalations. Every
// change of a webhook is an act of its organization, so an entry is valid while the last act is
// the same.
type escalationHook struct {
	act   int64
	found bool
}

// escalationHookBytes bounds the cache: about ten thousand organizations.
const escalationHookBytes = 4 << 20
