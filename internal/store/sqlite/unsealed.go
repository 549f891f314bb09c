package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// UnsealedRows implements store.Unsealed.
func (s *Store) UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*store.Rows, error) {
	const (
		unsealed = " WHERE org_id = ? AND mac = x'' LIMIT ?"
		unnamed  = " WHERE org_id = ? AND (mac = x'' OR act = 0) LIMIT ?"
	)
	args := []any{org.UUID[:], int64(limit)}
	rows := new(store.Rows)
	for _, read := range [...]func() error{
		func() (err error) {
			rows.Webhooks, err = readAll(ctx, s, "SELECT "+webhookColumns+" FROM webhooks"+unnamed, args, scanWebhook)
			return err
		},
		func() (err error) {
			rows.Policies, err = readAll(ctx, s, "SELECT "+policyColumns+" FROM policies"+unnamed, args, scanPolicy)
			return err
		},
		func() (err error) {
			rows.Tokens, err = readAll(ctx, s, "SELECT "+tokenColumns+" FROM tokens"+unnamed, args, scanToken)
			return err
		},
		func() (err error) {
			rows.SigningKeys, err = readAll(ctx, s, "SELECT "+signingKeyColumns+" FROM signing_keys"+unnamed, args, scanSigningKey)
			return err
		},
		func() (err error) {
			rows.Anchors, err = readAll(ctx, s, "SELECT "+anchorColumns+" FROM anchors"+unsealed, args, scanAnchor)
			return err
		},
		func() (err error) {
			query := "SELECT " + jobColumns + " FROM jobs WHERE place <> 'buried' AND org_id = ? AND mac = x'' LIMIT ?"
			rows.Jobs, err = readAll(ctx, s, query, args, scanJob)
			return err
		},
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// SealRows implements store.Unsealed.
func (s *Store) SealRows(ctx context.Context, rows *store.Rows) error {
	return s.writing(ctx, func(tx *transaction) error {
		for _, seal := range [...]func() error{
			func() error {
				return each(rows.Webhooks, func(w *store.WebhookRecord) error {
					return tx.exec("UPDATE webhooks SET mac = ?, act = ? WHERE id = ? AND (mac = x'' OR act = 0)", orEmpty(w.MAC), w.Act, w.ID.UUID[:])
				})
			},
			func() error {
				return each(rows.Policies, func(p *store.PolicyRecord) error {
					return tx.exec("UPDATE policies SET mac = ?, act = ? WHERE org_id = ? AND number = ? AND (mac = x'' OR act = 0)", orEmpty(p.MAC), p.Act, p.Org.UUID[:], p.Number)
				})
			},
			func() error {
				return each(rows.Tokens, func(t *store.TokenRecord) error {
					return tx.exec("UPDATE tokens SET mac = ?, act = ? WHERE id = ? AND (mac = x'' OR act = 0)", orEmpty(t.MAC), t.Act, t.ID.UUID[:])
				})
			},
			func() error {
				return each(rows.SigningKeys, func(k *store.SigningKeyRecord) error {
					return tx.exec("UPDATE signing_keys SET mac = ?, act = ? WHERE org_id = ? AND id = ? AND (mac = x'' OR act = 0)", orEmpty(k.MAC), k.Act, k.Org.UUID[:], k.ID.UUID[:])
				})
			},
			func() error {
				return each(rows.Anchors, func(a *store.AnchorRecord) error {
					return tx.exec("UPDATE anchors SET mac = ? WHERE org_id = ? AND kind = ? AND subject_id = ? AND method = ? AND mac = x''",
						orEmpty(a.MAC), a.Org.UUID[:], a.Subject.Kind, a.Subject.ID[:], a.Method)
				})
			},
			func() error {
				return each(rows.Jobs, func(j *store.Job) error {
					return tx.exec("UPDATE jobs SET mac = ?, due_at = ? WHERE no = ? AND mac = x''", orEmpty(j.MAC), int64(j.DueAt), j.No)
				})
			},
		} {
			if err := seal(); err != nil {
				return err
			}
		}
		return nil
	})
}
