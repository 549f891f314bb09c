package sqlite

import (
	"context"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Chain implements store.Reader.
func (s *Store) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	return readOne(ctx, s, chainByID, []any{id.UUID[:]}, scanChainOnly)
}

// uncompletedTables finds chains by their status first. SQLite would otherwise read all
// of an organization's chains to find the few that are open.
const uncompletedTables = " FROM chain_states s CROSS JOIN chains c ON c.no = s.chain_no AND c.org_id = s.org_id AND s.status <> 'completed' "

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
	tables := chainTables
	if q.Status != "" && q.Status != ledger.ChainCompleted {
		tables = uncompletedTables
		filter("s.org_id = ?", q.Org.UUID[:])
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
	query := "SELECT " + chainColumns + tables + "WHERE " + strings.Join(where, " AND ") + " ORDER BY c.id DESC LIMIT ?"
	return readAll(ctx, s, query, append(args, int64(q.Limit)), scanChainOnly)
}

// Events implements store.Reader.
func (s *Store) Events(ctx context.Context, chain ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error) {
	query := "SELECT " + eventColumns + ` FROM events
		WHERE chain_no = (SELECT no FROM chains WHERE id = ?) AND sequence > ? ORDER BY sequence LIMIT ?`
	return readAll(ctx, s, query, []any{chain.UUID[:], after, int64(limit)}, func(r row) (*ledger.StoredEvent, error) {
		return scanEvent(r, chain)
	})
}

// Addenda implements store.Reader.
func (s *Store) Addenda(ctx context.Context, chain ledger.ChainID, from, to int64) ([]*ledger.Addendum, error) {
	query := "SELECT " + addendumColumns + ` FROM addenda
		WHERE chain_no = (SELECT no FROM chains WHERE id = ?) AND sequence BETWEEN ? AND ? ORDER BY position`
	return readAll(ctx, s, query, []any{chain.UUID[:], from, to}, func(r row) (*ledger.Addendum, error) {
		return scanAddendum(r, chain)
	})
}

// The rows of a chain, by its number.
const (
	chainByID        = "SELECT " + chainColumns + chainTables + "WHERE c.id = ?"
	addendaOfChain   = "SELECT " + addendumColumns + " FROM addenda WHERE chain_no = ? ORDER BY position LIMIT ?"
	eventsOfChain    = "SELECT " + eventColumns + " FROM events WHERE chain_no = ? ORDER BY sequence LIMIT ?"
	approvalsOfChain = "SELECT " + approvalColumns + ` FROM approvals WHERE chain_id = ? AND +org_id = ?
		ORDER BY requested_at DESC, id DESC LIMIT ?`
)

// ChainRows implements store.Reader. The statements share a transaction, because beginning
// one costs as much as a lookup.
func (s *Store) ChainRows(ctx context.Context, org ledger.OrgID, chain ledger.ChainID, limit int) (*store.ChainRows, error) {
	conn, err := s.readers.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer s.readers.release(conn)
	if err := conn.exec("BEGIN"); err != nil {
		return nil, classify(err)
	}
	rows, err := conn.chainRows(org, chain, int64(limit))
	if endErr := conn.exec("ROLLBACK"); err == nil {
		err = endErr
	}
	return rows, classify(err)
}

func (c *connection) chainRows(org ledger.OrgID, chain ledger.ChainID, limit int64) (*store.ChainRows, error) {
	found := new(store.ChainRows)
	var no int64
	err := c.query(chainByID, []any{chain.UUID[:]}, func(r row) (err error) {
		found.Chain, no, err = scanChain(r)
		return err
	})
	if err == nil && found.Chain == nil {
		err = store.ErrNotFound
	}
	if err == nil {
		found.Addenda, err = all(c, addendaOfChain, []any{no, limit}, func(r row) (*ledger.Addendum, error) { return scanAddendum(r, chain) })
	}
	if err == nil {
		found.Events, err = all(c, eventsOfChain, []any{no, limit}, func(r row) (*ledger.StoredEvent, error) { return scanEvent(r, chain) })
	}
	if err == nil {
		found.Approvals, err = all(c, approvalsOfChain, []any{chain.UUID[:], org.UUID[:], limit}, scanApproval)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Chains without a state, and states without a chain: an audit must see what is left
// of a record.
const (
	statelessFrom = `SELECT c.no, c.id, c.org_id, c.opened_by, c.external_id, c.environment, c.idempotency_key, c.body,
			coalesce(s.status, ''), s.state, s.mac
		FROM chains c LEFT JOIN chain_states s ON s.chain_no = c.no AND s.org_id = c.org_id WHERE c.org_id = ? `
	stateless     = statelessFrom + "ORDER BY c.id"
	statelessRest = statelessFrom + "AND c.id > ? ORDER BY c.id"
	chainless     = `SELECT 0, x'', s.org_id, x'', NULL, '', NULL, x'', s.status, s.state, s.mac
		FROM chain_states s LEFT JOIN chains c ON c.no = s.chain_no AND c.org_id = s.org_id WHERE s.org_id = ? AND c.no IS NULL`
)

// ScanChains implements store.Reader.
func (s *Store) ScanChains(ctx context.Context, org ledger.OrgID, visit func(*store.ChainRecord) error) error {
	var last []byte // the id as stored: a forged one may have any length
	show := func(r row) error {
		last = append(last[:0], r.borrow(1)...)
		chain, _, err := scanChain(r)
		if err != nil {
			return err
		}
		return visit(chain)
	}
	rest := func() query { return query{statelessRest, []any{org.UUID[:], last}} }
	if err := s.scan(ctx, query{stateless, []any{org.UUID[:]}}, rest, show); err != nil {
		return err
	}
	return s.scan(ctx, query{chainless, []any{org.UUID[:]}}, nil, show)
}
