package postgres

import (
	"context"
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

	// Two who touch the same tokens, or one who revokes them, meet at the first and
	// wait in line; in different orders they would wait for each other.
	lockTokensSQL = `select from tokens where id = any($1::uuid[]) order by id for update`
	//nolint:gosec // no token is in it
	touchTokensSQL = `update tokens t set last_used_at = n.at from unnest($1::uuid[], $2::bigint[]) n(id, at)
		where t.id = n.id and (t.last_used_at is null or t.last_used_at < n.at)`
	// It goes from method to method and in each to the one anchor that is wanted, so
	// that it costs the same however many an organization has.
	headAnchorsSQL = `with recursive methods(name) as (
			select min(method) from anchors where org_id = $1 and kind = 'head'
			union all
			select (select min(method) from anchors where org_id = $1 and kind = 'head' and method > name) from methods where name is not null
		)
		select a.* from methods cross join lateral (` +
		selectAnchors + `where org_id = $1 and kind = 'head' and method = name and sequence >= $2 order by sequence limit 1) a`
)

// Tokens implements store.Verification. A list from its beginning is bounded by
// the largest id there can be, so that one statement and its index serve all.
func (s *Store) Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	bound := uuid.Max
	if before != nil {
		bound = before.UUID
	}
	return list(ctx, s, "tokens", selectTokens+`where org_id = $1 and id < $2 order by id desc limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(bound), limit}, readToken)
}

// TouchTokens implements store.Verification.
func (s *Store) TouchTokens(ctx context.Context, used map[ledger.TokenID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	tokens := slices.Collect(maps.Keys(used))
	wanted := ids(tokens, tokenUUID)
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(lockTokensSQL, wanted)
		x.send(touchTokensSQL, wanted, ints(tokens, func(id ledger.TokenID) int64 { return int64(used[id]) }))
		x.send(patientCommitSQL)
		return explain("touch tokens", x.run(ctx, conn))
	})
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
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		sendAnchors(x, []*store.AnchorRecord{a})
		x.send(patientCommitSQL)
		return explain("put anchor", x.run(ctx, conn))
	})
}
