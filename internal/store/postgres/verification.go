package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	selectTokens      = `select ` + tokenColumns + ` from tokens `
	selectSigningKeys = `select ` + signingKeyColumns + ` from signing_keys `
	selectAnchors     = `select ` + anchorColumns + ` from anchors `

	// Tokens are locked in order of id before they are touched or revoked, so that two writers do
	// not deadlock.
	lockTokensSQL = `select from tokens where id = any($1::uuid[]) order by id for update`
	//nolint:gosec // no token is in it
	touchTokensSQL = `update tokens t set last_used_at = n.at from unnest($1::uuid[], $2::bigint[]) n(id, at)
		where t.id = n.id and (t.last_used_at is null or t.last_used_at < n.at)`
	// The statement visits each method and reads one anchor of it, so it costs the same however
	// many anchors an organization has.
	headAnchorsSQL = `with recursive methods(name) as (
			select min(method) from anchors where org_id = $1 and kind = 'head'
			union all
			select (select min(method) from anchors where org_id = $1 and kind = 'head' and method > name) from methods where name is not null
		)
		select a.* from methods cross join lateral (` +
		selectAnchors + `where org_id = $1 and kind = 'head' and method = name and sequence >= $2 order by sequence limit 1) a`
)

// Tokens implements store.Verification.
func (s *Store) Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	sql, args := selectTokens+`where org_id = $1`, []any{bytesOf(org.UUID), limit}
	if before != nil {
		sql, args = sql+` and id < $3`, append(args, bytesOf(before.UUID))
	}
	return list(ctx, s, "tokens", sql+` order by id desc limit $2`, args, readToken)
}

// TouchTokens implements store.Verification.
func (s *Store) TouchTokens(ctx context.Context, used map[ledger.TokenID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	tokens := slices.Collect(maps.Keys(used))
	wanted := ids(tokens, tokenUUID)
	rt := new(roundTrip)
	rt.send(lockTokensSQL, wanted)
	rt.send(touchTokensSQL, wanted, ints(tokens, func(id ledger.TokenID) int64 { return int64(used[id]) }))
	return s.runTransaction(ctx, "touch tokens", rt)
}

// SigningKeys implements store.Verification.
func (s *Store) SigningKeys(ctx context.Context, org ledger.OrgID) ([]*store.SigningKeyRecord, error) {
	return list(ctx, s, "signing keys", selectSigningKeys+`where org_id = $1 order by id`, []any{bytesOf(org.UUID)}, readSigningKey)
}

// Anchors implements store.Verification.
func (s *Store) Anchors(ctx context.Context, org ledger.OrgID, subject store.AnchorSubject) ([]*store.AnchorRecord, error) {
	return list(ctx, s, "anchors", selectAnchors+`where org_id = $1 and kind = $2 and subject_id = $3 order by method`,
		[]any{bytesOf(org.UUID), subject.Kind, bytesOf(subject.ID)}, readAnchor)
}

// HeadAnchors implements store.Verification.
func (s *Store) HeadAnchors(ctx context.Context, org ledger.OrgID, sequence int64) ([]*store.AnchorRecord, error) {
	return list(ctx, s, "anchors of heads", headAnchorsSQL, []any{bytesOf(org.UUID), sequence}, readAnchor)
}

// PutAnchor implements store.Verification.
func (s *Store) PutAnchor(ctx context.Context, a *store.AnchorRecord) error {
	rt := new(roundTrip)
	sendAnchors(rt, []*store.AnchorRecord{a})
	return s.runTransaction(ctx, "put anchor", rt)
}

const (
	//nolint:gosec // names of columns
	tokenColumns = `id, org_id, hash, artifact, artifact_id, idempotency_key, created_at, expires_at, revoked_at,
		revocation_reason, last_used_at, mac, act`
	signingKeyColumns = `id, org_id, public, private, status, name, created_at, retired_at, revoked_at, mac, act`
	anchorColumns     = `org_id, kind, subject_id, sequence, method, digest, status, reason, proof, block, updated_at, mac`

	loadTokensSQL = selectTokens + `where id = any($1::uuid[])`
	loadIssuedSQL = `select ` + tokenColumns + ` from unnest($1::uuid[], $2::text[]) n(org, key)
		join tokens on org_id = n.org and idempotency_key = n.key`
	loadSigningKeysSQL = selectSigningKeys + `where org_id = any($1::uuid[]) order by id`
)

func tokenUUID(id ledger.TokenID) uuid.UUID { return id.UUID }

func readToken(r *row) *store.TokenRecord {
	return &store.TokenRecord{
		ID: ledger.TokenID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Hash: r.hash(), Artifact: r.text(), ArtifactID: r.id(),
		IdempotencyKey: r.text(), CreatedAt: r.time(), ExpiresAt: r.timeOrNil(), RevokedAt: r.timeOrNil(),
		RevocationReason: r.text(), LastUsedAt: r.timeOrNil(), MAC: r.bytes(), Act: r.int(),
	}
}

func readSigningKey(r *row) *store.SigningKeyRecord {
	return &store.SigningKeyRecord{
		ID: ledger.SigningKeyID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Public: r.bytes(), Private: r.bytes(),
		Status: r.text(), Name: r.text(), CreatedAt: r.time(), RetiredAt: r.timeOrNil(), RevokedAt: r.timeOrNil(),
		MAC: r.bytes(), Act: r.int(),
	}
}

func readAnchor(r *row) *store.AnchorRecord {
	return &store.AnchorRecord{
		Org: ledger.OrgID{UUID: r.id()}, Subject: store.AnchorSubject{Kind: r.text(), ID: r.id()}, Sequence: r.int(), Method: r.text(),
		Digest: r.hash(), Status: r.text(), Reason: r.text(), Proof: r.bytes(), Block: r.bytes(), UpdatedAt: r.time(), MAC: r.bytes(),
	}
}

// loadVerification loads tokens and signing keys.
func loadVerification(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	loaded.Tokens = make(map[ledger.TokenID]*store.TokenRecord)
	loaded.Issued = make(map[store.TokenRef]*store.TokenRecord)
	loaded.SigningKeys = make(map[ledger.OrgID][]*store.SigningKeyRecord)
	tokens := sorted(needs.Tokens, tokenUUID)
	fetchAll(rt, loadTokensSQL, tokens, readToken, func(t *store.TokenRecord) { loaded.Tokens[t.ID] = t })
	if issued := distinct(needs.Issued); len(issued) > 0 {
		fetch(rt, loadIssuedSQL, readToken,
			func(t *store.TokenRecord) { loaded.Issued[store.TokenRef{Org: t.Org, Key: t.IdempotencyKey}] = t },
			ids(issued, func(r store.TokenRef) uuid.UUID { return r.Org.UUID }),
			texts(issued, func(r store.TokenRef) string { return r.Key }))
	}
	orgs := sorted(needs.SigningKeys, orgUUID)
	fetchAll(rt, loadSigningKeysSQL, orgs, readSigningKey, func(k *store.SigningKeyRecord) {
		loaded.SigningKeys[k.Org] = append(loaded.SigningKeys[k.Org], k)
	})
}

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

// sendTokens inserts in order of key, for the same reason as sendChains.
func sendTokens(rt *roundTrip, issued, revoked []*store.TokenRecord) {
	if len(issued) > 0 {
		issued = slices.SortedFunc(slices.Values(issued), func(a, b *store.TokenRecord) int {
			return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.IdempotencyKey, b.IdempotencyKey))
		})
		rt.send(insertTokensSQL,
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
		rt.send(lockTokensSQL, id)
		rt.update(len(revoked), "tokens", revokeTokensSQL, id,
			ids(revoked, func(t *store.TokenRecord) uuid.UUID { return t.Org.UUID }),
			intsOrNull(revoked, func(t *store.TokenRecord) *ledger.Time { return t.RevokedAt }),
			texts(revoked, func(t *store.TokenRecord) string { return t.RevocationReason }),
			blobs(revoked, func(t *store.TokenRecord) []byte { return notNil(t.MAC) }),
			ints(revoked, func(t *store.TokenRecord) int64 { return t.Act }))
	}
}

