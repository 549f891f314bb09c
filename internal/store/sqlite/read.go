package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func (s *Store) read(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	rows, err := s.reader.QueryContext(ctx, query, args...)
	if err != nil {
		return classify(err)
	}
	return classify(each(rows, scan))
}

// Chain implements store.Reader.
func (s *Store) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	chain, _, err := scanChain(s.reader.QueryRowContext(ctx, "SELECT "+chainColumns+chainTables+"WHERE c.id = ?", id.UUID[:]))
	return chain, classify(err)
}

// Chains implements store.Reader.
func (s *Store) Chains(ctx context.Context, q store.ChainQuery) ([]*store.ChainRecord, error) {
	where := []string{"c.org_id = ?"}
	args := []any{q.Org.UUID[:]}
	filter := func(condition string, arg any) {
		where = append(where, condition)
		args = append(args, arg)
	}
	if q.OpenedBy != nil {
		filter("c.opened_by = ?", q.OpenedBy.UUID[:])
	}
	if q.Status != "" {
		filter("s.status = ?", string(q.Status))
	}
	if q.Environment != "" {
		filter("c.environment = ?", q.Environment)
	}
	if q.ExternalID != "" {
		filter("c.external_id = ?", q.ExternalID)
	}
	if q.Before != nil {
		filter("c.id < ?", q.Before.UUID[:])
	}
	query := "SELECT " + chainColumns + chainTables + "WHERE " + strings.Join(where, " AND ") + " ORDER BY c.id DESC LIMIT ?"
	var chains []*store.ChainRecord
	err := s.read(ctx, query, append(args, q.Limit), func(rows *sql.Rows) error {
		chain, _, err := scanChain(rows)
		chains = append(chains, chain)
		return err
	})
	return chains, err
}

// Events implements store.Reader.
func (s *Store) Events(ctx context.Context, chain ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error) {
	query := strings.Replace(eventQuery, "chain_no = ?", "chain_no = (SELECT no FROM chains WHERE id = ?)", 1)
	var events []*ledger.StoredEvent
	err := s.read(ctx, query, []any{chain.UUID[:], after, limit}, func(rows *sql.Rows) error {
		event, err := scanEvent(rows, chain)
		events = append(events, event)
		return err
	})
	return events, err
}

// Addenda implements store.Reader.
func (s *Store) Addenda(ctx context.Context, chain ledger.ChainID, from, to int64) ([]*ledger.Addendum, error) {
	query := `SELECT position, sequence, body FROM addenda
		WHERE chain_no = (SELECT no FROM chains WHERE id = ?) AND sequence BETWEEN ? AND ? ORDER BY position`
	var addenda []*ledger.Addendum
	err := s.read(ctx, query, []any{chain.UUID[:], from, to}, func(rows *sql.Rows) error {
		addendum, err := scanAddendum(rows, chain)
		addenda = append(addenda, addendum)
		return err
	})
	return addenda, err
}

const receiptColumns = "SELECT id, org_id, sequence, chain_id, previous_hash, body FROM receipts "

func scanReceipt(rows row) (*ledger.StoredReceipt, error) {
	var id, org, chain []byte
	var r ledger.StoredReceipt
	if err := rows.Scan(&id, &org, &r.Sequence, &chain, &r.PreviousHash, &r.Body); err != nil {
		return nil, err
	}
	r.ID, r.Org = ledger.ReceiptID{UUID: uuid.UUID(id)}, ledger.OrgID{UUID: uuid.UUID(org)}
	r.Chain = ledger.ChainID{UUID: uuid.UUID(chain)}
	return &r, nil
}

// Receipt implements store.Reader.
func (s *Store) Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	r, err := scanReceipt(s.reader.QueryRowContext(ctx, receiptColumns+"WHERE id = ?", id.UUID[:]))
	return r, classify(err)
}

// ReceiptOfChain implements store.Reader.
func (s *Store) ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	r, err := scanReceipt(s.reader.QueryRowContext(ctx, receiptColumns+"WHERE chain_id = ?", chain.UUID[:]))
	return r, classify(err)
}

// Receipts implements store.Reader.
func (s *Store) Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	query := receiptColumns + "WHERE org_id = ? AND (? = 0 OR sequence < ?) ORDER BY sequence DESC LIMIT ?"
	var receipts []*ledger.StoredReceipt
	err := s.read(ctx, query, []any{org.UUID[:], before, before, limit}, func(rows *sql.Rows) error {
		r, err := scanReceipt(rows)
		receipts = append(receipts, r)
		return err
	})
	return receipts, err
}

// ScanReceipts implements store.Reader. An audit reads a large ledger once from
// end to end: it has a connection of its own that maps the file instead of
// copying it page by page, and no pool between itself and the rows.
func (s *Store) ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) (err error) {
	scanner, err := connect(dsn(s.path, "query_only(1)", "mmap_size(1073741824)"))
	if err != nil {
		return classify(err)
	}
	defer func() { err = errors.Join(err, scanner.close()) }()
	query := "SELECT id, sequence, chain_id, previous_hash, body FROM receipts WHERE org_id = ? AND sequence BETWEEN ? AND ? ORDER BY sequence"
	r := &ledger.StoredReceipt{Org: org}
	var id, chain []byte
	err = scanner.query(query, []any{org.UUID[:], from, to}, func(rows row) error {
		if err := rows.Scan(&id, &r.Sequence, &chain, &r.PreviousHash, &r.Body); err != nil {
			return err
		}
		copy(r.ID.UUID[:], id)
		copy(r.Chain.UUID[:], chain)
		if err := visit(r); err != nil {
			return planError{err}
		}
		return ctx.Err()
	})
	var own planError
	if errors.As(err, &own) {
		return own.error
	}
	return classify(err)
}

// Head implements store.Reader.
func (s *Store) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	head, err := scanHead(s.reader.QueryRowContext(ctx, "SELECT "+headColumns+" FROM heads WHERE org_id = ?", org.UUID[:]), org)
	return head, classify(err)
}

// ScanChains implements store.Reader.
func (s *Store) ScanChains(ctx context.Context, org ledger.OrgID, visit func(*store.ChainRecord) error) error {
	return s.read(ctx, "SELECT "+chainColumns+chainTables+"WHERE c.org_id = ? ORDER BY c.id", []any{org.UUID[:]}, func(rows *sql.Rows) error {
		chain, _, err := scanChain(rows)
		if err != nil {
			return err
		}
		return visit(chain)
	})
}

func each(rows *sql.Rows, scan func(*sql.Rows) error) error {
	defer func() { _ = rows.Close() }() // a failed close shows in rows.Err
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
