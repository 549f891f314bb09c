package service

import (
	"context"
	"encoding/binary"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// JobCheck looks over a part of an organization's ledger and is then queued again
// for the next part. Body: see encodeCheckPlace.
const JobCheck = "ledger.check"

const (
	checkPause = ledger.Time(60_000)    // between the jobs of one round
	checkSlack = ledger.Time(3_600_000) // that a job may be late before it counts as lost
)

func encodeCheckPlace(p verify.CheckPlace) []byte {
	w := canon.BeginObject(nil)
	w.Int("from", p.From)
	w.Int("looked", p.Looked)
	w.Int("reminded", p.Reminded)
	w.Int("told", p.Told)
	return w.End()
}

func decodeCheckPlace(body []byte) (p verify.CheckPlace, err error) {
	v, err := canon.Parse(body)
	if err != nil {
		return p, fmt.Errorf("a check of the ledger that cannot be read: %w", err)
	}
	for name, field := range map[string]*int64{"from": &p.From, "looked": &p.Looked, "reminded": &p.Reminded, "told": &p.Told} {
		member, _ := v.Get(name)
		*field, _ = member.Int()
	}
	p.From = max(p.From, 1)
	return p, nil
}

// checkJob is in no stream: one that someone put off for ever must not hold up the
// one that is queued in its stead.
func checkJob(org ledger.OrgID, place verify.CheckPlace, runAt ledger.Time) *store.Job {
	return &store.Job{Org: org, Kind: JobCheck, RunAt: runAt, Body: encodeCheckPlace(place)}
}

// QueueChecks sees to it that each organization's ledger is looked over, again and
// again: each look queues the next, and where there is none to come, at first or
// because it was lost, this queues one. They are spread over the time between two
// rounds. The name keeps replicas that find it missing together from queueing two.
func (s *Service) QueueChecks(ctx context.Context, every ledger.Time) error {
	return s.queueMissing(ctx, JobCheck, every, func(org ledger.OrgID, runAt ledger.Time) *store.Job {
		return checkJob(org, verify.CheckPlace{From: 1}, runAt)
	})
}

// queueMissing queues a job of a kind for each organization that has none to come
// within the time between two rounds.
func (s *Service) queueMissing(ctx context.Context, kind string, every ledger.Time, job func(org ledger.OrgID, runAt ledger.Time) *store.Job) error {
	orgs, err := s.organizations(ctx)
	if err != nil {
		return err
	}
	now := s.now()
	coming, err := s.store.JobsDue(ctx, kind, now, now+every+checkSlack)
	if err != nil {
		return visible(err)
	}
	var jobs []*store.Job
	for _, org := range orgs {
		if coming[org.ID] == 0 {
			random := ledger.Time(binary.BigEndian.Uint64(org.ID.UUID[8:]) >> 2) // without the bits that all ids share
			missing := job(org.ID, now+random%max(every, 1))
			missing.Once = fmt.Sprint(kind, "/", now/checkSlack)
			jobs = append(jobs, missing)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	return s.committer.commit(ctx, &queueJobs{jobs})
}

// CheckLedger looks over the next part of a ledger, tells the organization of what
// is broken there, and queues the look after it: soon, or, at the end, for when the
// next round is due.
func (j *Jobs) CheckLedger(ctx context.Context, job *store.Job, every ledger.Time) error {
	place, err := decodeCheckPlace(job.Body)
	if err != nil {
		return err
	}
	org, err := j.service.store.Organization(ctx, job.Org)
	if err != nil {
		return visible(err)
	}
	next, done, err := j.service.judge.LookOver(ctx, org, place, tamperReporter{j.service})
	if err != nil {
		return visible(err)
	}
	follow := []*store.Job{checkJob(job.Org, next, j.service.now()+checkPause)}
	if done {
		j.service.rounds.end(job.Org, j.service.now())
		if follow, err = j.nextRound(ctx, job.Org, every); err != nil {
			return visible(err)
		}
	}
	return j.service.store.FinishJob(ctx, job, follow)
}

// nextRound is none when another job than the one that ends here is there for it:
// of two, for whatever reason, one remains. Should both end at once, and see each
// other, QueueChecks finds that there is none.
func (j *Jobs) nextRound(ctx context.Context, org ledger.OrgID, every ledger.Time) ([]*store.Job, error) {
	now := j.service.now()
	coming, err := j.service.store.JobsDue(ctx, JobCheck, now, now+every+checkSlack)
	if err != nil || coming[org] > 1 {
		return nil, err
	}
	return []*store.Job{checkJob(org, verify.CheckPlace{From: 1}, now+every)}, nil
}
