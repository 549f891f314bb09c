package postgres

import (
	"context"
	"math"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const selectEvents = `select ` + eventColumns + ` from events e `

// Events implements store.Reader.
func (s *Store) Events(ctx context.Context, chain ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error) {
	return list(ctx, s, "events", selectEvents+`where e.chain_id = $1 and e.sequence > $2 order by e.sequence limit $3`,
		[]any{bytesOf(chain.UUID), after, limit}, readEvent)
}

// Event implements store.Governance.
func (s *Store) Event(ctx context.Context, at store.EventAt) (*ledger.StoredEvent, error) {
	return one(ctx, s, "event", selectEvents+`where e.chain_id = $1 and e.sequence = $2`, []any{bytesOf(at.Chain.UUID), at.Sequence}, readEvent)
}

// Addenda implements store.Reader.
func (s *Store) Addenda(ctx context.Context, chain ledger.ChainID, from, to int64) ([]*ledger.Addendum, error) {
	return list(ctx, s, "addenda",
		`select `+addendumColumns+` from addenda a where a.chain_id = $1 and a.sequence between $2 and $3 order by a.position`,
		[]any{bytesOf(chain.UUID), from, to}, readAddendum)
}

// chainPage bounds the chains that a scan of events holds at a time, with their
// states.
const chainPage = 50

// ScanEvents implements store.Governance. A chain's id carries the moment at which
// it was opened, so that those since then are the end of an index.
func (s *Store) ScanEvents(ctx context.Context, org ledger.OrgID, since ledger.Time, visit func(*store.ChainRecord, *ledger.StoredEvent) error) error {
	const sql = selectChains + `where c.org_id = $1 and c.id >= $2 and c.id < $3 order by c.id desc limit $4`
	first := ledger.NewTimedID(max(since, 0), [10]byte{})
	first[6], first[8] = 0, 0 // the smallest of all ids of the moment
	last := ledger.ChainID{}
	for i := range last.UUID {
		last.UUID[i] = math.MaxUint8
	}
	return scanPages(chainPage, func() (int, error) {
		chains, err := list(ctx, s, "scan chains", sql, []any{bytesOf(org.UUID), bytesOf(first), bytesOf(last.UUID), chainPage}, readChain)
		if err != nil {
			return 0, err
		}
		for _, chain := range chains {
			last = chain.ID
			err := s.scanEventsOf(ctx, chain, func(event *ledger.StoredEvent) error { return visit(chain, event) })
			if err != nil {
				return 0, err
			}
		}
		return len(chains), nil
	})
}

func (s *Store) scanEventsOf(ctx context.Context, chain *store.ChainRecord, visit func(*ledger.StoredEvent) error) error {
	after := int64(0)
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan events", selectEvents+`where e.chain_id = $1 and e.sequence > $2 order by e.sequence limit $3`,
			[]any{bytesOf(chain.ID.UUID), after, scanPage}, func(r *row) error {
				event := readEvent(r)
				after, count = event.Sequence, count+1
				return show(r, event, visit)
			})
		return count, err
	})
}
