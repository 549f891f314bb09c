package service

import (
	"context"
	"encoding/binary"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobCheck looks over a part of an organization's ledger and is then queued again
// for the next part. Body: see checkPlace.
const JobCheck = "ledger.check"

// A look takes so much at a time that it keeps nobody waiting, and comes to every
// receipt of a large ledger in the end.
const (
	checkSlice   = 100    // receipts that are read together
	mostChecked  = 10_000 // receipts in one job
	longestCheck = ledger.Time(20_000)
	checkPause   = ledger.Time(60_000)    // between the jobs of one round
	checkSlack   = ledger.Time(3_600_000) // that a job may be late before it counts as lost
	mostTold     = 3                      // breaks that a round tells of, and of which it reminds
	mostActs     = 100_000                // of an audit log that is walked
)

// checkPlace is where a round stands.
type checkPlace struct {
	from     int64 // the first receipt to read; its link to the one before was looked at
	looked   int64 // the last receipt whose chain was looked at
	told     int64 // breaks that were told in this round for the first time
	reminded int64 // breaks that were told again
}

func (p checkPlace) encode() []byte {
	w := canon.BeginObject(nil)
	w.Int("from", p.from)
	w.Int("looked", p.looked)
	w.Int("reminded", p.reminded)
	w.Int("told", p.told)
	return w.End()
}

func decodeCheckPlace(body []byte) (p checkPlace, err error) {
	v, err := canon.Parse(body)
	if err != nil {
		return p, fmt.Errorf("a check of the ledger that cannot be read: %w", err)
	}
	for name, field := range map[string]*int64{"from": &p.from, "looked": &p.looked, "reminded": &p.reminded, "told": &p.told} {
		member, _ := v.Get(name)
		*field, _ = member.Int()
	}
	p.from = max(p.from, 1)
	return p, nil
}

// checkJob is in no stream: one that someone put off for ever must not hold up the
// one that is queued in its stead.
func checkJob(org ledger.OrgID, place checkPlace, runAt ledger.Time) *store.Job {
	return &store.Job{Org: org, Kind: JobCheck, RunAt: runAt, Body: place.encode()}
}

// QueueChecks sees to it that each organization's ledger is looked over, again and
// again: each look queues the next, and where there is none to come, at first or
// because it was lost, this queues one. They are spread over the time between two
// rounds. The name keeps replicas that find it missing together from queueing two.
func (s *Service) QueueChecks(ctx context.Context, every ledger.Time) error {
	return s.queueMissing(ctx, JobCheck, every, func(org ledger.OrgID, runAt ledger.Time) *store.Job {
		return checkJob(org, checkPlace{from: 1}, runAt)
	})
}

// queueMissing queues a job of a kind for each organization that has none to come
// within the time between two rounds.
func (s *Service) queueMissing(ctx context.Context, kind string, every ledger.Time, job func(org ledger.OrgID, runAt ledger.Time) *store.Job) error {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return visible(err)
	}
	now := s.now()
	coming, err := s.store.JobsDue(ctx, kind, now+every+checkSlack)
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
	c := &check{audit: &audit{service: j.service, org: org}, checkPlace: place}
	done, err := c.run(ctx)
	if err != nil {
		return visible(err)
	}
	follow := []*store.Job{checkJob(job.Org, c.checkPlace, j.service.now()+checkPause)}
	if done {
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
	coming, err := j.service.store.JobsDue(ctx, JobCheck, now+every+checkSlack)
	if err != nil || coming[org] > 1 {
		return nil, err
	}
	return []*store.Job{checkJob(org, checkPlace{from: 1}, now+every)}, nil
}
