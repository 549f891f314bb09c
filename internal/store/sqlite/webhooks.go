package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const webhookColumns = "id, org_id, url, events, description, secret, created_at, disabled_at, deleted_at, mac, act"

func scanWebhook(rows row) (*store.WebhookRecord, error) {
	var events []byte
	var disabled, deleted *int64
	var w store.WebhookRecord
	err := rows.Scan(&w.ID.UUID, &w.Org.UUID, &w.URL, &events, &w.Description, &w.Secret, (*int64)(&w.CreatedAt), &disabled, &deleted, &w.MAC, &w.Act)
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(events, &w.Events) != nil {
		// This program did not write it. It must not make other rows unreadable;
		// without an authenticator it is refused.
		w.Events, w.MAC = nil, nil
	}
	w.DisabledAt, w.DeletedAt = (*ledger.Time)(disabled), (*ledger.Time)(deleted)
	return &w, nil
}

func (tx *transaction) putWebhook(w *store.WebhookRecord) error {
	events, err := json.Marshal(w.Events)
	if err != nil {
		return fmt.Errorf("encode an endpoint's events: %w", err)
	}
	return tx.exec("INSERT OR REPLACE INTO webhooks ("+webhookColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		w.ID.UUID[:], w.Org.UUID[:], w.URL, events, w.Description, orEmpty(w.Secret), int64(w.CreatedAt),
		momentOrNull(w.DisabledAt), momentOrNull(w.DeletedAt), orEmpty(w.MAC), w.Act)
}

// Webhooks implements store.Governance.
func (s *Store) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	query := "SELECT " + webhookColumns + " FROM webhooks WHERE org_id = ? AND deleted_at IS NULL ORDER BY id"
	return readAll(ctx, s, query, []any{org.UUID[:]}, scanWebhook)
}

const (
	deliveryColumns = "id, org_id, webhook_id, message_id, kind, cause, attempt, state, code, error_class, error, attempted_at, duration, notice, mac"
	selectDelivery  = "SELECT " + deliveryColumns + " FROM webhook_deliveries "
)

func scanDelivery(r row) (*store.DeliveryRecord, error) {
	d, duration := new(store.DeliveryRecord), int64(0)
	err := r.Scan(&d.ID.UUID, &d.Org.UUID, &d.Webhook.UUID, &d.MessageID, &d.Kind, &d.Trigger, &d.Attempt, &d.State, &d.Code,
		&d.Class, &d.Error, (*int64)(&d.At), &duration, &d.Notice, &d.MAC)
	d.Duration = ledger.Milliseconds(duration)
	return d, err
}

// AddDelivery implements store.Deliveries.
func (s *Store) AddDelivery(ctx context.Context, d *store.DeliveryRecord, keep int, since ledger.Time) error {
	return s.writing(ctx, func(tx *transaction) error {
		err := tx.exec("INSERT INTO webhook_deliveries ("+deliveryColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			d.ID.UUID[:], d.Org.UUID[:], d.Webhook.UUID[:], d.MessageID, d.Kind, d.Trigger, d.Attempt, d.State, d.Code,
			d.Class, d.Error, int64(d.At), d.Duration.Milliseconds(), orEmpty(d.Notice), orEmpty(d.MAC))
		if err != nil {
			return err
		}
		err = tx.exec(`DELETE FROM webhook_deliveries WHERE webhook_id = ?
			AND id <= (SELECT id FROM webhook_deliveries WHERE webhook_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?)`,
			d.Webhook.UUID[:], d.Webhook.UUID[:], int64(keep))
		if err != nil {
			return err
		}
		return tx.exec("DELETE FROM webhook_deliveries WHERE attempted_at < ?", int64(since))
	})
}

// Delivery implements store.Deliveries.
func (s *Store) Delivery(ctx context.Context, id ledger.DeliveryID) (*store.DeliveryRecord, error) {
	return readOne(ctx, s, selectDelivery+"WHERE id = ?", []any{id.UUID[:]}, scanDelivery)
}

// Deliveries implements store.Deliveries.
func (s *Store) Deliveries(ctx context.Context, query store.DeliveryQuery) ([]*store.DeliveryRecord, error) {
	sql, args := selectDelivery+"WHERE org_id = ? AND attempted_at >= ?", []any{query.Org.UUID[:], int64(query.Since)}
	if query.Webhook != nil {
		sql, args = sql+" AND webhook_id = ?", append(args, query.Webhook.UUID[:])
	}
	if query.Before != nil {
		sql, args = sql+" AND id < ?", append(args, query.Before.UUID[:])
	}
	return readAll(ctx, s, sql+" ORDER BY id DESC LIMIT ?", append(args, int64(query.Limit)), scanDelivery)
}
