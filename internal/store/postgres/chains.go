package postgres

import (
	"context"
	"fmt"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const selectChains = `select ` + chainColumns + ` from chains c join chain_states s on s.chain_id = c.id `

// Chain implements store.Reader.
func (s *Store) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	return one(ctx, s, "chain", chainByID, []any{bytesOf(id.UUID)}, readChain)
}

// Chains implements store.Reader.
func (s *Store) Chains(ctx context.Context, query store.ChainQuery) ([]*store.ChainRecord, error) {
	sql, args := chainsStatement(query)
	return list(ctx, s, "chains", sql, args, readChain)
}

// chainsStatement includes only the filters that are set, so that each combination gets its own
// plan with a suitable index. The organization is compared only in the table whose index leads to
// the chains. The other table is then joined by id.
func chainsStatement(query store.ChainQuery) (string, []any) {
	var sql strings.Builder
	sql.WriteString(selectChains)
	if query.Status == "" {
		sql.WriteString("where c.org_id = $1")
	} else {
		sql.WriteString("where s.org_id = $1")
	}
	args := []any{bytesOf(query.Org.UUID)}
	filter := func(condition string, value any) {
		args = append(args, value)
		fmt.Fprintf(&sql, " and %s $%d", condition, len(args))
	}
	if query.OpenedBy != nil {
		filter("c.opened_by =", bytesOf(query.OpenedBy.UUID))
	}
	if query.Status != "" {
		filter("s.status =", string(query.Status))
	}
	if query.Environment != "" {
		filter("c.environment =", query.Environment)
	}
	if query.ExternalID != "" {
		sql.WriteString(" and c.external_id <> ''") // the index contains only these
		filter("c.external_id =", query.ExternalID)
	}
	if query.Before != nil {
		filter("c.id <", bytesOf(query.Before.UUID))
	}
	args = append(args, query.Limit)
	fmt.Fprintf(&sql, " order by c.id desc limit $%d", len(args))
	return sql.String(), args
}

// scanPage bounds the rows of one statement of a scan, because a scan may take longer than any
// statement should.
const scanPage = 500

// An audit must see incomplete records: a chain without its state, and a state whose chain belongs
// to another organization.
const (
	auditChains = `select ` + chainColumns + ` from chains c left join chain_states s on s.chain_id = c.id and s.org_id = c.org_id
		where c.org_id = $1`
	auditStates = `select s.org_id, s.status, s.state, s.mac
		from chain_states s left join chains c on c.id = s.chain_id and c.org_id = s.org_id where s.org_id = $1 and c.id is null`
)

// ScanChains implements store.Reader.
func (s *Store) ScanChains(ctx context.Context, org ledger.OrgID, visit func(*store.ChainRecord) error) error {
	err := s.query(ctx, "scan states", auditStates, []any{bytesOf(org.UUID)}, func(r *row) error {
		left := &store.ChainRecord{Org: ledger.OrgID{UUID: r.id()}, Status: ledger.ChainStatus(r.text()), State: r.bytes(), MAC: r.bytes()}
		return show(r, left, visit)
	})
	if err != nil {
		return err
	}
	const order = ` order by c.id limit $2`
	sql, args := auditChains+order, []any{bytesOf(org.UUID), scanPage}
	return scanPages(scanPage, func() (int, error) {
		var last ledger.ChainID
		count := 0
		err := s.query(ctx, "scan chains", sql, args, func(r *row) error {
			chain := readChain(r)
			last, count = chain.ID, count+1
			return show(r, chain, visit)
		})
		sql, args = auditChains+` and c.id > $3`+order, append(args[:2], bytesOf(last.UUID))
		return count, err
	})
}

// show visits a record after checking that it was read completely.
func show[T any](r *row, record T, visit func(T) error) error {
	if err := r.end(); err != nil {
		return err
	}
	return visit(record)
}

// scanPages calls page until a page is not full.
func scanPages(size int, page func() (int, error)) error {
	for {
		count, err := page()
		if err != nil || count < size {
			return err
		}
	}
}

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

// The rows of a chain, for ChainRows.
const (
	chainByID        = selectChains + `where c.id = $1 and s.org_id = c.org_id`
	addendaOfChain   = `select ` + addendumColumns + ` from addenda a where a.chain_id = $1 order by a.position limit $2`
	eventsOfChain    = selectEvents + `where e.chain_id = $1 order by e.sequence limit $2`
	approvalsOfChain = selectApprovals + `where org_id = $1 and chain_id = $2 order by requested_at desc, id desc limit $3`
)

// ChainRows implements store.Reader, in one round trip.
func (s *Store) ChainRows(ctx context.Context, org ledger.OrgID, chain ledger.ChainID, limit int) (*store.ChainRows, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	found := new(store.ChainRows)
	rt, most := new(roundTrip), intParameter(int64(limit))
	fetch(rt, chainByID, readChain, func(c *store.ChainRecord) { found.Chain = c }, chain.UUID[:])
	fetch(rt, addendaOfChain, readAddendum, func(a *ledger.Addendum) { found.Addenda = append(found.Addenda, a) }, chain.UUID[:], most)
	fetch(rt, eventsOfChain, readEvent, func(e *ledger.StoredEvent) { found.Events = append(found.Events, e) }, chain.UUID[:], most)
	fetch(rt, approvalsOfChain, readApproval, func(a *store.ApprovalRecord) { found.Approvals = append(found.Approvals, a) }, org.UUID[:], chain.UUID[:], most)
	err = s.resetIfGone(explain("chain", rt.run(ctx, conn.Conn())))
	if err == nil && found.Chain == nil {
		err = fmt.Errorf("chain: %w", store.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// chainPage bounds the chains that a scan of events holds in memory, with their states.
const chainPage = 50

// ScanEvents implements store.Governance. A chain's id starts with the time at which it was opened,
// so the chains since then are the end of an index.
func (s *Store) ScanEvents(ctx context.Context, org ledger.OrgID, since ledger.Time, visit func(*store.ChainRecord, *ledger.StoredEvent) error) error {
	const sinceFirst, order = selectChains + `where c.org_id = $1 and c.id >= $2`, ` order by c.id desc limit $3`
	first := ledger.NewTimedID(max(since, 0), [10]byte{})
	first[6], first[8] = 0, 0 // the smallest id of that millisecond
	sql, args := sinceFirst+order, []any{bytesOf(org.UUID), bytesOf(first), chainPage}
	return scanPages(chainPage, func() (int, error) {
		chains, err := list(ctx, s, "scan chains", sql, args, readChain)
		if err != nil {
			return 0, err
		}
		for _, chain := range chains {
			err := s.scanEventsOf(ctx, chain, func(event *ledger.StoredEvent) error { return visit(chain, event) })
			if err != nil {
				return 0, err
			}
			sql, args = sinceFirst+` and c.id < $4`+order, append(args[:3], bytesOf(chain.ID.UUID))
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