func sendSigningKeys(rt *roundTrip, keys []*store.SigningKeyRecord) {
	if len(keys) == 0 {
		return
	}
	rt.send(putSigningKeysSQL,
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

// sendAnchors writes in order of subject, for the same reason as sendChains.
func sendAnchors(rt *roundTrip, anchors []*store.AnchorRecord) {
	if len(anchors) == 0 {
		return
	}
	anchors = slices.SortedFunc(slices.Values(anchors), func(a, b *store.AnchorRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), slices.Compare(a.Subject.ID[:], b.Subject.ID[:]), cmp.Compare(a.Method, b.Method))
	})
	rt.send(putAnchorsSQL,
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

const (
	fullCheckColumns = `org_id, receipt_id, receipt_hash, failed, checked_at, mac`
	selectFullChecks = `select ` + fullCheckColumns + ` from full_checks `
	putFullCheckSQL  = `insert into full_checks (` + fullCheckColumns + `) values ($1, $2, $3, $4, $5, $6)
		on conflict (org_id, receipt_id) do update set receipt_hash = excluded.receipt_hash, failed = excluded.failed,
			checked_at = excluded.checked_at, mac = excluded.mac`
)

func readFullCheck(r *row) *store.FullCheckRecord {
	return &store.FullCheckRecord{
		Org: ledger.OrgID{UUID: r.id()}, Receipt: ledger.ReceiptID{UUID: r.id()}, Hash: r.hash(), Failed: r.text(), CheckedAt: r.time(), MAC: r.bytes(),
	}
}

// FullCheck implements store.Verification.
func (s *Store) FullCheck(ctx context.Context, org ledger.OrgID, receipt ledger.ReceiptID) (*store.FullCheckRecord, error) {
	found, err := list(ctx, s, "full check", selectFullChecks+`where org_id = $1 and receipt_id = $2`,
		[]any{bytesOf(org.UUID), bytesOf(receipt.UUID)}, readFullCheck)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("full check: %w", store.ErrNotFound)
	}
	return found[0], nil
}

// FullChecks implements store.Verification.
func (s *Store) FullChecks(ctx context.Context, org ledger.OrgID, after ledger.ReceiptID, limit int) ([]*store.FullCheckRecord, error) {
	return list(ctx, s, "full checks", selectFullChecks+`where org_id = $1 and receipt_id `+above(after.UUID)+` $2 order by receipt_id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readFullCheck)
}

// PutFullCheck implements store.Verification.
func (s *Store) PutFullCheck(ctx context.Context, c *store.FullCheckRecord) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, putFullCheckSQL, bytesOf(c.Org.UUID), bytesOf(c.Receipt.UUID), c.Hash[:], c.Failed, int64(c.CheckedAt), notNil(c.MAC))
		return explain("put full check", err)
	})
}

const (
	findingColumns  = `org_id, name, failed_check, kind, subject, evidence, found_at, seen_at, acknowledged_at, acknowledged_by, reason, mac`
	selectFindings  = `select ` + findingColumns + ` from findings `
	loadFindingsSQL = selectFindings + `join unnest($1::uuid[], $2::text[]) n(org, key) on org_id = n.org and name = n.key`
	putFindingsSQL  = `insert into findings (` + findingColumns + `)
		select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::text[], $11::text[], $12::bytea[])
		on conflict (org_id, name) do update set failed_check = excluded.failed_check, kind = excluded.kind, subject = excluded.subject,
			evidence = excluded.evidence, found_at = excluded.found_at, seen_at = excluded.seen_at, acknowledged_at = excluded.acknowledged_at,
			acknowledged_by = excluded.acknowledged_by, reason = excluded.reason, mac = excluded.mac`
)

func readFinding(r *row) *store.FindingRecord {
	return &store.FindingRecord{
		Org: ledger.OrgID{UUID: r.id()}, Name: r.text(), Check: r.text(), Kind: r.text(), Subject: r.text(), Evidence: r.bytes(),
		FoundAt: r.time(), SeenAt: r.time(), AcknowledgedAt: r.timeOrNil(), AcknowledgedBy: r.text(), Reason: r.text(), MAC: r.bytes(),
	}
}

// Finding implements store.Findings.
func (s *Store) Finding(ctx context.Context, ref store.FindingRef) (*store.FindingRecord, error) {
	return one(ctx, s, "finding", selectFindings+`where org_id = $1 and name = $2`, []any{bytesOf(ref.Org.UUID), ref.Name}, readFinding)
}

// Findings implements store.Findings.
func (s *Store) Findings(ctx context.Context, after store.FindingRef, limit int) ([]*store.FindingRecord, error) {
	return list(ctx, s, "findings", selectFindings+`where (org_id, name) > ($1, $2) order by org_id, name limit $3`,
		[]any{bytesOf(after.Org.UUID), after.Name, limit}, readFinding)
}

func loadFindings(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	loaded.Findings = make(map[store.FindingRef]*store.FindingRecord)
	if findings := distinct(needs.Findings); len(findings) > 0 {
		fetch(rt, loadFindingsSQL, readFinding, func(f *store.FindingRecord) { loaded.Findings[f.Ref()] = f },
			ids(findings, func(f store.FindingRef) uuid.UUID { return f.Org.UUID }),
			texts(findings, func(f store.FindingRef) string { return f.Name }))
	}
}

// sendFindings writes in order of name, so that two writers do not deadlock.
func sendFindings(rt *roundTrip, findings []*store.FindingRecord) {
	if len(findings) == 0 {
		return
	}
	findings = slices.SortedFunc(slices.Values(findings), func(a, b *store.FindingRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.Name, b.Name))
	})
	rt.send(putFindingsSQL,
		ids(findings, func(f *store.FindingRecord) uuid.UUID { return f.Org.UUID }),
		texts(findings, func(f *store.FindingRecord) string { return f.Name }),
		texts(findings, func(f *store.FindingRecord) string { return f.Check }),
		texts(findings, func(f *store.FindingRecord) string { return f.Kind }),
		texts(findings, func(f *store.FindingRecord) string { return f.Subject }),
		blobs(findings, func(f *store.FindingRecord) []byte { return notNil(f.Evidence) }),
		ints(findings, func(f *store.FindingRecord) int64 { return int64(f.FoundAt) }),
		ints(findings, func(f *store.FindingRecord) int64 { return int64(f.SeenAt) }),
		intsOrNull(findings, func(f *store.FindingRecord) *ledger.Time { return f.AcknowledgedAt }),
		texts(findings, func(f *store.FindingRecord) string { return f.AcknowledgedBy }),
		texts(findings, func(f *store.FindingRecord) string { return f.Reason }),
		blobs(findings, func(f *store.FindingRecord) []byte { return notNil(f.MAC) }))
}
