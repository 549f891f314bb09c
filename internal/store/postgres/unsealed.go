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
	unsealedJobsSQL = ` where not buried and org_id = $1 and mac = '' limit $2`
	sealJobsSQL     = `update jobs t set mac = n.mac, due_at = n.due_at from unnest($1::bigint[], $2::bytea[], $3::bigint[]) n(no, mac, due_at)
		where t.no = n.no and t.mac = ''`
	sealWebhooksSQL = `update webhooks t set mac = n.mac from unnest($1::uuid[], $2::bytea[]) n(id, mac) where t.id = n.id and t.mac = ''`
)

// UnsealedRows implements store.Unsealed.
func (s *Store) UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*store.Rows, error) {
	rows, args := new(store.Rows), []any{bytesOf(org.UUID), limit}
	var err error
	if rows.Jobs, err = list(ctx, s, "unsealed jobs", `select `+queuedColumns+` from jobs`+unsealedJobsSQL, args, readQueued); err != nil {
		return nil, err
	}
	rows.Webhooks, err = list(ctx, s, "unsealed webhooks", `select `+webhookColumns+` from webhooks`+unsealedRowsSQL, args, readWebhook)
	return rows, err
}

// SealRows implements store.Unsealed.
func (s *Store) SealRows(ctx context.Context, rows *store.Rows) error {
	return s.inTransaction(ctx, func(conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(sealJobsSQL,
			ints(rows.Jobs, func(j *store.Job) int64 { return j.No }),
			blobs(rows.Jobs, func(j *store.Job) []byte { return notNil(j.MAC) }),
			ints(rows.Jobs, func(j *store.Job) int64 { return int64(j.DueAt) }))
		x.send(sealWebhooksSQL,
			ids(rows.Webhooks, func(w *store.WebhookRecord) uuid.UUID { return w.ID.UUID }),
			blobs(rows.Webhooks, func(w *store.WebhookRecord) []byte { return notNil(w.MAC) }))
		x.send(patientCommitSQL)
		return explain("seal rows", x.run(ctx, conn))
	})
}
