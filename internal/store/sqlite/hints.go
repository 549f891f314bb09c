package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// TouchChains implements store.Polls.
func (s *Store) TouchChains(ctx context.Context, polled map[ledger.ChainID]ledger.Time) error {
	if len(polled) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range polled {
			err := tx.exec(`INSERT INTO chain_polls (chain_no, polled_at) SELECT no, ? FROM chains WHERE id = ?
				ON CONFLICT (chain_no) DO UPDATE SET polled_at = excluded.polled_at WHERE polled_at < excluded.polled_at`, int64(at), id.UUID[:])
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Polled implements store.Polls.
func (s *Store) Polled(ctx context.Context, chains []ledger.ChainID) (map[ledger.ChainID]ledger.Time, error) {
	polled := make(map[ledger.ChainID]ledger.Time)
	err := batches(chains, func(ids []ledger.ChainID) error {
		args := make([]any, len(ids))
		for i := range ids {
			args[i] = ids[i].UUID[:]
		}
		query := "SELECT c.id, p.polled_at FROM chains c JOIN chain_polls p ON p.chain_no = c.no WHERE c.id IN (" + placeholders(len(ids), "?") + ")"
		return s.read(ctx, query, args, func(r row) error {
			var chain ledger.ChainID
			var at int64
			err := r.Scan(&chain.UUID, &at)
			polled[chain] = ledger.Time(at)
			return err
		})
	})
	return polled, err
}

func (tx *transaction) loadPolls(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Polls {
		no, err := tx.number(id)
		if err != nil {
			return err
		}
		err = tx.query("SELECT polled_at FROM chain_polls WHERE chain_no = ?", []any{no}, func(rows row) error {
			var at int64
			err := rows.Scan(&at)
			loaded.Polls[id] = ledger.Time(at)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// AddLegacyUses implements store.LegacyUses.
func (s *Store) AddLegacyUses(ctx context.Context, uses map[store.LegacyUseRef]int64) error {
	if len(uses) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for use, requests := range uses {
			err := tx.exec(`INSERT INTO legacy_uses (org_id, day, route, requests) VALUES (?, ?, ?, ?)
				ON CONFLICT (org_id, day, route) DO UPDATE SET requests = requests + min(excluded.requests, 9007199254740992 - requests)`,
				use.Org.UUID[:], int64(use.Day), use.Route, requests)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// LegacyUses implements store.LegacyUses.
func (s *Store) LegacyUses(ctx context.Context, query store.LegacyUseQuery) ([]*store.LegacyUse, error) {
	sql, args := "SELECT org_id, day, route, requests FROM legacy_uses WHERE day >= ?", []any{int64(query.Since)}
	if query.Org != nil {
		sql, args = sql+" AND org_id = ?", append(args, query.Org.UUID[:])
	}
	if after := query.After; after != nil {
		sql, args = sql+" AND (org_id, day, route) > (?, ?, ?)", append(args, after.Org.UUID[:], int64(after.Day), after.Route)
	}
	return readAll(ctx, s, sql+" ORDER BY org_id, day, route LIMIT ?", append(args, int64(query.Limit)), scanLegacyUse)
}

func scanLegacyUse(rows row) (*store.LegacyUse, error) {
	use := new(store.LegacyUse)
	return use, rows.Scan(&use.Org.UUID, (*int64)(&use.Day), &use.Route, &use.Requests)
}

const insertPostingSQL = "INSERT INTO postings (term, place, sequence) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"

func (tx *transaction) insertPosting(p store.Posting) error {
	return tx.exec(insertPostingSQL, int64(p.Term), p.Place, p.Sequence)
}

// AddPostings implements store.Search.
func (s *Store) AddPostings(ctx context.Context, postings []store.Posting) (added int64, err error) {
	return countWritten(ctx, s, insertPostingSQL, postings, func(p store.Posting) []any {
		return []any{int64(p.Term), p.Place, p.Sequence}
	})
}

// countWritten executes an insert for each record, and returns how many rows it has written.
func countWritten[T any](ctx context.Context, s *Store, insert string, records []T, parameters func(T) []any) (written int64, err error) {
	err = s.writing(ctx, func(tx *transaction) error {
		written = 0
		return each(records, func(record T) error {
			return tx.query(insert+" RETURNING 1", parameters(record), func(row) error {
				written++
				return nil
			})
		})
	})
	return written, err
}

// Postings implements store.Search.
func (s *Store) Postings(ctx context.Context, q store.PostingQuery) ([]store.Posting, error) {
	query, args := "SELECT place, sequence FROM postings WHERE term = ? AND place >= ?", []any{int64(q.Term), orEmpty(q.From)}
	if q.Before != nil {
		query, args = query+" AND place < ?", append(args, q.Before)
	}
	return readAll(ctx, s, query+" ORDER BY place DESC LIMIT ?", append(args, int64(q.Limit)), func(r row) (store.Posting, error) {
		p := store.Posting{Term: q.Term}
		return p, r.Scan(&p.Place, &p.Sequence)
	})
}

const putReceiptPostingSQL = `INSERT INTO receipt_postings (term, block, receipts) VALUES (?, ?, ?)
	ON CONFLICT (term, block) DO UPDATE SET receipts = receipts | excluded.receipts WHERE receipts | excluded.receipts <> receipts`

func (tx *transaction) putReceiptPosting(p store.ReceiptPosting) error {
	return tx.exec(putReceiptPostingSQL, int64(p.Term), p.Block, int64(p.Receipts)) //nolint:gosec // the same 64 bits
}

// AddReceiptPostings implements store.Search.
func (s *Store) AddReceiptPostings(ctx context.Context, postings []store.ReceiptPosting) (changed int64, err error) {
	return countWritten(ctx, s, putReceiptPostingSQL, store.MergeReceiptPostings(postings), func(p store.ReceiptPosting) []any {
		return []any{int64(p.Term), p.Block, int64(p.Receipts)} //nolint:gosec // the same 64 bits
	})
}

// ReceiptPostings implements store.Search.
func (s *Store) ReceiptPostings(ctx context.Context, q store.ReceiptPostingQuery) ([]store.ReceiptPosting, error) {
	return readAll(ctx, s, "SELECT block, receipts FROM receipt_postings WHERE term = ? AND block BETWEEN ? AND ? ORDER BY block DESC LIMIT ?",
		[]any{int64(q.Term), q.From, q.To, int64(q.Limit)}, func(r row) (store.ReceiptPosting, error) {
			p, receipts := store.ReceiptPosting{Term: q.Term}, int64(0)
			err := r.Scan(&p.Block, &receipts)
			p.Receipts = uint64(receipts)
			return p, err
		})
}
