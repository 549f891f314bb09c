package postgres

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	insertTokensSQL = `insert into tokens (` + tokenColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::uuid[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::text[], $11::bigint[], $12::bytea[], $13::bigint[])`
	//nolint:gosec // no token is in it
	revokeTokensSQL = `update tokens t set revoked_at = n.revoked_at, revocation_reason = n.reason, mac = n.mac, act = n.act
		from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::bytea[], $6::bigint[]) n(id, org_id, revoked_at, reason, mac, act)
		where t.id = n.id and t.org_id = n.org_id`
	putSigningKeysSQL = `insert into signing_keys (` + signingKeyColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::bytea[], $11::bigint[])
		on conflict (org_id, id) do update set public = excluded.public, private = excluded.private, status = excluded.status,
			name = excluded.name, created_at = excluded.created_at, retired_at = excluded.retired_at, revoked_at = excluded.revoked_at,
			mac = excluded.mac, act = excluded.act`
	putAnchorsSQL = `insert into anchors (` + anchorColumns + `)
		select * from unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::bytea[],
			$10::bytea[], $11::bigint[], $12::bytea[])
		on conflict (org_id, kind, subject_id, method) do update set sequence = excluded.sequence, digest = excluded.digest,
			status = excluded.status, reason = excluded.reason, proof = excluded.proof, block = excluded.block,
			updated_at = excluded.updated_at, mac = excluded.mac`
)

// sendTokens inserts in order of key, as sendChains does and for the same reason.
func sendTokens(x *exchange, issued, revoked []*store.TokenRecord) {
	if len(issued) > 0 {
		issued = slices.SortedFunc(slices.Values(issued), func(a, b *store.TokenRecord) int {
			return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.IdempotencyKey, b.IdempotencyKey))
		})
		x.send(insertTokensSQL,
			ids(issued, func(t *store.TokenRecord) uuid.UUID { return t.ID.UUID }),
			ids(issued, func(t *store.TokenRecord) uuid.UUID { return t.Org.UUID }),
			blobs(issued, func(t *store.TokenRecord) []byte { return t.Hash[:] }),
			texts(issued, func(t *store.TokenRecord) string { return t.Artifact }),
			ids(issued, func(t *store.TokenRecord) uuid.UUID { return t.ArtifactID }),
			textsOrNull(issued, func(t *store.TokenRecord) string { return t.IdempotencyKey }),
			ints(issued, func(t *store.TokenRecord) int64 { return int64(t.CreatedAt) }),
			intsOrNull(issued, func(t *store.TokenRecord) *ledger.Time { return t.ExpiresAt }),
			intsOrNull(issued, func(t *store.TokenRecord) *ledger.Time { return t.RevokedAt }),
			texts(issued, func(t *store.TokenRecord) string { return t.RevocationReason }),
			intsOrNull(issued, func(t *store.TokenRecord) *ledger.Time { return t.LastUsedAt }),
			blobs(issued, func(t *store.TokenRecord) []byte { return notNil(t.MAC) }),
			ints(issued, func(t *store.TokenRecord) int64 { return t.Act }))
	}
	if len(revoked) > 0 {
		id := ids(revoked, func(t *store.TokenRecord) uuid.UUID { return t.ID.UUID })
		x.send(lockTokensSQL, id)
		x.update(len(revoked), "tokens", revokeTokensSQL, id,
			ids(revoked, func(t *store.TokenRecord) uuid.UUID { return t.Org.UUID }),
			intsOrNull(revoked, func(t *store.TokenRecord) *ledger.Time { return t.RevokedAt }),
			texts(revoked, func(t *store.TokenRecord) string { return t.RevocationReason }),
			blobs(revoked, func(t *store.TokenRecord) []byte { return notNil(t.MAC) }),
			ints(revoked, func(t *store.TokenRecord) int64 { return t.Act }))
	}
}

func sendSigningKeys(x *exchange, keys []*store.SigningKeyRecord) {
	if len(keys) == 0 {
		return
	}
	x.send(putSigningKeysSQL,
		ids(keys, func(k *store.SigningKeyRecord) uuid.UUID { return k.ID.UUID }),
		ids(keys, func(k *store.SigningKeyRecord) uuid.UUID { return k.Org.UUID }),
		blobs(keys, func(k *store.SigningKeyRecord) []byte { return notNil(k.Public) }),
		blobs(keys, func(k *store.SigningKeyRecord) []byte { return k.Private }),
		texts(keys, func(k *store.SigningKeyRecord) string { return k.Status }),
		texts(keys, func(k *store.SigningKeyRecord) string { return k.Name }),
		ints(keys, func(k *store.SigningKeyRecord) int64 { return int64(k.CreatedAt) }),
		intsOrNull(keys, func(k *store.SigningKeyRecord) *ledger.Time { return k.RetiredAt }),
		intsOrNull(keys, func(k *store.SigningKeyRecord) *ledger.Time { return k.RevokedAt }),
		blobs(keys, func(k *store.SigningKeyRecord) []byte { return notNil(k.MAC) }),
		ints(keys, func(k *store.SigningKeyRecord) int64 { return k.Act }))
}

// sendAnchors writes in order of subject, as sendChains does and for the same reason.
func sendAnchors(x *exchange, anchors []*store.AnchorRecord) {
	if len(anchors) == 0 {
		return
	}
	anchors = slices.SortedFunc(slices.Values(anchors), func(a, b *store.AnchorRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), slices.Compare(a.Subject.ID[:], b.Subject.ID[:]), cmp.Compare(a.Method, b.Method))
	})
	x.send(putAnchorsSQL,
		ids(anchors, func(a *store.AnchorRecord) uuid.UUID { return a.Org.UUID }),
		texts(anchors, func(a *store.AnchorRecord) string { return a.Subject.Kind }),
		ids(anchors, func(a *store.AnchorRecord) uuid.UUID { return a.Subject.ID }),
		ints(anchors, func(a *store.AnchorRecord) int64 { return a.Sequence }),
		texts(anchors, func(a *store.AnchorRecord) string { return a.Method }),
		blobs(anchors, func(a *store.AnchorRecord) []byte { return a.Digest[:] }),
		texts(anchors, func(a *store.AnchorRecord) string { return a.Status }),
		texts(anchors, func(a *store.AnchorRecord) string { return a.Reason }),
		blobs(anchors, func(a *store.AnchorRecord) []byte { return a.Proof }),
		blobs(anchors, func(a *store.AnchorRecord) []byte { return a.Block }),
		ints(anchors, func(a *store.AnchorRecord) int64 { return int64(a.UpdatedAt) }),
		blobs(anchors, func(a *store.AnchorRecord) []byte { return notNil(a.MAC) }))
}
