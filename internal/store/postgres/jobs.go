package postgres

import (
	"cmp"
	"context"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	insertJobsSQL = `insert into jobs (org_id, kind, stream, run_at, body, due_at, mac)
		select * from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bytea[])`
	// Names are inserted in one order everywhere, so that transactions with the same names wait for
	// each other without a deadlock. Of several jobs with one name in a statement, the first is
	// kept.
	insertOnceSQL = `with wanted as (
			select distinct on (org_id, name) * from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bytea[], $8::text[])
				with ordinality w(org_id, kind, stream, run_at, body, due_at, mac, name, place)
			order by org_id, name, place),
		taken as (insert into job_names (org_id, name) select org_id, name from wanted on conflict do nothing returning org_id, name)
		insert into jobs (org_id, kind, stream, run_at, body, due_at, mac)
			select org_id, kind, stream, run_at, body, due_at, mac from wanted join taken using (org_id, name) order by place`
	lockStreamSQL = `select pg_advisory_xact_lock('jobs'::regclass::oid::int, $1::bigint::int)`
	deleteJobSQL  = `delete from jobs where no = $1::bigint and lease = $2::uuid`
	buryJobSQL    = `update jobs set buried = true, lease = null, leased_until = null, fault = $3::text
		where no = $1::bigint and lease = $2::uuid`
	burySQL = `update jobs set buried = true, held = false, lease = null, leased_until = null, fault = $2::text
		where no = $1::bigint and not buried`
	retryJobSQL = `update jobs set lease = null, leased_until = null, fault = $3::text, run_at = $4::bigint
		where no = $1::bigint and lease = $2::uuid`
	freeNextSQL = `update jobs set held = false
		where no = (select no from jobs where held and stream = $1::text order by run_at, no limit 1)`
	countJobsSQL = `select (select count(*) from jobs where not held and not buried) + (select count(*) from jobs where held),
		(select count(*) from jobs where buried)`
	scanKindSQL = `select ` + scannedColumns + ` from jobs where not held and not buried and kind = $1 order by run_at, no`
	scanJobsSQL = `select ` + scannedColumns + ` from jobs where not buried and no > $1 order by no limit $2`
	lastNameSQL = `select coalesce(max(name), '') from job_names where org_id = $1 and name >= $2 and name < $3`
)

func sendJobs(rt *roundTrip, jobs []*store.Job) {
	once := slices.DeleteFunc(slices.Clone(jobs), func(j *store.Job) bool { return j.Once == "" })
	if len(once) < len(jobs) {
		rt.send(insertJobsSQL, jobColumns(slices.DeleteFunc(slices.Clone(jobs), func(j *store.Job) bool { return j.Once != "" }))...)
	}
	if len(once) > 0 {
		rt.send(insertOnceSQL, append(jobColumns(once), texts(once, func(j *store.Job) string { return j.Once }))...)
	}
}

func jobColumns(jobs []*store.Job) [][]byte {
	return [][]byte{
		ids(jobs, func(j *store.Job) uuid.UUID { return j.Org.UUID }),
		texts(jobs, func(j *store.Job) string { return j.Kind }),
		texts(jobs, func(j *store.Job) string { return j.Stream }),
		ints(jobs, func(j *store.Job) int64 { return int64(j.RunAt) }),
		blobs(jobs, func(j *store.Job) []byte { return notNil(j.Body) }),
		ints(jobs, func(j *store.Job) int64 { return int64(j.DueAt) }),
		blobs(jobs, func(j *store.Job) []byte { return notNil(j.MAC) }),
	}
}

// FinishJob implements store.Jobs.
func (s *Store) FinishJob(ctx context.Context, job *store.Job, follow []*store.Job) error {
	return s.endJobs(ctx, "finish job", []*store.Job{job}, func(rt *roundTrip, job *store.Job) {
		rt.update(1, "leased jobs", deleteJobSQL, intParameter(job.No), job.Lease[:])
		sendJobs(rt, follow)
	})
}

// BuryJob implements store.Jobs.
func (s *Store) BuryJob(ctx context.Context, job *store.Job, fault string) error {
	return s.endJobs(ctx, "bury job", []*store.Job{job}, func(rt *roundTrip, job *store.Job) {
		rt.update(1, "leased jobs", buryJobSQL, intParameter(job.No), job.Lease[:], faultParameter(fault))
	})
}

