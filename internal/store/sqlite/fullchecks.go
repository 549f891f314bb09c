package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const fullCheckColumns = "org_id, receipt_id, receipt_hash, failed, checked_at, mac"

func scanFullCheck(r row) (*store.FullCheckRecord, error) {
	c := new(store.FullCheckRecord)
	return c, r.Scan(&c.Org.UUID, &c.Receipt.UUID, &c.Hash, &c.Failed, (*int64)(&c.CheckedAt), &c.MAC)
}

// FullCheck implements store.Verification.
func (s *Store) FullCheck(ctx context.Context, org ledger.OrgID, receipt ledger.ReceiptID) (*store.FullCheckRecord, error) {
	query := "SELECT " + fullCheckColumns + " FROM full_checks WHERE org_id = ? AND receipt_id = ?"
	return readOne(ctx, s, query, []any{org.UUID[:], receipt.UUID[:]}, scanFullCheck)
}

// FullChecks implements store.Verification.
func (s *Store) FullChecks(ctx context.Context, org ledger.OrgID, after ledger.ReceiptID, limit int) ([]*store.FullCheckRecord, error) {
	query := "SELECT " + fullCheckColumns + " FROM full_checks WHERE org_id = ? AND receipt_id > ? ORDER BY receipt_id LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], after.UUID[:], int64(limit)}, scanFullCheck)
}

// PutFullCheck implements store.Verification.
func (s *Store) PutFullCheck(ctx context.Context, c *store.FullCheckRecord) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("INSERT INTO full_checks ("+fullCheckColumns+`) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (org_id, receipt_id) DO UPDATE SET receipt_hash = excluded.receipt_hash, failed = excluded.failed,
				checked_at = excluded.checked_at, mac = excluded.mac`,
			c.Org.UUID[:], c.Receipt.UUID[:], c.Hash[:], c.Failed, int64(c.CheckedAt), orEmpty(c.MAC))
	})
}
