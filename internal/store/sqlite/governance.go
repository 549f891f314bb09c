package sqlite

import (
	"context"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Approval implements store.Governance.
func (s *Store) Approval(ctx context.Context, id ledger.ApprovalID) (*store.ApprovalRecord, error) {
	return readOne(ctx, s, "SELECT "+approvalColumns+" FROM approvals WHERE id = ?", []any{id.UUID[:]}, scanApproval)
}

// Approvals implements store.Governance.
func (s *Store) Approvals(ctx context.Context, q store.ApprovalQuery) ([]*store.ApprovalRecord, error) {
	query, args := approvalsQuery(q)
	return readAll(ctx, s, query, args, scanApproval)
}

func approvalsQuery(q store.ApprovalQuery) (string, []any) {
	where := []string{"org_id = ?"}
	args := []any{q.Org.UUID[:]}
	filter := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	if q.Chain != nil {
		where[0] = "+org_id = ?" // without its index: a chain has few approvals, an organization many
		filter("chain_id = ?", q.Chain.UUID[:])
	}
	switch {
	case q.OpenedBy == nil:
	case q.Status.Open():
		filter("+opened_by = ?", q.OpenedBy.UUID[:]) // likewise: few of anybody's approvals are open
	default:
		filter("opened_by = ?", q.OpenedBy.UUID[:])
	}
	if q.Status != "" {
		filter("status = ?", string(q.Status))
	}
	if q.Before != nil {
		filter("(requested_at, id) < (?, ?)", int64(q.Before.RequestedAt), q.Before.ID.UUID[:])
	}
	query := "SELECT " + approvalColumns + " FROM approvals WHERE " + strings.Join(where, " AND ") + " ORDER BY requested_at DESC, id DESC LIMIT ?"
	return query, append(args, int64(q.Limit))
}

// Event implements store.Governance.
func (s *Store) Event(ctx context.Context, at store.EventAt) (*ledger.StoredEvent, error) {
	query := "SELECT " + eventColumns + " FROM events WHERE chain_no = (SELECT no FROM chains WHERE id = ?) AND sequence = ?"
	return readOne(ctx, s, query, []any{at.Chain.UUID[:], at.Sequence}, func(r row) (*ledger.StoredEvent, error) {
		return scanEvent(r, at.Chain)
	})
}

// scanQuery goes from chain to chain and in each from event to event, so that
// nothing is sorted and a scan that ends early has read little. The number in its
// order is there to tell SQLite that no two chains have the same place.
const (
	scanFrom = "SELECT " + chainColumns + `, e.sequence, e.idempotency_key, e.body, e.payload, e.redactions, e.mac
	FROM chains c CROSS JOIN chain_states s ON s.chain_no = c.no AND s.org_id = c.org_id CROSS JOIN events e ON e.chain_no = c.no
	WHERE c.org_id = ? AND c.id >= ?`
	scanOrder = " ORDER BY c.id DESC, c.no DESC, e.sequence"
	scanQuery = scanFrom + scanOrder
	// The rest of the chain that was visited last, and the chains behind it.
	scanRest = scanFrom + " AND c.id <= ? AND NOT (c.id = ? AND c.no > ?) AND e.sequence > CASE c.no WHEN ? THEN ? ELSE -1 END" + scanOrder
)

// chainColumnCount is how many columns of scanQuery are the chain's.
var chainColumnCount = strings.Count(chainColumns, ",") + 1

// ScanEvents implements store.Governance. A chain's id begins with the moment at
// which it was opened, and the smallest one of a moment finds all of them.
func (s *Store) ScanEvents(ctx context.Context, org ledger.OrgID, since ledger.Time, visit func(*store.ChainRecord, *ledger.StoredEvent) error) error {
	first := ledger.NewTimedID(max(since, 0), [10]byte{})
	var chain *store.ChainRecord
	var chainNo int64
	// The row visited last, with the chain's id as it is stored, which need not be one.
	var lastID []byte
	var lastSequence int64
	rest := func() query {
		return query{scanRest, []any{org.UUID[:], first[:], lastID, lastID, chainNo, chainNo, lastSequence}}
	}
	return s.scanAlone(ctx, query{scanQuery, []any{org.UUID[:], first[:]}}, rest, func(r row) error {
		var no int64
		if err := r.Scan(&no); err != nil {
			return err
		}
		if chain == nil || chainNo != no {
			lastID = append(lastID[:0], r.lend(1)...)
			var err error
			if chain, chainNo, err = scanChain(r); err != nil {
				return err
			}
		}
		event, err := scanEvent(r.skip(chainColumnCount), chain.ID)
		if err != nil {
			return err
		}
		lastSequence = event.Sequence
		return visit(chain, event)
	})
}

const policyQuery = "SELECT " + policyColumns + " FROM policies WHERE org_id = ? AND number = ?"

// Policy implements store.Governance.
func (s *Store) Policy(ctx context.Context, org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
	return readOne(ctx, s, policyQuery, []any{org.UUID[:], number}, scanPolicy)
}

// Policies implements store.Governance.
func (s *Store) Policies(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*store.PolicyRecord, error) {
	query := "SELECT " + policyColumns + " FROM policies WHERE org_id = ? AND number <= ? ORDER BY number DESC LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], lastBefore(before), int64(limit)}, scanPolicy)
}

// ActLog implements store.Governance.
func (s *Store) ActLog(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error) {
	return readOne(ctx, s, "SELECT "+logColumns+" FROM act_logs WHERE org_id = ?", []any{org.UUID[:]}, func(r row) (*ledger.ActLog, error) {
		return scanLog(r, org)
	})
}

// ActLogs implements store.Governance. One statement of any length would be planned anew
// for each, so it asks for a list of one length after the other.
func (s *Store) ActLogs(ctx context.Context, orgs []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error) {
	found := make(map[ledger.OrgID]*ledger.ActLog, len(orgs))
	err := lists(orgs, func(padded []ledger.OrgID) error {
		args := make([]any, len(padded))
		for i := range padded {
			args[i] = padded[i].UUID[:]
		}
		query := "SELECT org_id, " + logColumns + " FROM act_logs WHERE org_id IN (" + marks(len(padded), "?") + ")"
		_, err := readAll(ctx, s, query, args, func(r row) (*ledger.ActLog, error) {
			var org ledger.OrgID
			if err := r.Scan(&org.UUID); err != nil {
				return nil, err
			}
			log, err := scanLog(r.skip(1), org)
			found[org] = log
			return log, err
		})
		return err
	})
	return found, err
}

// Acts implements store.Governance.
func (s *Store) Acts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredAct, error) {
	query := "SELECT sequence, body FROM acts WHERE org_id = ? AND sequence <= ? ORDER BY sequence DESC LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], lastBefore(before), int64(limit)}, func(r row) (*ledger.StoredAct, error) {
		act := &ledger.StoredAct{Org: org}
		return act, r.Scan(&act.Sequence, &act.Body)
	})
}

// ScanActs implements store.Governance.
func (s *Store) ScanActs(ctx context.Context, org ledger.OrgID, visit func(*ledger.StoredAct) error) error {
	var last int64 // the sequence of the act visited last
	all := query{"SELECT sequence, body FROM acts WHERE org_id = ? ORDER BY sequence", []any{org.UUID[:]}}
	rest := func() query {
		return query{"SELECT sequence, body FROM acts WHERE org_id = ? AND sequence > ? ORDER BY sequence", []any{org.UUID[:], last}}
	}
	return s.scanAlone(ctx, all, rest, func(r row) error {
		act := &ledger.StoredAct{Org: org}
		if err := r.Scan(&act.Sequence, &act.Body); err != nil {
			return err
		}
		last = act.Sequence
		return visit(act)
	})
}
