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

// OrganizationsWithApprovals implements store.Governance.
func (s *Store) OrganizationsWithApprovals(ctx context.Context) ([]ledger.OrgID, error) {
	query := "SELECT id FROM organizations WHERE EXISTS (SELECT 1 FROM approvals WHERE org_id = organizations.id)"
	return readAll(ctx, s, query, nil, func(r row) (id ledger.OrgID, err error) {
		err = r.Scan(&id.UUID)
		return id, err
	})
}

func approvalsQuery(q store.ApprovalQuery) (string, []any) {
	where := []string{"org_id = ?"}
	args := []any{q.Org.UUID[:]}
	filter := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	if q.Chain != nil {
		where[0] = "+org_id = ?" // do not use its index: a chain has few approvals, an organization many
		filter("chain_id = ?", q.Chain.UUID[:])
	}
	switch {
	case q.OpenedBy == nil:
	case q.Status.Open():
		filter("+opened_by = ?", q.OpenedBy.UUID[:]) // likewise: few of a key's approvals are open
	default:
		filter("opened_by = ?", q.OpenedBy.UUID[:])
	}
	if q.Status != "" {
		filter("status = ?", string(q.Status))
	}
	after, order := "<", "DESC"
	if q.Oldest {
		after, order = ">", "ASC"
	}
	if q.Before != nil {
		filter("(requested_at, id) "+after+" (?, ?)", int64(q.Before.RequestedAt), q.Before.ID.UUID[:])
	}
	query := "SELECT " + approvalColumns + " FROM approvals WHERE " + strings.Join(where, " AND ") + " ORDER BY requested_at " + order + ", id " + order + " LIMIT ?"
	return query, append(args, int64(q.Limit))
}

// Event implements store.Governance.
func (s *Store) Event(ctx context.Context, at store.EventAt) (*ledger.StoredEvent, error) {
	query := "SELECT " + eventColumns + " FROM events WHERE chain_no = (SELECT no FROM chains WHERE id = ?) AND sequence = ?"
	return readOne(ctx, s, query, []any{at.Chain.UUID[:], at.Sequence}, func(r row) (*ledger.StoredEvent, error) {
		return scanEvent(r, at.Chain)
	})
}

// scanQuery goes from chain to chain and in each from event to event, so that nothing
// is sorted and a scan that ends early has read little. c.no in its order tells SQLite
// that the order of chains is unique.
const (
	scanFrom = "SELECT " + chainColumns + `, e.sequence, e.idempotency_key, e.body, e.payload, e.redactions, e.mac
	FROM chains c CROSS JOIN chain_states s ON s.chain_no = c.no AND s.org_id = c.org_id CROSS JOIN events e ON e.chain_no = c.no
	WHERE c.org_id = ? AND c.id >= ?`
	scanOrder = " ORDER BY c.id DESC, c.no DESC, e.sequence"
	scanQuery = scanFrom + scanOrder
	// scanRest continues in the chain that was visited last and goes on to older chains.
	scanRest = scanFrom + " AND c.id <= ? AND NOT (c.id = ? AND c.no > ?) AND e.sequence > CASE c.no WHEN ? THEN ? ELSE -1 END" + scanOrder
)

// chainColumnCount is the number of columns in chainColumns.
var chainColumnCount = strings.Count(chainColumns, ",") + 1

