package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Strangers may ask for these as often as they like, so each is one statement.
// CROSS keeps SQLite from starting with the neighbours.
const (
	namedReceiptQuery = `SELECT r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body, coalesce(o.slug, '')
		FROM receipts r LEFT JOIN organizations o ON o.id = r.org_id WHERE r.id = ?`
	// A list of methods would make SQLite build a table for it each time.
	anchoredBy         = `EXISTS (SELECT 1 FROM anchors a WHERE a.org_id = me.org_id AND a.kind = 'head' AND a.sequence >= me.sequence AND a.method = `
	placedReceiptQuery = `SELECT r.sequence - me.sequence, r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body, coalesce(o.slug, ''),
			r.sequence = me.sequence AND (` + anchoredBy + `'tsa') OR ` + anchoredBy + `'opentimestamps')),
			h.count, h.last_hash, h.key_id, h.mac
		FROM receipts me LEFT JOIN organizations o ON o.id = me.org_id LEFT JOIN heads h ON h.org_id = me.org_id
			CROSS JOIN receipts r ON r.org_id = me.org_id AND r.sequence BETWEEN me.sequence - 1 AND me.sequence + 1
		WHERE me.id = ?`
)

// NamedReceipt implements store.Reader.
func (s *Store) NamedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.NamedReceipt, error) {
	return readOne(ctx, s, namedReceiptQuery, []any{id.UUID[:]}, func(rows row) (*store.NamedReceipt, error) {
		r := &store.NamedReceipt{StoredReceipt: new(ledger.StoredReceipt)}
		return r, rows.Scan(&r.ID.UUID, &r.Org.UUID, &r.Sequence, &r.Chain.UUID, &r.PreviousHash, &r.Body, &r.Slug)
	})
}

// PlacedReceipt implements store.Reader.
func (s *Store) PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.PlacedReceipt, error) {
	placed := new(store.PlacedReceipt)
	err := s.read(ctx, placedReceiptQuery, []any{id.UUID[:]}, func(rows row) error { return scanPlaced(rows, placed) })
	if err == nil && placed.StoredReceipt == nil {
		err = store.ErrNotFound
	}
	return placed, err
}

// scanPlaced reads the receipt itself or one beside it.
func scanPlaced(rows row, placed *store.PlacedReceipt) error {
	var offset int64
	r := new(ledger.StoredReceipt)
	err := rows.Scan(&offset, &r.ID.UUID, &r.Org.UUID, &r.Sequence, &r.Chain.UUID, &r.PreviousHash, &r.Body)
	switch {
	case err != nil:
		return err
	case offset < 0:
		placed.Previous = r
	case offset > 0:
		placed.Next = r
	default:
		placed.StoredReceipt = r
		return scanSurroundings(rows.skip(7), placed)
	}
	return nil
}

func scanSurroundings(rows row, placed *store.PlacedReceipt) error {
	var anchored int64
	var count *int64
	if err := rows.Scan(&placed.Slug, &anchored, &count); err != nil {
		return err
	}
	placed.Anchored = anchored != 0
	if count == nil {
		return nil
	}
	var err error
	placed.Head, err = scanHead(rows.skip(2), placed.Org)
	return err
}
