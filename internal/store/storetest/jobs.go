package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var jobCases = []testCase{
	{name: "a job is stored with its cause", run: jobComesWithCause},
	{name: "a job is not stored without its cause", run: jobNeedsCause},
	{name: "a job is claimed when it is due", run: claimsDueJobs},
	{name: "the oldest are claimed first, up to the limit", run: claimsOldestFirst},
	{name: "a leased job is claimed again when its lease has run out", run: leaseRunsOut},
	{name: "a finished job is deleted", run: finishesJob},
	{name: "a lease that is lost can do nothing", run: lostLease},
	{name: "a job is retried when it is due again", run: retriesJob},
	{name: "a buried job stays and is never claimed", run: buriesJob},
	{name: "follow-up jobs are stored when the first ends", run: followsJob},
	{name: "jobs that wait are visited", run: scansJobs},
	{name: "jobs are buried by their numbers, and free their streams", run: buriesJobs},
	{name: "the last name of a prefix is found, long after its job", run: findsLastName},
}

// lease is the duration of the cases' leases.
const lease = time.Second

// jobKind is the kind of jobs in cases that are not about kinds.
const jobKind = "work"

// job returns a job whose body is its name.
func (w *world) job(name, stream string, runAt ledger.Time) *store.Job {
	return &store.Job{Kind: jobKind, Stream: stream, RunAt: runAt, Body: []byte(name), DueAt: runAt, MAC: []byte("authenticator")}
}

// enqueue stores jobs of a new organization in one transaction.
func (w *world) enqueue(t *testing.T, jobs ...*store.Job) {
	t.Helper()
	m := w.join(t)
	for _, job := range jobs {
		job.Org = m.org.ID
	}
	w.write(t, &store.Changes{NewJobs: jobs})
}

func (w *world) claim(t *testing.T, now ledger.Time, length time.Duration, limit int) []*store.Job {
	t.Helper()
	return must[[]*store.Job](t)(w.ClaimJobs(t.Context(), now, now.Add(length), map[string]int{jobKind: limit}))
}

func labels(jobs []*store.Job) (labels []string) {
	for _, job := range jobs {
		labels = append(labels, string(job.Body))
	}
	return labels
}

// wantClaim claims all due jobs and compares their labels.
func (w *world) wantClaim(t *testing.T, now ledger.Time, want ...string) []*store.Job {
	t.Helper()
	jobs := w.claim(t, now, lease, 100)
	assertEqual(t, "claimed", labels(jobs), want)
	if len(jobs) != len(want) {
		t.FailNow()
	}
	return jobs
}

func (w *world) finish(t *testing.T, job *store.Job, follow ...*store.Job) {
	t.Helper()
	if err := w.FinishJob(t.Context(), job, follow); err != nil {
		t.Fatalf("finish: %v", err)
	}
}

func (w *world) wantCounts(t *testing.T, waiting, buried int64) {
	t.Helper()
	gotWaiting, gotBuried, err := w.CountJobs(t.Context())
	if err != nil || gotWaiting != waiting || gotBuried != buried {
		t.Errorf("%d jobs wait and %d are buried, error %v; want %d and %d", gotWaiting, gotBuried, err, waiting, buried)
	}
}

func jobComesWithCause(t *testing.T, w *world) {
	now := w.now()
	want := w.job("deliver", "endpoint/ü", now)
	want.Body, want.MAC, want.DueAt = everyByte(), everyByte(), now-7
	w.enqueue(t, want)
	w.wantCounts(t, 1, 0)
	claimed := w.claim(t, now, lease, 1)
	if len(claimed) != 1 {
		t.Fatalf("%d jobs were claimed, want 1", len(claimed))
	}
	got := *claimed[0]
	if got.Lease == uuid.Nil || got.No == 0 || got.Attempts != 1 {
		t.Errorf("claimed as number %d under lease %v at attempt %d", got.No, got.Lease, got.Attempts)
	}
	got.No, got.Lease, got.Attempts = 0, uuid.Nil, 0
	assertEqual(t, "job", &got, want)
}

func jobNeedsCause(t *testing.T, w *world) {
	m := w.join(t)
	taken := w.openChain(t, m)
	now := w.now()
	refusal := errors.New("refused")
	err := w.Transact(t.Context(), new(store.Needs), func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewJobs: []*store.Job{w.job("refused", "", now)}}, refusal
	})
	wantError(t, "refused", err, refusal)
	chain := w.record(w.draft(m), "")
	chain.ID = taken
	err = attempt(t.Context(), w, &store.Changes{NewChains: []*store.ChainRecord{chain}, NewJobs: []*store.Job{w.job("collided", "", now)}})
	wantError(t, "collided", err, store.ErrExists)
	w.wantCounts(t, 0, 0)
	w.wantClaim(t, now)
}