// endJobs ends jobs in one round trip plus the commit, and releases the next job of each stream. It
// holds the streams' locks, so that no claim can mark a job as held in between: that job would wait
// for an end that is already over. Locks and rows are taken in order, so that two calls do not
// deadlock.
func (s *Store) endJobs(ctx context.Context, what string, jobs []*store.Job, end func(*roundTrip, *store.Job)) error {
	jobs = slices.SortedFunc(slices.Values(jobs), func(a, b *store.Job) int { return cmp.Compare(a.No, b.No) })
	var locks []int32
	for _, job := range jobs {
		if job.Stream != "" {
			locks = append(locks, streamKey(job.Stream))
		}
	}
	slices.Sort(locks)
	rt := new(roundTrip)
	for _, lock := range slices.Compact(locks) {
		rt.send(lockStreamSQL, intParameter(int64(lock)))
	}
	for _, job := range jobs {
		end(rt, job)
		if job.Stream != "" {
			rt.send(freeNextSQL, []byte(job.Stream))
		}
	}
	return s.runTransaction(ctx, what, rt)
}

// RetryJob implements store.Jobs. The job has started, so it keeps blocking its stream.
func (s *Store) RetryJob(ctx context.Context, job *store.Job, runAt ledger.Time, fault string) error {
	rt := new(roundTrip)
	rt.update(1, "leased jobs", retryJobSQL, intParameter(job.No), job.Lease[:], faultParameter(fault), intParameter(int64(runAt)))
	return s.runTransaction(ctx, "retry job", rt)
}

// CountJobs implements store.Jobs.
func (s *Store) CountJobs(ctx context.Context) (waiting, buried int64, err error) {
	err = s.queryRow(ctx, "count jobs", countJobsSQL, nil, &waiting, &buried)
	return waiting, buried, err
}

// ScanJobs implements store.Jobs.
func (s *Store) ScanJobs(ctx context.Context, kind string, visit func(*store.Job) error) error {
	if kind != "" {
		return s.query(ctx, "scan jobs", scanKindSQL, []any{kind}, func(r *row) error { return show(r, readScanned(r), visit) })
	}
	last := int64(math.MinInt64)
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan jobs", scanJobsSQL, []any{last, scanPage}, func(r *row) error {
			job := readScanned(r)
			last, count = job.No, count+1
			return show(r, job, visit)
		})
		return count, err
	})
}

const scannedColumns = queuedColumns + `, attempts::bigint, coalesce(leased_until, 0)`

func readScanned(r *row) *store.Job {
	job := readQueued(r)
	job.Attempts, job.LeasedUntil = int(r.int()), r.time()
	return job
}

// BuryJobs implements store.Jobs.
func (s *Store) BuryJobs(ctx context.Context, jobs []*store.Job, fault string) error {
	return s.endJobs(ctx, "bury jobs", jobs, func(rt *roundTrip, job *store.Job) {
		rt.send(burySQL, intParameter(job.No), faultParameter(fault))
	})
}

// LastJobName implements store.Jobs.
func (s *Store) LastJobName(ctx context.Context, org ledger.OrgID, prefix, before string) (name string, err error) {
	end := prefix + string(utf8.MaxRune)
	if before != "" {
		end = min(end, before)
	}
	err = s.queryRow(ctx, "last job name", lastNameSQL, []any{bytesOf(org.UUID), prefix, end}, &name)
	return name, err
}

// streamKey returns the second number of a stream's lock; see locks.go.
func streamKey(stream string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(stream)) // never fails
	return int32(h.Sum32())        //nolint:gosec // any 32 bits will do
}

func intParameter(value int64) []byte {
	return appendInt64(nil, value)
}

// maxFault bounds the stored text of an error, in bytes.
const maxFault = 2000

// faultParameter accepts any text. It may quote an external server, and a job must not get stuck
// because of that.
func faultParameter(fault string) []byte {
	fault = strings.ReplaceAll(strings.ToValidUTF8(fault, "\uFFFD"), "\x00", "\uFFFD")
	if len(fault) > maxFault {
		cut := maxFault
		for !utf8.RuneStart(fault[cut]) {
			cut--
		}
		fault = fault[:cut]
	}
	return []byte(fault)
}
