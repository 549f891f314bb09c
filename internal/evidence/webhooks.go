package evidence

import (
	"context"
	"errors"

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
	return r
}

func (s *Store) sealWebhook(w *store.WebhookRecord) {
	w.MAC = s.seal(w.Org, ledger.PurposeWebhook, encodeWebhook(w))
}

// soundWebhook is an endpoint as the service wrote it, or what may be told of one that
// is not: its id, and that it was tampered with.
func (s *Store) soundWebhook(w *store.WebhookRecord) (*store.WebhookRecord, error) {
	err := s.check("a webhook", w.Org, ledger.PurposeWebhook, w.MAC, encodeWebhook(w))
	if errors.Is(err, ledger.ErrStateTampered) {
		return &store.WebhookRecord{ID: w.ID, Org: w.Org, Tampered: true}, nil
	}
	return w, err
}

// Webhooks implements store.Governance. Of a row that fails only the id is told, and
// that it was tampered with.
func (s *Store) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	webhooks, err := s.port.Webhooks(ctx, org)
	if err != nil {
		return nil, err
	}
	for i := range webhooks {
		if webhooks[i], err = s.soundWebhook(webhooks[i]); err != nil {
			return nil, err
		}
	}
	return webhooks, nil
}
