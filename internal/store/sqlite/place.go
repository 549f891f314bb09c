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

// A placed receipt is one row: itself, what is known of its organization, and the
// two beside it.
const (
	receiptWidth = 6
	placeWidth   = 6
	// A list of methods would make SQLite build a table for it each time.
	anchoredBy = `EXISTS (SELECT 1 FROM anchors a WHERE a.org_id = me.org_id AND a.kind = 'head' AND a.sequence >= me.sequence AND a.method = `

	placedColumns = `me.id, me.org_id, me.sequence, me.chain_id, me.previous_hash, me.body,
			coalesce(o.slug, ''), ` + anchoredBy + `'tsa') OR ` + anchoredBy + `'opentimestamps'), h.count, h.last_hash, h.key_id, h.mac,
			p.id, p.org_id, p.sequence, p.chain_id, p.previous_hash, p.body,
			n.id, n.org_id, n.sequence, n.chain_id, n.previous_hash, n.body`
	placedTables = ` LEFT JOIN organizations o ON o.id = me.org_id LEFT JOIN heads h ON h.org_id = me.org_id
		LEFT JOIN receipts p ON p.org_id = me.org_id AND p.sequence = me.sequence - 1
		LEFT JOIN receipts n ON n.org_id = me.org_id AND n.sequence = me.sequence + 1 `

	placedReceiptQuery = `SELECT ` + placedColumns + ` FROM receipts me` + placedTables + `WHERE me.id = ?`
)

var (
	activeTokenQuery = `SELECT t.` + strings.ReplaceAll(tokenColumns, ", ", ", t.") + `, ` + placedColumns + `
		FROM tokens t INDEXED BY tokens_live LEFT JOIN receipts me ON t.artifact = 'receipt' AND me.id = t.artifact_id` + placedTables + `
		WHERE t.hash = ? AND t.revoked_at IS NULL AND coalesce(t.expires_at, 9223372036854775807) > ?`
	tokenColumnCount = strings.Count(tokenColumns, ",") + 1
)

// ActiveToken implements store.Verification.
func (s *Store) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	return readOne(ctx, s, activeTokenQuery, []any{hash[:], int64(now)}, func(r row) (*store.ActiveToken, error) {
		token, err := scanToken(r)
		if err != nil {
			return nil, err
		}
		receipt, err := scanPlaced(r.skip(tokenColumnCount))
		return &store.ActiveToken{TokenRecord: token, Receipt: receipt}, err
	})
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
	return readOne(ctx, s, placedReceiptQuery, []any{id.UUID[:]}, scanPlaced)
}

// scanPlaced is nil where there is no receipt.
func scanPlaced(r row) (*store.PlacedReceipt, error) {
	receipt, err := scanIfAny(r)
	if err != nil || receipt == nil {
		return nil, err
	}
	placed := &store.PlacedReceipt{NamedReceipt: store.NamedReceipt{StoredReceipt: receipt}}
	r = r.skip(receiptWidth)
	if err := scanPlace(r, placed); err != nil {
		return nil, err
	}
	if placed.Previous, err = scanIfAny(r.skip(placeWidth)); err != nil {
		return nil, err
	}
	placed.Next, err = scanIfAny(r.skip(placeWidth + receiptWidth))
	return placed, err
}

func scanIfAny(r row) (*ledger.StoredReceipt, error) {
	if r.null() {
		return nil, nil
	}
	return scanReceipt(r)
}

func scanPlace(r row, placed *store.PlacedReceipt) error {
	var anchored int64
	if err := r.Scan(&placed.Slug, &anchored); err != nil {
		return err
	}
	placed.Anchored = anchored != 0
	r = r.skip(2)
	if r.null() {
		return nil
	}
	var err error
	placed.Head, err = scanHead(r, placed.Org)
	return err
}
