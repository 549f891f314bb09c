package evidence

import (
	"context"
	"errors"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeWebhook(w *store.WebhookRecord) []byte {
	r := make(record, 0, 512)
	r.bytes(w.ID.UUID[:])
	r.bytes(w.Org.UUID[:])
	r.text(w.URL)
	r.texts(w.Events)
	r.text(w.Description)
	r.bytes(w.Secret)
	r.time(w.CreatedAt)
	r.timeOrNone(w.DisabledAt)
	r.timeOrNone(w.DeletedAt)
	r.act(w.Act)
	return r
}

func (s *Store) sealWebhook(w *store.WebhookRecord) {
	w.MAC = s.seal(w.Org, ledger.PurposeWebhook, encodeWebhook(w))
}

func (s *Store) checkWebhook(w *store.WebhookRecord) error {
	return s.check("a webhook", w.Org, ledger.PurposeWebhook, w.MAC, encodeWebhook(w))
}

// tamperedWebhook is what callers see of an endpoint that is not what the service wrote: its id and
// the mark.
func tamperedWebhook(w *store.WebhookRecord) *store.WebhookRecord {
	return &store.WebhookRecord{ID: w.ID, Org: w.Org, Tampered: true}
}

// EndpointsToWarn returns the endpoints to notify of tampering. If the audit log itself was
// tampered with, nothing says which endpoints are current. Then all authentic endpoints are
// returned, because someone must be notified.
func (s *Store) EndpointsToWarn(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	webhooks, err := s.Webhooks(ctx, org)
	if err == nil && !slices.ContainsFunc(webhooks, func(w *store.WebhookRecord) bool { return w.Tampered }) {
		return webhooks, nil
	}
	if err != nil && !errors.Is(err, ErrRolledBack) {
		return nil, err
	}
	if s.CheckLog(ctx, org) == nil {
		return webhooks, nil // the endpoints were tampered with, not the log
	}
	if webhooks, err = s.port.Webhooks(ctx, org); err != nil {
		return nil, err
	}
	for i, w := range webhooks {
		if err := s.checkWebhook(w); errors.Is(err, ledger.ErrStateTampered) {
			webhooks[i] = tamperedWebhook(w)
		} else if err != nil {
			return nil, err
		}
	}
	return webhooks, nil
}

// Webhooks implements store.Governance. A row that fails is reduced to its id and marked as
// tampered.
func (s *Store) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	read := func() ([]*store.WebhookRecord, error) { return s.port.Webhooks(ctx, org) }
	return readCurrent(ctx, s, read, s.checkWebhook, webhookRef, func(w *store.WebhookRecord, _ error) (*store.WebhookRecord, error) {
		return tamperedWebhook(w), nil
	})
}
