package postgres

import (
	"context"
	"math"

	"countersign/internal/ledger"
)

const selectReceipts = `select ` + receiptColumns + ` from receipts `

// Receipt implements store.Reader.
func (s *Store) Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	return one(ctx, s, "receipt", selectReceipts+`where id = $1`, []any{bytesOf(id.UUID)}, readReceipt)
}

// ReceiptOfChain implements store.Reader.
func (s *Store) ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	return one(ctx, s, "receipt of chain", selectReceipts+`where chain_id = $1`, []any{bytesOf(chain.UUID)}, readReceipt)
}

// Receipts implements store.Reader.
func (s *Store) Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	return list(ctx, s, "receipts", selectReceipts+`where org_id = $1 and sequence <= $2 order by sequence desc limit $3`,
		[]any{bytesOf(org.UUID), lastBefore(before), limit}, readReceipt)
}

// Head implements store.Reader.
func (s *Store) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	return one(ctx, s, "head", `select `+headColumns+` from heads where org_id = $1`, []any{bytesOf(org.UUID)}, readHead)
}

// ScanReceipts implements store.Reader. The record that it shows lies in the
// connection's own buffer: an audit reads every receipt there is, and copies
// none.
func (s *Store) ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error {
	const sql = selectReceipts + `where org_id = $1 and sequence between $2 and $3 order by sequence limit $4`
	receipt, last := new(ledger.StoredReceipt), from
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan receipts", sql, []any{bytesOf(org.UUID), from, to, scanPage}, func(r *row) error {
			borrowReceipt(r, receipt)
			count++
			last = receipt.Sequence
			return show(r, receipt, visit)
		})
		if last == math.MaxInt64 {
			return 0, err // nothing stands behind it
		}
		from = last + 1
		return count, err
	})
}

// ScanBodies implements store.Reader. What the receipts' own scan reads beside
// the bytes costs nothing here: the connection's buffer holds it anyway.
func (s *Store) ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error {
	return s.ScanReceipts(ctx, org, from, to, func(r *ledger.StoredReceipt) error { return visit(r.Body) })
}

// borrowReceipt reads a receipt in place.
func borrowReceipt(r *row, receipt *ledger.StoredReceipt) {
	receipt.ID.UUID, receipt.Org.UUID, receipt.Sequence, receipt.Chain.UUID = r.id(), r.id(), r.int(), r.id()
	receipt.PreviousHash, receipt.Body = r.borrow(), r.borrow()
}
