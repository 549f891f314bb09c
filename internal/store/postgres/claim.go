package postgres

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// A claim never waits for another: locked rows and locked streams are skipped. Which job of a
// stream may run is decided under the stream's lock, by a statement that starts after the lock was
// granted.
const (
	dueJobsSQL = `select j.no, j.kind, j.stream from unnest($2::text[], $3::bigint[]) w(kind, count)
		cross join lateral (select no, kind, stream, run_at from jobs
			where not held and not buried and kind = w.kind and run_at <= $1 and (leased_until is null or leased_until <= $1)
			order by run_at, no limit w.count for update skip locked) j
		order by j.run_at, j.no`
	tryStreamsSQL = `select n.stream from unnest($1::text[], $2::bigint[]) n(stream, key)
		where pg_try_advisory_xact_lock('jobs'::regclass::oid::int, n.key::int)`
	judgeStreamsSQL = `select n.stream,
			coalesce((select j.no from jobs j where j.stream = n.stream and j.stream <> '' and j.attempts > 0 and not j.buried limit 1), 0),
			coalesce((select j.no from jobs j where j.stream = n.stream and j.stream <> '' and not j.held and not j.buried
				order by j.run_at, j.no limit 1), 0)
		from unnest($1::text[]) n(stream)`
	leaseJobsSQL = `update jobs set lease = gen_random_uuid(), leased_until = $2, attempts = attempts + 1
		where no = any($1::bigint[]) returning ` + queuedColumns + `, lease, attempts::bigint`
	holdStreamsSQL = `update jobs set held = true where no in (
		select no from jobs where stream = any($1::text[]) and stream <> '' and not held and not buried and attempts = 0
			and run_at <= $2 limit 10000 for update skip locked)`
)

const (
	// spareJobs is how many jobs are read beyond those that are wanted, because some may be blocked
	// by their streams.
	spareJobs = 16
	// claimRounds bounds a claim that finds one blocked stream after another.
	claimRounds = 50
)

// claim is the state of one call of ClaimJobs.
type claim struct {
	conn       *pgx.Conn
	now, until ledger.Time
	capacity   map[string]int // for the kinds that may have more jobs to claim
	jobs       []*store.Job
	held       bool // some jobs were marked as held
}

