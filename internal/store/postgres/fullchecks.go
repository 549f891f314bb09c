package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

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
	return list(ctx, s, "full checks", selectFullChecks+`where org_id = $1 and receipt_id > $2 order by receipt_id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readFullCheck)
}

// PutFullCheck implements store.Verification.
func (s *Store) PutFullCheck(ctx context.Context, c *store.FullCheckRecord) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, putFullCheckSQL, bytesOf(c.Org.UUID), bytesOf(c.Receipt.UUID), c.Hash[:], c.Failed, int64(c.CheckedAt), notNil(c.MAC))
		return explain("put full check", err)
	})
}
