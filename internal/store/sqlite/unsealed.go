package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// UnsealedRows implements store.Unsealed.
func (s *Store) UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*store.Rows, error) {
	rows := new(store.Rows)
	const unsealed = " WHERE org_id = ? AND mac = x'' LIMIT ?"
	args := []any{org.UUID[:], int64(limit)}
	var err error
	query := "SELECT " + jobColumns + " FROM jobs WHERE place <> 'buried' AND org_id = ? AND mac = x'' LIMIT ?"
	if rows.Jobs, err = readAll(ctx, s, query, args, scanJob); err != nil {
		return nil, err
	}
	rows.Webhooks, err = readAll(ctx, s, "SELECT "+webhookColumns+" FROM webhooks"+unsealed, args, scanWebhook)
	return rows, err
}

// SealRows implements store.Unsealed.
func (s *Store) SealRows(ctx context.Context, rows *store.Rows) error {
	return s.writing(ctx, func(tx *transaction) error {
		err := each(rows.Jobs, func(j *store.Job) error {
			return tx.exec("UPDATE jobs SET mac = ?, due_at = ? WHERE no = ? AND mac = x''", orEmpty(j.MAC), int64(j.DueAt), j.No)
		})
		if err != nil {
			return err
		}
		return each(rows.Webhooks, func(w *store.WebhookRecord) error {
			return tx.exec("UPDATE webhooks SET mac = ? WHERE id = ? AND mac = x''", orEmpty(w.MAC), w.ID.UUID[:])
		})
	})
}
