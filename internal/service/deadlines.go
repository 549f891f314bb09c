package service

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/store"
	"countersign/internal/verify"
)

// QueueDeadlines sees to it that each approval that waits has a job that moves it on: one
// that was deleted, put off, leased for ever or buried is queued anew.
func (s *Service) QueueDeadlines(ctx context.Context) error {
	orgs, err := s.organizations(ctx)
	if err != nil {
		return err
	}
	var jobs []*store.Job
	var failed []error // one organization that cannot be read keeps no other back
	for _, org := range orgs {
		missing, err := s.judge.MissingDeadlines(ctx, org.ID)
		if err != nil {
			failed = append(failed, visible(err))
			continue
		}
		for id, next := range missing {
			jobs = append(jobs, &store.Job{
				Org: org.ID, Kind: JobDeadline, RunAt: next, Body: []byte(id.String()),
				Once: fmt.Sprint(JobDeadline, "/", id, "/", s.now()/verify.DeadlineSlack), // replicas may find it missing together
			})
		}
	}
	if len(jobs) == 0 {
		return errors.Join(failed...)
	}
	s.log.Warn("approvals wait without a deadline: it is queued anew; run countersign audit", "approvals", len(jobs))
	return errors.Join(append(failed, s.committer.commit(ctx, &queueJobs{jobs}))...)
}
