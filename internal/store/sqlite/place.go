package sqlite

import (
	"context"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Strangers may ask for these as often as they like, so each is one statement.
const namedReceiptQuery = `SELECT r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body, coalesce(o.slug, '')
	FROM receipts r LEFT JOIN organizations o ON o.id = r.org_id WHERE r.id = ?`

// A placed receipt is one row, and one for each beside it.
const (
	// A list of methods would make SQLite build a table for it each time.
	anchoredBy = `EXISTS (SELECT 1 FROM anchors a WHERE a.org_id = me.org_id AND a.kind = 'head' AND a.sequence >= me.sequence AND a.method = `

	placedColumns = `r.sequence - me.sequence, r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body, coalesce(o.slug, ''),
			r.sequence = me.sequence AND (` + anchoredBy + `'tsa') OR ` + anchoredBy + `'opentimestamps')),
			h.count, h.last_hash, h.key_id, h.mac`
	placedTables = ` LEFT JOIN organizations o ON o.id = me.org_id LEFT JOIN heads h ON h.org_id = me.org_id
		LEFT JOIN receipts r ON r.org_id = me.org_id AND r.sequence BETWEEN me.sequence - 1 AND me.sequence + 1 `

	placedReceiptQuery = `SELECT ` + placedColumns + ` FROM receipts me` + placedTables + `WHERE me.id = ?`
)

var (
	activeTokenQuery = `SELECT t.` + strings.ReplaceAll(tokenColumns, ", ", ", t.") + `, ` + placedColumns + `
		FROM tokens t LEFT JOIN receipts me ON t.artifact = 'receipt' AND me.id = t.artifact_id` + placedTables + `
		WHERE t.hash = ? AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?)`
	tokenColumnCount = strings.Count(tokenColumns, ",") + 1
)

// ActiveToken implements store.Verification.
func (s *Store) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	var token *store.ActiveToken
	err := s.read(ctx, activeTokenQuery, []any{hash[:], int64(now)}, func(r row) error {
		if token == nil {
			record, err := scanToken(r)
			if err != nil {
				return err
			}
			token = &store.ActiveToken{TokenRecord: record}
		}
		return scanPlaced(r.skip(tokenColumnCount), &token.Receipt)
	})
	if err == nil && token == nil {
		err = store.ErrNotFound
	}
	return token, err
}

// NamedReceipt implements store.Reader.
func (s *Store) NamedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.NamedReceipt, error) {
	return readOne(ctx, s, namedReceiptQuery, []any{id.UUID[:]}, func(rows row) (*store.NamedReceipt, error) {
		r := &store.NamedReceipt{StoredReceipt: new(ledger.StoredReceipt)}
		return r, rows.Scan(&r.ID.UUID, &r.Org.UUID, &r.Sequence, &r.Chain.UUID, &r.PreviousHash, &r.Body, &r.Slug)
	})
}

// PlacedReceipt implements store.Reader.
func (s *Store) PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.PlacedReceipt, error) {
	var placed *store.PlacedReceipt
	err := s.read(ctx, placedReceiptQuery, []any{id.UUID[:]}, func(r row) error { return scanPlaced(r, &placed) })
	if err == nil && placed == nil {
		err = store.ErrNotFound
	}
	return placed, err
}

// scanPlaced reads the receipt itself or one beside it; there may be none at all.
func scanPlaced(rows row, into **store.PlacedReceipt) error {
	var offset *int64
	if err := rows.Scan(&offset); err != nil || offset == nil {
		return err
	}
	if *into == nil {
		*into = new(store.PlacedReceipt)
	}
	placed, r := *into, new(ledger.StoredReceipt)
	if err := rows.skip(1).Scan(&r.ID.UUID, &r.Org.UUID, &r.Sequence, &r.Chain.UUID, &r.PreviousHash, &r.Body); err != nil {
		return err
	}
	switch {
	case *offset < 0:
		placed.Previous = r
	case *offset > 0:
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
