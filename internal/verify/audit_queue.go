package verify

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobDeadline moves an approval on when its time has come. Body: the approval's id.
const JobDeadline = "approval.deadline"

// DeadlineSlack is how late an approval's deadline may be before its job counts as lost,
// in milliseconds. A job that fails is tried again every few seconds.
const DeadlineSlack = ledger.Time(3_600_000)

// deadlineGrace is how far ahead the job of an approval may be whose next step is past by as
// much, in milliseconds: longer than the lease of one that runs and the pause before one
// that failed is tried again. Somebody who puts the job off again and again, by less
// than the slack each time, is found by it.
const deadlineGrace = ledger.Time(10 * 60_000)

// inTime reports whether a job that runs at a moment moves an approval on in time.
func inTime(runs, next, now ledger.Time) bool {
	if next < now-deadlineGrace {
		return runs <= now+deadlineGrace
	}
	return runs <= max(next, now)+DeadlineSlack
}

// inspectQueue wants for each approval that waits the work that moves it on.
func (a *audit) inspectQueue(ctx context.Context) (*ledger.Break, error) {
	missing, err := a.judge.MissingDeadlines(ctx, a.org.ID)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	return &ledger.Break{Check: ledger.CheckQueue, Detail: fmt.Sprintf(
		"%d approvals wait without the work that moves them on: it was deleted or put off; a server queues it anew within the hour", len(missing))}, nil
}

// MissingDeadlines are the approvals of an organization that wait without a job that
// moves them on in time, each with its next step. An approval that is decided, and one
// that is made, while this looks is not among them.
func (j *Judge) MissingDeadlines(ctx context.Context, org ledger.OrgID) (map[ledger.ApprovalID]ledger.Time, error) {
	open, err := j.openApprovals(ctx, org)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	now := j.now()
	err = j.store.ScanJobs(ctx, JobDeadline, func(job *store.Job) error {
		id, err := ledger.ParseID(string(job.Body))
		approval := ledger.ApprovalID{UUID: id}
		if err == nil && job.Org == org && inTime(max(job.RunAt, job.LeasedUntil), open[approval], now) {
			delete(open, approval)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id := range open {
		record, err := j.store.Approval(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && !record.Status.Open():
			delete(open, id)
		case err != nil:
			return nil, err
		}
	}
	return open, nil
}

// openApprovals are an organization's approvals that wait, each with its next step. What
// was tampered with is found elsewhere.
func (j *Judge) openApprovals(ctx context.Context, org ledger.OrgID) (map[ledger.ApprovalID]ledger.Time, error) {
	const page = 200
	open := make(map[ledger.ApprovalID]ledger.Time)
	for _, status := range []ledger.ApprovalStatus{ledger.ApprovalPending, ledger.ApprovalEscalated} {
		query := store.ApprovalQuery{Org: org, Status: status, Limit: page}
		for {
			records, err := j.store.Approvals(ctx, query)
			if err != nil {
				return nil, err
			}
			for _, record := range records {
				query.Before = &store.ApprovalAt{RequestedAt: record.RequestedAt, ID: record.ID}
				if approval, err := j.store.ReadApproval(record); err == nil {
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
