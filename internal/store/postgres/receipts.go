package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"math"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
)

const selectReceipts = `select ` + receiptColumns + ` from receipts `

// Receipt implements store.Reader.
func (s *Store) Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	return one(ctx, s, "receipt", selectReceipts+`where id = $1`, []any{bytesOf(id.UUID)}, scanReceipt)
}

// ReceiptOfChain implements store.Reader.
func (s *Store) ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	return one(ctx, s, "receipt of chain", selectReceipts+`where chain_id = $1`, []any{bytesOf(chain.UUID)}, scanReceipt)
}

// Receipts implements store.Reader.
func (s *Store) Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	return list(ctx, s, "receipts", selectReceipts+`where org_id = $1 and sequence < $2 order by sequence desc limit $3`,
		[]any{bytesOf(org.UUID), before, limit}, scanReceipt)
}

// Head implements store.Reader.
func (s *Store) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	return one(ctx, s, "head", `select `+headColumns+` from heads where org_id = $1`, []any{bytesOf(org.UUID)}, scanHead)
}

// ScanReceipts implements store.Reader. The record that it shows lies in the
// connection's own buffer: an audit reads every receipt there is, and copies
// none.
func (s *Store) ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error {
	const sql = selectReceipts + `where org_id = $1 and sequence between $2 and $3 order by sequence limit $4`
	receipt := new(ledger.StoredReceipt)
	return scanPages(func() (int, error) {
		count := 0
		err := s.query(ctx, "scan receipts", sql, []any{bytesOf(org.UUID), from, to, scanPage}, func(rows pgx.Rows) error {
			if err := borrowReceipt(rows.RawValues(), receipt); err != nil {
				return err
			}
			count++
			from = receipt.Sequence + 1
			return visit(receipt)
		})
		return count, err
	})
}

// ScanBodies implements store.Reader. What the receipts' own scan reads beside
// the bytes costs nothing here: the connection's buffer holds it anyway.
func (s *Store) ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error {
	return s.ScanReceipts(ctx, org, from, to, func(r *ledger.StoredReceipt) error { return visit(r.Body) })
}

var errUnexpectedForm = errors.New("the server sent a receipt in an unexpected form")

// borrowReceipt reads the binary form of receiptColumns in place.
func borrowReceipt(raw [][]byte, r *ledger.StoredReceipt) error {
	if len(raw) != 6 || len(raw[0]) != 16 || len(raw[1]) != 16 || len(raw[2]) != 8 || len(raw[3]) != 16 {
		return errUnexpectedForm
	}
	copy(r.ID.UUID[:], raw[0])
	copy(r.Org.UUID[:], raw[1])
	r.Sequence = int64(binary.BigEndian.Uint64(raw[2]))
	copy(r.Chain.UUID[:], raw[3])
	r.PreviousHash, r.Body = raw[4], raw[5]
	return nil
}
