package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	deliveryColumns   = `id, org_id, webhook_id, message_id, kind, cause, attempt, state, code, error_class, error, attempted_at, duration, notice, mac`
	selectDelivery    = `select ` + deliveryColumns + ` from webhook_deliveries `
	insertDeliverySQL = `insert into webhook_deliveries (` + deliveryColumns + `) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`
	// Two replicas may delete the same rows at once. Each skips what the other has locked, so
	// neither waits. The next attempt deletes what is left.
	trimDeliveriesSQL = `delete from webhook_deliveries where id in (select id from webhook_deliveries where webhook_id = $1
		and id <= (select id from webhook_deliveries where webhook_id = $1 order by id desc limit 1 offset $2) for update skip locked)`
	dropDeliveriesSQL = `delete from webhook_deliveries where id in
		(select id from webhook_deliveries where attempted_at < $1 for update skip locked)`
	selectDeliveriesSQL = selectDelivery + `where org_id = $1 and attempted_at >= $2 and ($3::uuid is null or webhook_id = $3)
		and ($4::uuid is null or id < $4) order by id desc limit $5`
)

func readDelivery(r *row) *store.DeliveryRecord {
	return &store.DeliveryRecord{
		ID: ledger.DeliveryID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Webhook: ledger.WebhookID{UUID: r.id()},
		MessageID: r.text(), Kind: r.text(), Trigger: r.text(), Attempt: r.int(), State: r.text(), Code: r.int(), Class: r.text(), Error: r.text(),
		At: r.time(), Duration: r.duration(), Notice: r.bytes(), MAC: r.bytes(),
	}
}

// AddDelivery implements store.Deliveries.
func (s *Store) AddDelivery(ctx context.Context, d *store.DeliveryRecord, keep int, since ledger.Time) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insertDeliverySQL, bytesOf(d.ID.UUID), bytesOf(d.Org.UUID), bytesOf(d.Webhook.UUID), d.MessageID, d.Kind, d.Trigger,
			d.Attempt, d.State, d.Code, d.Class, d.Error, int64(d.At), d.Duration.Milliseconds(), notNil(d.Notice), notNil(d.MAC))
		if err == nil {
			_, err = conn.Exec(ctx, trimDeliveriesSQL, bytesOf(d.Webhook.UUID), keep)
		}
		if err == nil {
			_, err = conn.Exec(ctx, dropDeliveriesSQL, int64(since))
		}
		return explain("add delivery", err)
	})
}

// Delivery implements store.Deliveries.
func (s *Store) Delivery(ctx context.Context, id ledger.DeliveryID) (*store.DeliveryRecord, error) {
	return one(ctx, s, "delivery", selectDelivery+`where id = $1`, []any{bytesOf(id.UUID)}, readDelivery)
}

// Deliveries implements store.Deliveries.
func (s *Store) Deliveries(ctx context.Context, query store.DeliveryQuery) ([]*store.DeliveryRecord, error) {
	var webhook, before any
	if query.Webhook != nil {
		webhook = bytesOf(query.Webhook.UUID)
	}
	if query.Before != nil {
		before = bytesOf(query.Before.UUID)
	}
	return list(ctx, s, "deliveries", selectDeliveriesSQL, []any{bytesOf(query.Org.UUID), int64(query.Since), webhook, before, query.Limit}, readDelivery)
}
