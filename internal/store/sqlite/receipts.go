package sqlite

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const receiptColumns = "SELECT id, org_id, sequence, chain_id, previous_hash, body FROM receipts "

func scanReceipt(rows row) (*ledger.StoredReceipt, error) {
	r := new(ledger.StoredReceipt)
	return r, rows.Scan(&r.ID.UUID, &r.Org.UUID, &r.Sequence, &r.Chain.UUID, &r.PreviousHash, &r.Body)
}

// Receipt implements store.Reader.
func (s *Store) Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	return readOne(ctx, s, receiptColumns+"WHERE id = ?", []any{id.UUID[:]}, scanReceipt)
}

// ReceiptOfChain implements store.Reader.
func (s *Store) ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	return readOne(ctx, s, receiptColumns+"WHERE chain_id = ?", []any{chain.UUID[:]}, scanReceipt)
}

// Receipts implements store.Reader.
func (s *Store) Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	query := receiptColumns + "WHERE org_id = ? AND sequence <= ? ORDER BY sequence DESC LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], lastBefore(before), int64(limit)}, scanReceipt)
}

// ScanReceipts implements store.Reader.
func (s *Store) ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error {
	receipt := &ledger.StoredReceipt{Org: org}
	const columns = "SELECT id, sequence, chain_id, previous_hash, body FROM receipts WHERE org_id = ?"
	all := query{columns + " AND sequence BETWEEN ? AND ? ORDER BY sequence", []any{org.UUID[:], from, to}}
	rest := func() query {
		return query{columns + " AND sequence > ? AND sequence <= ? ORDER BY sequence", []any{org.UUID[:], receipt.Sequence, to}}
	}
	return s.scan(ctx, all, rest, func(r row) error {
		if err := r.Scan(&receipt.ID.UUID, &receipt.Sequence, &receipt.Chain.UUID); err != nil {
			return err
		}
		receipt.PreviousHash, receipt.Body = r.borrow(3), r.borrow(4)
		return visit(receipt)
	})
}

// Head implements store.Reader.
func (s *Store) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	return readOne(ctx, s, "SELECT "+headColumns+" FROM heads WHERE org_id = ?", []any{org.UUID[:]}, func(r row) (*ledger.Head, error) {
		return scanHead(r, org)
	})
}

// Anonymous callers request these, as often as they like, so each is one statement.
const namedReceiptQuery = `SELECT r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body, coalesce(o.slug, '')
	FROM receipts r LEFT JOIN organizations o ON o.id = r.org_id WHERE r.id = ?`

// A placed receipt is one row: the receipt, facts about its organization, the previous
// receipt and the next one. The widths are numbers of columns.
const (
	receiptWidth = 6
	placeWidth   = 6
	// One term for each method: for a list SQLite would build a table each time.
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

const activeTokenQuery = "SELECT " + tokenColumns + " FROM tokens INDEXED BY tokens_live" +
	" WHERE hash = ? AND revoked_at IS NULL AND coalesce(expires_at, 9223372036854775807) > ?"

// ActiveToken implements store.Verification. The receipt is read only on demand, because Epoch may
// show that there is no need to.
func (s *Store) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	token, err := readOne(ctx, s, activeTokenQuery, []any{hash[:], int64(now)}, scanToken)
	if err != nil {
		return nil, err
	}
	return &store.ActiveToken{TokenRecord: token, Receipt: func(ctx context.Context) (*store.PlacedReceipt, error) {
		if token.Artifact != ledger.ArtifactReceipt {
			return nil, nil
		}
		placed, err := s.PlacedReceipt(ctx, ledger.ReceiptID{UUID: token.ArtifactID})
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		return placed, err
	}}, nil
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

// scanPlaced returns nil when there is no receipt.
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

// scanIfAny returns nil when the first column is null.
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

// ScanBodies implements store.Reader. The visited bytes are in SQLite's memory: hashing
// is so fast that copying them would be most of the work.
func (s *Store) ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error {
	span, err := s.spanOf(ctx, org, from, to)
	if err != nil {
		return err
	}
	var last int64 // row number or sequence
	all := query{indexedFrom + "sequence BETWEEN ?2 AND ?3 ORDER BY sequence", []any{org.UUID[:], from, to}}
	rest := func() query {
		return query{indexedFrom + "sequence > ?2 AND sequence <= ?3 ORDER BY sequence", []any{org.UUID[:], last, to}}
	}
	if span.dense {
		all = query{denseFrom + "no BETWEEN ?4 AND ?5 ORDER BY no", []any{org.UUID[:], from, to, span.first, span.last}}
		rest = func() query {
			return query{denseFrom + "no > ?4 AND no <= ?5 ORDER BY no", []any{org.UUID[:], from, to, last, span.last}}
		}
	}
	return s.scan(ctx, all, rest, func(r row) error {
		if err := r.skip(1).Scan(&last); err != nil {
			return err
		}
		return visit(r.borrow(0))
	})
}

// span is the range of rows that contains a range of receipts.
type span struct {
	first, last int64 // row numbers
	dense       bool  // more than half of these rows are wanted
}

// spanOf reads only the index. Receipts are appended by sequence, so the rows of one
// organization are in that order too. Where few other rows lie between them, the table
// is read from first to last, which saves a descent of its tree for each receipt. Rows
// that somebody has reordered are visited in that order, and the walk over them fails.
func (s *Store) spanOf(ctx context.Context, org ledger.OrgID, from, to int64) (*span, error) {
	found := new(span)
	var first, last int64 // sequences
	for _, end := range []struct {
		order         string
		row, sequence *int64
	}{{"ASC", &found.first, &first}, {"DESC", &found.last, &last}} {
		query := "SELECT no, sequence FROM receipts WHERE org_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence " + end.order + " LIMIT 1"
		err := s.read(ctx, query, []any{org.UUID[:], from, to}, func(r row) error { return r.Scan(end.row, end.sequence) })
		if err != nil {
			return nil, err
		}
	}
	rows := found.last - found.first
	found.dense = rows >= 0 && rows < 2*(last-first+1)
	return found, nil
}

const (
	indexedFrom = "SELECT body, sequence FROM receipts WHERE org_id = ?1 AND "
	// The plus signs keep the planner from using the index on sequences.
	denseFrom = "SELECT body, no FROM receipts WHERE +org_id = ?1 AND +sequence BETWEEN ?2 AND ?3 AND "
)
