package postgres

import (
	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

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

// askVerification asks for tokens and signing keys.
func askVerification(x *exchange, needs *store.Needs, loaded *store.Loaded) {
	loaded.Tokens = make(map[ledger.TokenID]*store.TokenRecord)
	loaded.Issued = make(map[store.TokenRef]*store.TokenRecord)
	loaded.SigningKeys = make(map[ledger.OrgID][]*store.SigningKeyRecord)
	tokens := sorted(needs.Tokens, tokenUUID)
	askAll(x, loadTokensSQL, tokens, readToken, func(t *store.TokenRecord) { loaded.Tokens[t.ID] = t })
	if issued := distinct(needs.Issued); len(issued) > 0 {
		ask(x, loadIssuedSQL, readToken,
			func(t *store.TokenRecord) { loaded.Issued[store.TokenRef{Org: t.Org, Key: t.IdempotencyKey}] = t },
			ids(issued, func(r store.TokenRef) uuid.UUID { return r.Org.UUID }),
			texts(issued, func(r store.TokenRef) string { return r.Key }))
	}
	orgs := sorted(needs.SigningKeys, orgUUID)
	askAll(x, loadSigningKeysSQL, orgs, readSigningKey, func(k *store.SigningKeyRecord) {
		loaded.SigningKeys[k.Org] = append(loaded.SigningKeys[k.Org], k)
	})
}
