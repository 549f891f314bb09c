package postgres

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	unsealedRowsSQL = ` where org_id = $1 and mac = '' limit $2`
	unnamedRowsSQL  = ` where org_id = $1 and (mac = '' or act = 0) limit $2`
	unsealedJobsSQL = ` where not buried and org_id = $1 and mac = '' limit $2`

	sealWebhooksSQL = `update webhooks t set mac = n.mac, act = n.act from unnest($1::uuid[], $2::bytea[], $3::bigint[]) n(id, mac, act)
		where t.id = n.id and (t.mac = '' or t.act = 0)`
	//nolint:gosec // no token is in it
	sealTokensSQL = `update tokens t set mac = n.mac, act = n.act from unnest($1::uuid[], $2::bytea[], $3::bigint[]) n(id, mac, act)
		where t.id = n.id and (t.mac = '' or t.act = 0)`
	sealSigningKeysSQL = `update signing_keys t set mac = n.mac, act = n.act
		from unnest($1::uuid[], $2::bytea[], $3::uuid[], $4::bigint[]) n(id, mac, org_id, act)
		where t.id = n.id and t.org_id = n.org_id and (t.mac = '' or t.act = 0)`
	sealPoliciesSQL = `update policies t set mac = n.mac, act = n.act
		from unnest($1::uuid[], $2::bytea[], $3::bigint[], $4::bigint[]) n(org_id, mac, number, act)
		where t.org_id = n.org_id and t.number = n.number and (t.mac = '' or t.act = 0)`
	sealAnchorsSQL = `update anchors t set mac = n.mac
		from unnest($1::uuid[], $2::bytea[], $3::text[], $4::uuid[], $5::text[]) n(org_id, mac, kind, subject_id, method)
		where t.org_id = n.org_id and t.kind = n.kind and t.subject_id = n.subject_id and t.method = n.method and t.mac = ''`
	sealJobsSQL = `update jobs t set mac = n.mac, due_at = n.due_at from unnest($1::bigint[], $2::bytea[], $3::bigint[]) n(no, mac, due_at)
		where t.no = n.no and t.mac = ''`
)

// UnsealedRows implements store.Unsealed.
func (s *Store) UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*store.Rows, error) {
	rows, args := new(store.Rows), []any{bytesOf(org.UUID), limit}
	for _, read := range [...]func() error{
		func() (err error) {
			rows.Webhooks, err = list(ctx, s, "unsealed webhooks", `select `+webhookColumns+` from webhooks`+unnamedRowsSQL, args, readWebhook)
			return err
		},
		func() (err error) {
			rows.Policies, err = list(ctx, s, "unsealed policies", `select `+policyColumns+` from policies`+unnamedRowsSQL, args, readPolicy)
			return err
		},
		func() (err error) {
			rows.Tokens, err = list(ctx, s, "unsealed tokens", selectTokens+unnamedRowsSQL, args, readToken)
			return err
		},
		func() (err error) {
			rows.SigningKeys, err = list(ctx, s, "unsealed signing keys", selectSigningKeys+unnamedRowsSQL, args, readSigningKey)
			return err
		},
		func() (err error) {
			rows.Anchors, err = list(ctx, s, "unsealed anchors", selectAnchors+unsealedRowsSQL, args, readAnchor)
			return err
		},
		func() (err error) {
			rows.Jobs, err = list(ctx, s, "unsealed jobs", `select `+queuedColumns+` from jobs`+unsealedJobsSQL, args, readQueued)
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
	rt := new(roundTrip)
	rt.send(sealWebhooksSQL,
		ids(rows.Webhooks, func(w *store.WebhookRecord) uuid.UUID { return w.ID.UUID }),
		blobs(rows.Webhooks, func(w *store.WebhookRecord) []byte { return notNil(w.MAC) }),
		ints(rows.Webhooks, func(w *store.WebhookRecord) int64 { return w.Act }))
	rt.send(sealPoliciesSQL,
		ids(rows.Policies, func(p *store.PolicyRecord) uuid.UUID { return p.Org.UUID }),
		blobs(rows.Policies, func(p *store.PolicyRecord) []byte { return notNil(p.MAC) }),
		ints(rows.Policies, func(p *store.PolicyRecord) int64 { return p.Number }),
		ints(rows.Policies, func(p *store.PolicyRecord) int64 { return p.Act }))
	rt.send(sealTokensSQL,
		ids(rows.Tokens, func(t *store.TokenRecord) uuid.UUID { return t.ID.UUID }),
		blobs(rows.Tokens, func(t *store.TokenRecord) []byte { return notNil(t.MAC) }),
		ints(rows.Tokens, func(t *store.TokenRecord) int64 { return t.Act }))
	rt.send(sealSigningKeysSQL,
		ids(rows.SigningKeys, func(k *store.SigningKeyRecord) uuid.UUID { return k.ID.UUID }),
		blobs(rows.SigningKeys, func(k *store.SigningKeyRecord) []byte { return notNil(k.MAC) }),
		ids(rows.SigningKeys, func(k *store.SigningKeyRecord) uuid.UUID { return k.Org.UUID }),
		ints(rows.SigningKeys, func(k *store.SigningKeyRecord) int64 { return k.Act }))
	rt.send(sealAnchorsSQL,
		ids(rows.Anchors, func(a *store.AnchorRecord) uuid.UUID { return a.Org.UUID }),
		blobs(rows.Anchors, func(a *store.AnchorRecord) []byte { return notNil(a.MAC) }),
		texts(rows.Anchors, func(a *store.AnchorRecord) string { return a.Subject.Kind }),
		ids(rows.Anchors, func(a *store.AnchorRecord) uuid.UUID { return a.Subject.ID }),
		texts(rows.Anchors, func(a *store.AnchorRecord) string { return a.Method }))
	rt.send(sealJobsSQL,
		ints(rows.Jobs, func(j *store.Job) int64 { return j.No }),
		blobs(rows.Jobs, func(j *store.Job) []byte { return notNil(j.MAC) }),
		ints(rows.Jobs, func(j *store.Job) int64 { return int64(j.DueAt) }))
	return s.runTransaction(ctx, "seal rows", rt)
}