// ScanEvents implements store.Governance. A chain's id begins with the time at which
// it was opened, so the smallest id of since is a lower bound: one without version and
// variant, whose bits follow the time.
func (s *Store) ScanEvents(ctx context.Context, org ledger.OrgID, since ledger.Time, visit func(*store.ChainRecord, *ledger.StoredEvent) error) error {
	first := ledger.NewTimedID(max(since, 0), [10]byte{})
	first[6], first[8] = 0, 0
	var chain *store.ChainRecord
	var chainNo int64
	// The row visited last. The chain's id is kept as stored: a forged one may have any
	// length.
	var lastID []byte
	var lastSequence int64
	rest := func() query {
		return query{scanRest, []any{org.UUID[:], first[:], lastID, lastID, chainNo, chainNo, lastSequence}}
	}
	return s.scan(ctx, query{scanQuery, []any{org.UUID[:], first[:]}}, rest, func(r row) error {
		var no int64
		if err := r.Scan(&no); err != nil {
			return err
		}
		if chain == nil || chainNo != no {
			lastID = append(lastID[:0], r.borrow(1)...)
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

// ActLogs implements store.Governance.
func (s *Store) ActLogs(ctx context.Context, orgs []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error) {
	found := make(map[ledger.OrgID]*ledger.ActLog, len(orgs))
	err := batches(orgs, func(padded []ledger.OrgID) error {
		args := make([]any, len(padded))
		for i := range padded {
			args[i] = padded[i].UUID[:]
		}
		query := "SELECT org_id, " + logColumns + " FROM act_logs WHERE org_id IN (" + placeholders(len(padded), "?") + ")"
		return s.read(ctx, query, args, func(r row) error {
			var org ledger.OrgID
			if err := r.Scan(&org.UUID); err != nil {
				return err
			}
			log, err := scanLog(r.skip(1), org)
			found[org] = log
			return err
		})
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
	return s.scan(ctx, all, rest, func(r row) error {
		act := &ledger.StoredAct{Org: org}
		if err := r.Scan(&act.Sequence, &act.Body); err != nil {
			return err
		}
		last = act.Sequence
		return visit(act)
	})
}

const (
	importedColumns = "id, org_id, import_id, key_id, record, signature, imported_at, act, mac"
	selectImported  = "SELECT " + importedColumns + " FROM imported_approvals "
)

func scanImported(rows row) (*store.ImportedApproval, error) {
	a := new(store.ImportedApproval)
	err := rows.Scan(&a.ID.UUID, &a.Org.UUID, &a.Import, &a.Key.UUID, &a.Record, &a.Signature, (*int64)(&a.ImportedAt), &a.Act, &a.MAC)
	return a, err
}

// ImportedApproval implements store.Imports.
func (s *Store) ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*store.ImportedApproval, error) {
	return readOne(ctx, s, selectImported+"WHERE id = ?", []any{id.UUID[:]}, scanImported)
}

// ImportedApprovals implements store.Imports.
func (s *Store) ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*store.ImportedApproval, error) {
	return readAll(ctx, s, selectImported+"WHERE org_id = ? AND id "+above(after.UUID)+" ? ORDER BY id LIMIT ?", []any{org.UUID[:], after.UUID[:], int64(limit)}, scanImported)
}

func (tx *transaction) loadImported(needs *store.Needs, loaded *store.Loaded) error {
	return loadEach(tx, needs.Imported, loaded.Imported, selectImported+"WHERE id = ?",
		func(id *ledger.ApprovalID) []any { return []any{id.UUID[:]} }, scanImported)
}

func (tx *transaction) insertImported(a *store.ImportedApproval) error {
	return tx.exec("INSERT INTO imported_approvals ("+importedColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		a.ID.UUID[:], a.Org.UUID[:], a.Import[:], a.Key.UUID[:], orEmpty(a.Record), orEmpty(a.Signature), int64(a.ImportedAt), a.Act, orEmpty(a.MAC))
}

// PutPolls implements store.Governance.
func (s *Store) PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error {
	if len(polls) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range polls {
			err := tx.exec(`INSERT INTO approval_polls (approval_id, polled_at) VALUES (?, ?)
				ON CONFLICT (approval_id) DO UPDATE SET polled_at = excluded.polled_at WHERE polled_at < excluded.polled_at`,
				id.UUID[:], int64(at))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Polls implements store.Governance. It makes one lookup for each: a page has few.
func (s *Store) Polls(ctx context.Context, approvals []ledger.ApprovalID) (map[ledger.ApprovalID]ledger.Time, error) {
	polls := make(map[ledger.ApprovalID]ledger.Time)
	for _, id := range approvals {
		err := s.read(ctx, "SELECT polled_at FROM approval_polls WHERE approval_id = ?", []any{id.UUID[:]}, func(r row) error {
			var at int64
			err := r.Scan(&at)
			polls[id] = ledger.Time(at)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return polls, nil
}
