package sqlite

import (
	"context"

	"countersign/internal/ledger"
)

// ScanBodies implements store.Reader. The bytes are lent from SQLite's own memory
// for the length of a visit: at the speed at which receipts are hashed, copying
// them would be most of the work.
func (s *Store) ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error {
	span, err := s.spanOf(ctx, org, from, to)
	if err != nil {
		return err
	}
	var last int64 // row or sequence
	ask := func() query { return query{indexedQuery, []any{org.UUID[:], from, to}} }
	rest := func() query {
		from = last + 1
		return ask()
	}
	if span.dense {
		ask = func() query { return query{denseQuery, []any{org.UUID[:], from, to, span.first, span.last}} }
		rest = func() query {
			span.first = last + 1
			return ask()
		}
	}
	return s.scanAlone(ctx, ask(), rest, func(r row) error {
		if err := r.skip(1).Scan(&last); err != nil {
			return err
		}
		return visit(r.lend(0))
	})
}

// span is where a range of receipts lies in the table.
type span struct {
	first, last int64 // rows
	dense       bool  // most rows between them are of the range
}

// spanOf looks at the index alone. Receipts are appended in order of their
// sequence, so those of one organization lie in the table in that order too, and
// where few others lie between them the table is read straight through: faster by
// a descent of its tree for each receipt. Rows that someone has put into another
// order come out in that order, and the walk over them says so.
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
	indexedQuery = "SELECT body, sequence FROM receipts WHERE org_id = ?1 AND sequence BETWEEN ?2 AND ?3 ORDER BY sequence"
	// The plus signs keep the planner from the index of sequences.
	denseQuery = "SELECT body, no FROM receipts WHERE no BETWEEN ?4 AND ?5 AND +org_id = ?1 AND +sequence BETWEEN ?2 AND ?3 ORDER BY no"
)