func claimsDueJobs(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("later", "", now+10), w.job("now", "", now))
	w.wantClaim(t, now-1)
	w.wantClaim(t, now, "now")
	w.wantClaim(t, now+9)
	w.wantClaim(t, now+10, "later")
}

func claimsOldestFirst(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("c", "", now-1), w.job("a", "", now-3), w.job("d", "", now-1), w.job("b", "", now-2), w.job("e", "", now))
	assertEqual(t, "none", labels(w.claim(t, now, lease, 0)), nil)
	assertEqual(t, "first two", labels(w.claim(t, now, lease, 2)), []string{"a", "b"})
	assertEqual(t, "next two", labels(w.claim(t, now, lease, 2)), []string{"c", "d"})
	assertEqual(t, "rest", labels(w.claim(t, now, lease, 2)), []string{"e"})
}

func leaseRunsOut(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("job", "", now))
	first := w.wantClaim(t, now, "job")[0]
	w.wantClaim(t, now.Add(lease)-1)
	second := w.wantClaim(t, now.Add(lease), "job")[0]
	if second.No != first.No || second.Lease == first.Lease || second.Attempts != 2 || second.RunAt != first.RunAt {
		t.Errorf("claimed again as %+v, first as %+v", second, first)
	}
	w.finish(t, second)
	w.wantCounts(t, 0, 0)
}

func finishesJob(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("one", "", now), w.job("two", "", now))
	jobs := w.wantClaim(t, now, "one", "two")
	w.finish(t, jobs[0])
	wantError(t, "second time", w.FinishJob(t.Context(), jobs[0], nil), store.ErrNotFound)
	w.wantCounts(t, 1, 0)
	// An expired lease belongs to the job until another worker claims it.
	again := w.open(t)
	if err := again.FinishJob(t.Context(), jobs[1], nil); err != nil {
		t.Errorf("finish through another handle: %v", err)
	}
	w.wantClaim(t, now.Add(10*lease))
}

func lostLease(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("job", "", now))
	lost := w.wantClaim(t, now, "job")[0]
	held := w.wantClaim(t, now.Add(lease), "job")[0]
	follow := []*store.Job{w.job("follow", "", now)}
	follow[0].Org = held.Org
	wantError(t, "finish", w.FinishJob(t.Context(), lost, follow), store.ErrNotFound)
	wantError(t, "retry", w.RetryJob(t.Context(), lost, now, "fault"), store.ErrNotFound)
	wantError(t, "bury", w.BuryJob(t.Context(), lost, "fault"), store.ErrNotFound)
	w.wantClaim(t, now.Add(lease)) // neither the job nor its follow-up
	w.wantCounts(t, 1, 0)
	w.finish(t, held)
	w.wantCounts(t, 0, 0)
}

func retriesJob(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("job", "", now))
	job := w.wantClaim(t, now, "job")[0]
	again := now + 5
	if err := w.RetryJob(t.Context(), job, again, "no route to host"); err != nil {
		t.Fatalf("retry: %v", err)
	}
	wantError(t, "finish without a lease", w.FinishJob(t.Context(), job, nil), store.ErrNotFound)
	w.wantCounts(t, 1, 0)
	w.wantClaim(t, again-1)
	second := w.wantClaim(t, again, "job")[0]
	if second.Attempts != 2 || second.RunAt != again || second.DueAt != job.DueAt || second.No != job.No || second.Lease == job.Lease {
		t.Errorf("claimed again as %+v", second)
	}
	assertEqual(t, "body", second.Body, job.Body)
}

func buriesJob(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("hopeless", "", now), w.job("other", "", now+1))
	job := w.wantClaim(t, now, "hopeless")[0]
	if err := w.BuryJob(t.Context(), job, "gone for good"); err != nil {
		t.Fatalf("bury: %v", err)
	}
	w.wantCounts(t, 1, 1)
	wantError(t, "finish", w.FinishJob(t.Context(), job, nil), store.ErrNotFound)
	wantError(t, "retry", w.RetryJob(t.Context(), job, now, "fault"), store.ErrNotFound)
	w.finish(t, w.wantClaim(t, now.Add(10*lease), "other")[0])
	w.wantCounts(t, 0, 1)
}

func followsJob(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("first", "", now))
	first := w.wantClaim(t, now, "first")[0]
	follow := []*store.Job{w.job("second", "", now), w.job("third", "", now+1)}
	for _, job := range follow {
		job.Org = first.Org
	}
	w.finish(t, first, follow...)
	w.wantCounts(t, 2, 0)
	second := w.wantClaim(t, now, "second")[0]
	if second.Attempts != 1 || second.Org != first.Org {
		t.Errorf("the job that follows is %+v", second)
	}
	w.wantClaim(t, now+1, "third")
}
