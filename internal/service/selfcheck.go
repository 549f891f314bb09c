package service

import (
	"context"
	"encoding/binary"
	"errors"
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
	checkPause   = ledger.Time(60_000) // between the jobs of one round
	mostBreaks   = 3                   // that a round goes on behind
	mostActs     = 100_000             // of an audit log that is walked
)

// checkPlace is where a round stands.
type checkPlace struct {
	from   int64 // the first receipt to read; its link to the one before is known to hold
	breaks int64 // found so far in this round
}

func (p checkPlace) encode() []byte {
	w := canon.BeginObject(nil)
	w.Int("breaks", p.breaks)
	w.Int("from", p.from)
	return w.End()
}

func decodeCheckPlace(body []byte) (p checkPlace, err error) {
	v, err := canon.Parse(body)
	if err != nil {
		return p, fmt.Errorf("a check of the ledger that cannot be read: %w", err)
	}
	from, _ := v.Get("from")
	breaks, _ := v.Get("breaks")
	p.from, _ = from.Int()
	p.breaks, _ = breaks.Int()
	p.from = max(p.from, 1)
	return p, nil
}

func checkJob(org ledger.OrgID, place checkPlace, runAt ledger.Time) *store.Job {
	return &store.Job{Org: org, Kind: JobCheck, Stream: "check/" + org.String(), RunAt: runAt, Body: place.encode()}
}

// QueueChecks sees to it that each organization's ledger is looked over, again and
// again: the first look is queued once, and each queues the next. They are spread
// over the time between two rounds.
func (s *Service) QueueChecks(ctx context.Context, every ledger.Time) error {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return visible(err)
	}
	var jobs []*store.Job
	for _, org := range orgs {
		if !s.told.knows(org.ID, JobCheck) {
			random := binary.BigEndian.Uint64(org.ID.UUID[8:]) >> 2 // without the bits that all ids share
			job := checkJob(org.ID, checkPlace{from: 1}, s.now()+ledger.Time(random%uint64(max(every, 1))))
			job.Once = JobCheck
			jobs = append(jobs, job)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	if err := s.committer.commit(ctx, &queueJobs{jobs}); err != nil {
		return err
	}
	for _, job := range jobs {
		s.told.add(job.Org, JobCheck)
	}
	return nil
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
	next := checkJob(job.Org, c.checkPlace, j.service.now()+checkPause)
	if done {
		next = checkJob(job.Org, checkPlace{from: 1}, j.service.now()+every)
	}
	return j.service.store.FinishJob(ctx, job, []*store.Job{next})
}

// check is one look under way.
type check struct {
	*audit
	checkPlace
	counted int64 // receipts, by the head
}

// run moves on through the ledger and reports whether it came to the end. What is
// done when something cannot be read is not done again.
func (c *check) run(ctx context.Context) (done bool, err error) {
	head, err := c.service.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	if head != nil {
		c.counted = head.Count
	}
	until := c.service.now() + longestCheck
	for read := 0; read < mostChecked && c.service.now() < until; read += checkSlice {
		done, err := c.slice(ctx)
		switch {
		case err != nil && read > 0:
			return false, nil
		case err != nil || done:
			return err == nil, err
		}
	}
	return false, nil
}

// slice inspects some receipts. The last of them is the first of the next slice,
// so that no link goes unseen.
func (c *check) slice(ctx context.Context) (done bool, err error) {
	newest, err := c.newest(ctx)
	if err != nil {
		return false, err
	}
	if c.breaks >= mostBreaks || c.from > max(newest, 1) { // the end is known to be broken
		return true, c.look(ctx, c.inspectPast, c.shortLog, c.inspectRegistry)
	}
	walk, found, err := c.walkOn(ctx, min(c.from+checkSlice, newest))
	if err != nil {
		return false, err
	}
	if found != nil {
		if err := c.tell(ctx, found); err != nil {
			return false, err
		}
		c.from, c.breaks = found.Sequence+1, c.breaks+1
		return false, nil
	}
	c.from = max(walk.Checked, 1)
	if walk.Checked < newest {
		return false, nil
	}
	return c.finish(ctx, walk)
}

// walkOn inspects the receipts up to one, with their chains, events and approvals.
func (c *check) walkOn(ctx context.Context, to int64) (*ledger.Walk, *ledger.Break, error) {
	s := &segment{from: c.from, to: to}
	c.inspect(ctx, s, to)
	if s.err != nil {
		return nil, nil, s.err
	}
	found := s.found
	if c.from == 1 {
		found = ledger.NewWalk().Join(s.walk, found) // nothing comes before the first
	}
	if found == nil && s.walk.Checked < to {
		found = s.walk.Join(ledger.NewWalkFrom(to+1), nil) // the last of them are missing
	}
	return s.walk, found, nil
}

// finish holds the end of the ledger against its head, and looks at what belongs to
// it as a whole. Where receipts were sealed meanwhile it is on to them first.
func (c *check) finish(ctx context.Context, walk *ledger.Walk) (done bool, err error) {
	head, err := c.service.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	if newest, err := c.newest(ctx); err != nil || newest > walk.Checked {
		return false, err
	}
	end := func(context.Context) (*ledger.Break, error) { return walk.Finish(head, c.service.keys), nil }
	return true, c.look(ctx, end, c.inspectPast, c.shortLog, c.inspectRegistry)
}

// look tells of whatever any of the inspections finds.
func (c *check) look(ctx context.Context, inspections ...func(context.Context) (*ledger.Break, error)) error {
	for _, inspect := range inspections {
		found, err := inspect(ctx)
		if err == nil && found != nil {
			err = c.tell(ctx, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shortLog walks the audit log unless it is so long that nobody knows when it ends.
func (c *check) shortLog(ctx context.Context) (*ledger.Break, error) {
	log, err := c.actLog(ctx)
	if err != nil || log != nil && log.Count > mostActs {
		return nil, err
	}
	return c.inspectActs(ctx)
}

func (c *check) tell(ctx context.Context, found *ledger.Break) error {
	t, err := c.service.broken(ctx, c.org.ID, found, c.counted)
	if err != nil {
		return err
	}
	return c.service.tell(ctx, c.org.ID, t)
}