// ClaimJobs implements store.Jobs.
func (s *Store) ClaimJobs(ctx context.Context, now, until ledger.Time, capacity map[string]int) ([]*store.Job, error) {
	c := &claim{now: now, until: until, capacity: maps.Clone(capacity)}
	maps.DeleteFunc(c.capacity, func(_ string, count int) bool { return count <= 0 })
	err := s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.conn = conn
		for range claimRounds {
			if len(c.capacity) == 0 {
				break
			}
			more, err := c.round(ctx)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
		if len(c.jobs) == 0 && !c.held {
			return errNothingToWrite
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(c.jobs, func(a, b *store.Job) int {
		return cmp.Or(cmp.Compare(a.RunAt, b.RunAt), cmp.Compare(a.No, b.No))
	})
	return c.jobs, nil
}

type dueJob struct {
	no           int64
	kind, stream string
}

// streamState describes a stream: the job that was started and is not done, and the one that comes
// next; 0 for none.
type streamState struct {
	stream       string
	begun, first int64
}

// round claims what it can of the oldest due jobs and reports whether another round can find more.
func (c *claim) round(ctx context.Context) (more bool, err error) {
	const what = "claim jobs"
	kinds, windows := make([]string, 0, len(c.capacity)), make([]int64, 0, len(c.capacity))
	for kind, count := range c.capacity {
		kinds, windows = append(kinds, kind), append(windows, int64(count+spareJobs))
	}
	due, err := collect(ctx, c.conn, what, dueJobsSQL, []any{int64(c.now), kinds, windows}, func(r *row) dueJob {
		return dueJob{r.int(), r.text(), r.text()}
	})
	if err != nil || len(due) == 0 {
		return false, err
	}
	streams, err := c.judge(ctx, due)
	if err != nil {
		return false, err
	}
	chosen := c.choose(due, streams)
	if len(chosen) > 0 {
		leased, err := collect(ctx, c.conn, what, leaseJobsSQL, []any{chosen, int64(c.until)}, readJob)
		if err != nil {
			return false, err
		}
		c.jobs = append(c.jobs, leased...)
	}
	if c.satisfied(due, kinds, windows) {
		return false, nil
	}
	marked, err := c.hold(ctx, streams)
	return marked || len(chosen) > 0, err
}

// satisfied removes the kinds that have no more jobs to claim, because there is no capacity or all
// due jobs were read. It reports whether no kind is left.
func (c *claim) satisfied(due []dueJob, kinds []string, windows []int64) bool {
	seen := make(map[string]int64, len(kinds))
	for _, job := range due {
		seen[job.kind]++
	}
	for i, kind := range kinds {
		if c.capacity[kind] == 0 || seen[kind] < windows[i] {
			delete(c.capacity, kind)
		}
	}
	return len(c.capacity) == 0
}

// judge locks the streams of the jobs, as far as they are free, and returns the state of those that
// it locked.
func (c *claim) judge(ctx context.Context, due []dueJob) (map[string]streamState, error) {
	var names []string
	for _, job := range due {
		if job.stream != "" {
			names = append(names, job.stream)
		}
	}
	streams := make(map[string]streamState)
	if len(names) == 0 {
		return streams, nil
	}
	slices.Sort(names)
	names = slices.Compact(names)
	keys := make([]int64, len(names))
	for i, name := range names {
		keys[i] = int64(streamKey(name))
	}
	locked, err := collect(ctx, c.conn, "lock streams", tryStreamsSQL, []any{names, keys}, (*row).text)
	if err != nil || len(locked) == 0 {
		return streams, err
	}
	states, err := collect(ctx, c.conn, "judge streams", judgeStreamsSQL, []any{locked}, func(r *row) streamState {
		return streamState{r.text(), r.int(), r.int()}
	})
	for _, s := range states {
		streams[s.stream] = s
	}
	return streams, err
}

// choose returns the jobs that may run now, within the capacity of their kinds. It marks them as
// started in streams.
func (c *claim) choose(due []dueJob, streams map[string]streamState) []int64 {
	var chosen []int64
	for _, job := range due {
		if c.capacity[job.kind] == 0 {
			continue
		}
		if job.stream != "" {
			s, locked := streams[job.stream]
			if !locked || cmp.Or(s.begun, s.first) != job.no {
				continue
			}
			s.begun = job.no
			streams[job.stream] = s
		}
		chosen = append(chosen, job.no)
		c.capacity[job.kind]--
	}
	return chosen
}

// hold removes the jobs behind a started one from the index of jobs that can be claimed.
func (c *claim) hold(ctx context.Context, streams map[string]streamState) (marked bool, err error) {
	var begun []string
	for name, s := range streams {
		if s.begun != 0 {
			begun = append(begun, name)
		}
	}
	if len(begun) == 0 {
		return false, nil
	}
	tag, err := c.conn.Exec(ctx, holdStreamsSQL, begun, int64(c.now))
	c.held = c.held || tag.RowsAffected() > 0
	return tag.RowsAffected() > 0, explain("hold jobs", err)
}

func readJob(r *row) *store.Job {
	job := readQueued(r)
	job.Lease, job.Attempts = r.id(), int(r.int())
	return job
}

const queuedColumns = `no, org_id, kind, stream, run_at, body, due_at, mac`

// readQueued reads the stored columns of a job.
func readQueued(r *row) *store.Job {
	return &store.Job{
		No: r.int(), Org: ledger.OrgID{UUID: r.id()}, Kind: r.text(), Stream: r.text(), RunAt: r.time(), Body: r.bytes(),
		DueAt: r.time(), MAC: r.bytes(),
	}
}
