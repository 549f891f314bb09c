package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	selectKeys   = `select ` + keyColumns + ` from api_keys `
	insertKeySQL = `insert into api_keys (` + keyColumns + `) values ($1, $2, $3, $4, $5, $6, $7, $8)`
)

func keyArguments(key *ledger.KeyRecord) []any {
	return []any{
		bytesOf(key.ID.UUID), bytesOf(key.Org.UUID), key.Name, string(key.Role), key.Hash[:], key.Hint,
		int64(key.CreatedAt), (*int64)(key.RevokedAt),
	}
}

// CreateKey implements store.Directory.
func (s *Store) CreateKey(ctx context.Context, key *ledger.KeyRecord) error {
	return s.change(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insertKeySQL, keyArguments(key)...)
		return explain("create key", err)
	})
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return one(ctx, s, "key", selectKeys+`where id = $1`, []any{bytesOf(id.UUID)}, scanKey)
}

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return one(ctx, s, "key", selectKeys+`where hash = $1`, []any{hash[:]}, scanKey)
}

// Keys implements store.Directory.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	return list(ctx, s, "keys", selectKeys+`where org_id = $1 and id > $2 order by id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, scanKey)
}

// RevokeKey implements store.Directory.
func (s *Store) RevokeKey(ctx context.Context, org ledger.OrgID, id ledger.KeyID, at ledger.Time) (*ledger.KeyRecord, error) {
	const what = "revoke key"
	const sql = `update api_keys set revoked_at = coalesce(revoked_at, $3) where id = $1 and org_id = $2 returning ` + keyColumns
	var key *ledger.KeyRecord
	err := s.change(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sql, bytesOf(id.UUID), bytesOf(org.UUID), int64(at))
		if err != nil {
			return explain(what, err)
		}
		found, err := collect(what, rows, scanKey)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("%s: %w", what, store.ErrNotFound)
		}
		key = found[0]
		return nil
	})
	if err != nil {
		return nil, err
	}
	return key, nil
}
