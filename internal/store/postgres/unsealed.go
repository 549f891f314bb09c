package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	unsealedRowsSQL = ` where org_id = $1 and mac = '' limit $2`
	sealWebhooksSQL = `update webhooks t set mac = n.mac from unnest($1::uuid[], $2::bytea[]) n(id, mac) where t.id = n.id and t.mac = ''`
)

// UnsealedRows implements store.Unsealed.
func (s *Store) UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*store.Rows, error) {
	rows, args := new(store.Rows), []any{bytesOf(org.UUID), limit}
	var err error
	rows.Webhooks, err = list(ctx, s, "unsealed webhooks", `select `+webhookColumns+` from webhooks`+unsealedRowsSQL, args, readWebhook)
	return rows, err
}

// SealRows implements store.Unsealed.
func (s *Store) SealRows(ctx context.Context, rows *store.Rows) error {
	return s.inTransaction(ctx, func(conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(sealWebhooksSQL,
			ids(rows.Webhooks, func(w *store.WebhookRecord) uuid.UUID { return w.ID.UUID }),
			blobs(rows.Webhooks, func(w *store.WebhookRecord) []byte { return notNil(w.MAC) }))
		x.send(patientCommitSQL)
		return explain("seal rows", x.run(ctx, conn))
	})
}
