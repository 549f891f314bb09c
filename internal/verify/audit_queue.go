package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobDeadline is the kind of the job that escalates or times out an approval. Its body is the
// approval's id.
const JobDeadline = "approval.deadline"

// DeadlineSlack is how late an approval's deadline may be before its job counts as lost. A
// job that fails is retried every few seconds.
const DeadlineSlack = time.Hour

// deadlineGrace is how long after a missed step its job may still be scheduled ahead. It is longer
// than a job's lease and the pause before a retry. It detects an attacker who repeatedly postpones
// a job by less than DeadlineSlack.
const deadlineGrace = 10 * time.Minute

// movesInTime reports whether a job that runs at a given time handles an approval's next step in
// time.
func movesInTime(runs, next, now ledger.Time) bool {
	if next < now.Add(-deadlineGrace) {
		return runs <= now.Add(deadlineGrace)
	}
	return runs <= max(next, now).Add(DeadlineSlack)
}

// inspectQueue requires a deadline job for each open approval.
func (a *audit) inspectQueue(ctx context.Context) (*ledger.Break, error) {
	missing, err := a.judge.Approvals.MissingDeadlines(ctx, a.org.ID)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	return &ledger.Break{Check: ledger.CheckQueue, Detail: fmt.Sprintf(
		"%d approvals wait without the work that moves them on: it was deleted or put off; a server queues it anew within the hour", len(missing))}, nil
}

// MissingDeadlines returns the open approvals of an organization without a deadline job in time,
// each with its next step. Approvals that are opened or decided during the check are not included.
func (a *Approvals) MissingDeadlines(ctx context.Context, org ledger.OrgID) (map[ledger.ApprovalID]ledger.Time, error) {
	open, err := a.openApprovals(ctx, org)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	now := a.now()
	err = a.store.ScanJobs(ctx, JobDeadline, func(job *store.Job) error {
		id, err := ledger.ParseID(string(job.Body))
		approval := ledger.ApprovalID{UUID: id}
		if err == nil && job.Org == org && movesInTime(max(job.RunAt, job.LeasedUntil), open[approval], now) {
			delete(open, approval)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id := range open {
		record, err := a.store.Approval(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && !record.Status.Open():
			delete(open, id)
		case err != nil:
			return nil, err
		}
	}
	return open, nil
}

// openApprovals returns an organization's open approvals, each with its next step. Tampered
// approvals are reported elsewhere.
func (a *Approvals) openApprovals(ctx context.Context, org ledger.OrgID) (map[ledger.ApprovalID]ledger.Time, error) {
	const page = 200
	open := make(map[ledger.ApprovalID]ledger.Time)
	for _, status := range []ledger.ApprovalStatus{ledger.ApprovalPending, ledger.ApprovalEscalated} {
		query := store.ApprovalQuery{Org: org, Status: status, Limit: page}
		for {
			records, err := a.store.Approvals(ctx, query)
			if err != nil {
				return nil, err
			}
			for _, record := range records {
				query.Before = &store.ApprovalAt{RequestedAt: record.RequestedAt, ID: record.ID}
				if approval, err := a.store.ReadApproval(record); err == nil {
					open[record.ID] = approval.NextStep()
				}
			}
			if len(records) < page {
				break
			}
		}
	}
	return open, nil
}
