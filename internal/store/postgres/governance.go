package postgres

import (
	"context"
	"fmt"
	"math"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	selectApprovals = `select ` + approvalColumns + ` from approvals `
	selectPolicies  = `select ` + policyColumns + ` from policies `
	selectActs      = `select ` + actColumns + ` from acts `
	policySQL       = selectPolicies + `where org_id = $1 and number = $2`
)

// Approval implements store.Governance.
func (s *Store) Approval(ctx context.Context, id ledger.ApprovalID) (*store.ApprovalRecord, error) {
	return one(ctx, s, "approval", selectApprovals+`where id = $1`, []any{bytesOf(id.UUID)}, readApproval)
}

// Approvals implements store.Governance.
func (s *Store) Approvals(ctx context.Context, query store.ApprovalQuery) ([]*store.ApprovalRecord, error) {
	sql, args := approvalsStatement(query)
	return list(ctx, s, "approvals", sql, args, readApproval)
}

// approvalsStatement names only the filters that are set, as chainsStatement does.
func approvalsStatement(query store.ApprovalQuery) (string, []any) {
	var sql strings.Builder
	sql.WriteString(selectApprovals + "where org_id = $1")
	args := []any{bytesOf(query.Org.UUID)}
	filter := func(condition string, values ...any) {
		places := make([]any, len(values))
		for i, value := range values {
			args = append(args, value)
			places[i] = len(args)
		}
		fmt.Fprintf(&sql, " and "+condition, places...)
	}
	if query.OpenedBy != nil {
		filter("opened_by = $%d", bytesOf(query.OpenedBy.UUID))
	}
	if query.Chain != nil {
		filter("chain_id = $%d", bytesOf(query.Chain.UUID))
	}
	if query.Status.Open() {
		sql.WriteString(" and status in ('pending', 'escalated')") // the index holds no others
	}
	if query.Status != "" {
		filter("status = $%d", string(query.Status))
	}
	if query.Before != nil {
		filter("(requested_at, id) < ($%d, $%d)", int64(query.Before.RequestedAt), bytesOf(query.Before.ID.UUID))
	}
	args = append(args, query.Limit)
	fmt.Fprintf(&sql, " order by requested_at desc, id desc limit $%d", len(args))
	return sql.String(), args
}

// Policy implements store.Governance.
func (s *Store) Policy(ctx context.Context, org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
	return one(ctx, s, "policy", policySQL, []any{bytesOf(org.UUID), number}, readPolicy)
}

// Policies implements store.Governance.
func (s *Store) Policies(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*store.PolicyRecord, error) {
	return list(ctx, s, "policies", selectPolicies+`where org_id = $1 and number <= $2 order by number desc limit $3`,
		[]any{bytesOf(org.UUID), lastBefore(before), limit}, readPolicy)
}

// lastBefore is the largest number of a list that ends before one; 0 stands for a list of
// all. It is among them, so that nothing hides behind the largest number that there is.
func lastBefore(before int64) int64 {
	switch before {
	case 0:
		return math.MaxInt64
	case math.MinInt64:
		return before
	}
	return before - 1
}

// Webhooks implements store.Governance.
func (s *Store) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	return list(ctx, s, "webhooks", `select `+webhookColumns+` from webhooks where org_id = $1 and deleted_at is null order by id`,
		[]any{bytesOf(org.UUID)}, readWebhook)
}

// ActLog implements store.Governance.
func (s *Store) ActLog(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error) {
	return one(ctx, s, "audit log", `select `+logColumns+` from act_logs where org_id = $1`, []any{bytesOf(org.UUID)}, readLog)
}

// ActLogs implements store.Governance.
func (s *Store) ActLogs(ctx context.Context, orgs []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error) {
	found := make(map[ledger.OrgID]*ledger.ActLog, len(orgs))
	if len(orgs) == 0 {
		return found, nil
	}
	err := askAlone(ctx, s, "audit logs", loadLogsSQL, readLog, func(l *ledger.ActLog) { found[l.Org] = l }, ids(orgs, orgUUID))
	return found, err
}

// Acts implements store.Governance.
func (s *Store) Acts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredAct, error) {
	return list(ctx, s, "acts", selectActs+`where org_id = $1 and sequence <= $2 order by sequence desc limit $3`,
		[]any{bytesOf(org.UUID), lastBefore(before), limit}, readAct)
}

// ScanActs implements store.Governance. The first sequence asked for is the
// smallest number there is: an audit must see what should not be there.
func (s *Store) ScanActs(ctx context.Context, org ledger.OrgID, visit func(*ledger.StoredAct) error) error {
	last := int64(math.MinInt64)
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan acts", selectActs+`where org_id = $1 and sequence > $2 order by sequence limit $3`,
			[]any{bytesOf(org.UUID), last, scanPage}, func(r *row) error {
				act := readAct(r)
				last, count = act.Sequence, count+1
				return show(r, act, visit)
			})
		return count, err
	})
}
