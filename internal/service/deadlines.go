package service

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// deadlineSlack is how late an approval's deadline may be before its job counts as lost,
// in milliseconds. A job that fails is tried again every few seconds.
const deadlineSlack = checkSlack

// nextStep is when time moves an approval on, 0 for never.
func nextStep(a *ledger.Approval) ledger.Time {
	switch {
	case a.Status == ledger.ApprovalPending:
		return a.EscalatesAt
	case a.Status.Open():
		return a.ExpiresAt
	}
	return 0
}

// QueueDeadlines sees to it that each approval that waits has a job that moves it on: one
// that was deleted, put off, leased for ever or buried is queued anew.
func (s *Service) QueueDeadlines(ctx context.Context) error {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return visible(err)
	}
	var jobs []*store.Job
	for _, org := range orgs {
		missing, err := s.missingDeadlines(ctx, org.ID)
		if err != nil {
			return visible(err)
		}
		jobs = append(jobs, missing...)
	}
	if len(jobs) == 0 {
		return nil
	}
	s.log.Warn("approvals wait without a deadline: it is queued anew; run countersign audit", "approvals", len(jobs))
	return s.committer.commit(ctx, &queueJobs{jobs})
}

// missingDeadlines are the jobs that should be there for the approvals of an organization
// that wait, and are not, or not in time. An approval that is decided, and one that is
// made, while this looks is not among them.
func (s *Service) missingDeadlines(ctx context.Context, org ledger.OrgID) ([]*store.Job, error) {
	open, err := s.openApprovals(ctx, org)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	now := s.now()
	err = s.store.ScanJobs(ctx, JobDeadline, func(job *store.Job) error {
		id, err := ledger.ParseID(string(job.Body))
		approval := ledger.ApprovalID{UUID: id}
		if err == nil && job.Org == org && max(job.RunAt, job.LeasedUntil) <= max(open[approval], now)+deadlineSlack {
			delete(open, approval)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var missing []*store.Job
	for id, next := range open {
		record, err := s.store.Approval(ctx, id)
		if errors.Is(err, store.ErrNotFound) || err == nil && !record.Status.Open() {
			continue
		}
		if err != nil {
			return nil, err
		}
		missing = append(missing, &store.Job{
			Org: org, Kind: JobDeadline, RunAt: next, Body: []byte(id.String()),
			Once: fmt.Sprint(JobDeadline, "/", id, "/", now/deadlineSlack), // replicas may find it missing together
		})
	}
	return missing, nil
}

// openApprovals are an organization's approvals that wait, each with its next step. What
// was tampered with is the audit's affair.
func (s *Service) openApprovals(ctx context.Context, org ledger.OrgID) (map[ledger.ApprovalID]ledger.Time, error) {
	const page = 200
	open := make(map[ledger.ApprovalID]ledger.Time)
	for _, status := range []ledger.ApprovalStatus{ledger.ApprovalPending, ledger.ApprovalEscalated} {
		query := store.ApprovalQuery{Org: org, Status: status, Limit: page}
		for {
			records, err := s.store.Approvals(ctx, query)
			if err != nil {
				return nil, err
			}
			for _, record := range records {
				query.Before = &store.ApprovalAt{RequestedAt: record.RequestedAt, ID: record.ID}
				if approval, err := s.store.ReadApproval(record); err == nil {
					open[record.ID] = nextStep(approval)
				}
			}
			if len(records) < page {
				break
			}
		}
	}
	return open, nil
}
