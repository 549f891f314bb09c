package service

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// WebhookRequest asks for an endpoint to be told.
type WebhookRequest struct {
	URL         string
	Events      []string
	Description string
}

// ParseWebhookRequest reads the body of a request that creates a webhook.
func ParseWebhookRequest(v canon.Value) (*WebhookRequest, error) {
	f := ledger.NewFields(v)
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
	webhookSecretLabel = "webhook/" // and the id of its record
	maxWebhooks        = 20
)

// CreateWebhook adds an endpoint. The secret that signs what is sent to it is
// returned once.
func (s *Service) CreateWebhook(ctx context.Context, caller *Caller, request *WebhookRequest) (*store.WebhookRecord, ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, ledger.Secret{}, err
	}
	if err := notify.CheckURL(request.URL, s.privateWebhooks); err != nil {
		return nil, ledger.Secret{}, ledger.Invalid(ledger.FieldError{Pointer: "/url", Detail: err.Error()})
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
	err = s.govern(ctx, caller, func(b *batch, org *ledger.Organization) (*deed, error) {
		if org.Controls.Webhooks >= maxWebhooks {
			return nil, ledger.Errorf(ledger.CodeInvalid, "there are %d webhooks, the most there can be: delete one first", maxWebhooks)
		}
		org.Controls.Webhooks++
		b.changes.Webhooks = append(b.changes.Webhooks, record)
		return webhookDeed(ledger.ActWebhookCreate, record, "", webhookStatus(record)), nil
	})
	if err != nil {
		return nil, ledger.Secret{}, err
	}
	return record, secret, nil
}

// Webhooks lists the organization's endpoints.
func (s *Service) Webhooks(ctx context.Context, caller *Caller) ([]*store.WebhookRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	records, err := s.store.Webhooks(ctx, caller.Org)
	return records, visible(err)
}

// DeleteWebhook ends an endpoint. Repeating it changes nothing.
func (s *Service) DeleteWebhook(ctx context.Context, caller *Caller, id ledger.WebhookID) error {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return err
	}
	return s.changeWebhook(ctx, caller, caller.Org, id, ledger.ActWebhookDelete, func(record *store.WebhookRecord, now ledger.Time) {
		record.DeletedAt = &now
	})
}

// TestWebhook queues a message to one endpoint.
func (s *Service) TestWebhook(ctx context.Context, caller *Caller, id ledger.WebhookID) error {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return err
	}
	op := &act{caller: caller, org: caller.Org}
	op.needs = func(needs *store.Needs) { needs.Webhooks = append(needs.Webhooks, id) }
	op.change = func(b *batch, org *ledger.Organization) (*deed, error) {
		record := b.loaded.Webhooks[id]
		if record == nil || record.Org != org.ID || record.DeletedAt != nil {
			return nil, ledger.ErrNotFound
		}
		if record.Tampered {
			return nil, errWebhookTampered
		}
		body, err := notify.Notice{Kind: notify.WebhookTest, At: b.now, Organization: org.Slug}.Encode()
		if err != nil {
			return nil, err
		}
		b.changes.NewJobs = append(b.changes.NewJobs, webhookJob(org.ID, record, "test-"+s.randomID().String(), body, b.now, ""))
		return webhookDeed(ledger.ActWebhookTest, record, "", ""), nil
	}
	return s.committer.commit(ctx, op)
}

var errWebhookTampered = fmt.Errorf("a webhook fails its authenticator: %w", ledger.ErrStateTampered)

// disableWebhook is for an endpoint that says that it is gone.
func (s *Service) disableWebhook(ctx context.Context, org ledger.OrgID, id ledger.WebhookID) error {
	return s.changeWebhook(ctx, nil, org, id, ledger.ActWebhookDisable, func(record *store.WebhookRecord, now ledger.Time) {
		record.DisabledAt = &now
	})
}

func (s *Service) changeWebhook(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.WebhookID, action string, change func(*store.WebhookRecord, ledger.Time)) error {
	op := &act{caller: caller, actor: ledger.ActorService, org: org}
	op.needs = func(needs *store.Needs) { needs.Webhooks = append(needs.Webhooks, id) }
	op.change = func(b *batch, org *ledger.Organization) (*deed, error) {
		loaded := b.loaded.Webhooks[id]
		if loaded == nil || loaded.Org != org.ID {
			return nil, ledger.ErrNotFound
		}
		// Of one that was tampered with nothing is left but its id. Deleted, it stays so:
		// an empty row takes its place. It may never have been counted, and counting it
		// out would keep the others in the dark, so the count stays too high by one.
		before, record := wanted(loaded), *loaded
		record.Tampered = false
		change(&record, b.now)
		if loaded.Tampered && record.DeletedAt == nil {
			return nil, errWebhookTampered
		}
		if record.DeletedAt != nil && loaded.DeletedAt != nil || wanted(&record) == before && record.DeletedAt == nil {
			return nil, nil
		}
		if before && !wanted(&record) {
			org.Controls.Webhooks = max(org.Controls.Webhooks-1, 0)
		}
		b.loaded.Webhooks[id] = &record
		b.changes.Webhooks = append(b.changes.Webhooks, &record)
		return webhookDeed(action, &record, webhookStatus(loaded), webhookStatus(&record)), nil
	}
	return s.committer.commit(ctx, op)
}

// wanted reports whether an endpoint is to be told.
func wanted(record *store.WebhookRecord) bool {
	return record.DeletedAt == nil && record.DisabledAt == nil && !record.Tampered
}

// wants reports whether an endpoint is to be told of a kind.
func wants(record *store.WebhookRecord, kind notify.Kind) bool {
	return wanted(record) && (len(record.Events) == 0 || slices.Contains(record.Events, string(kind)))
}
