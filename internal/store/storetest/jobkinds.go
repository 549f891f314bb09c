package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var jobKindCases = []testCase{
	{name: "each kind is claimed up to its capacity", run: claimsByKind},
	{name: "many jobs of one kind keep no other waiting", run: kindsGoOn},
	{name: "a job of a name is stored once", run: storesOnce},
	{name: "a named job is stored once by concurrent callers", run: storesOnceTogether, concurrent: true},
}

func claimsByKind(t *testing.T, w *world) {
	now := w.now() + 10
	of := func(kind, name string, runAt ledger.Time) *store.Job {
		job := w.job(name, "", runAt)
		job.Kind = kind
		return job
	}
	w.enqueue(t, of("a", "a1", now-5), of("a", "a2", now-4), of("b", "b1", now-3), of("a", "a3", now-2), of("b", "b2", now-1), of("c", "c1", now-9))
	for _, step := range []struct {
		capacity map[string]int
		want     []string
	}{
		{nil, nil},
		{map[string]int{"a": 0, "unknown": 5}, nil},
		{map[string]int{"a": 2, "b": 5}, []string{"a1", "a2", "b1", "b2"}},
		{map[string]int{"b": 1}, nil},
		{map[string]int{"a": 9, "b": -1, "c": 1}, []string{"c1", "a3"}},
	} {
		claimed := must[[]*store.Job](t)(w.ClaimJobs(t.Context(), now, now.Add(lease), step.capacity))
		assertEqual(t, fmt.Sprint("claimed with capacity ", step.capacity), labels(claimed), step.want)
	}
	w.wantCounts(t, 6, 0)
}

// kindsGoOn puts more jobs of one kind than a claim reads, in blocked streams and without a stream,
// before one of another kind.
func kindsGoOn(t *testing.T, w *world) {
	const many = 300
	now := w.now() + many
	var jobs []*store.Job
	for i := range many {
		stream := ""
		if i%2 == 0 {
			stream = fmt.Sprint("stream ", i%10)
		}
		jobs = append(jobs, w.job("slow", stream, now-many))
	}
	urgent := w.job("urgent", "", now)
	urgent.Kind = "deadline"
	w.enqueue(t, append(jobs, urgent)...)
	claimed := must[[]*store.Job](t)(w.ClaimJobs(t.Context(), now, now.Add(lease), map[string]int{jobKind: 3, "deadline": 3}))
	assertEqual(t, "claimed", labels(claimed), []string{"slow", "slow", "slow", "urgent"})
	rest := w.claim(t, now, lease, many)
	if want := many/2 + 5 - 3; len(rest) != want {
		t.Errorf("%d more are claimed, want the %d outside blocked streams", len(rest), want)
	}
}

func storesOnce(t *testing.T, w *world) {
	now := w.now()
	one, other := w.join(t), w.join(t)
	once := func(name string, m *member) *store.Job {
		job := w.job(name, "stream of "+name, now)
		job.Org, job.Once = m.org.ID, "greeting/ü"
		return job
	}
	w.write(t, &store.Changes{NewJobs: []*store.Job{once("first", one), once("second", one), once("another's", other)}})
	w.write(t, &store.Changes{NewJobs: []*store.Job{once("third", one)}})
	jobs := w.wantClaim(t, now, "first", "another's")
	w.finish(t, jobs[0], once("follows", one))
	w.finish(t, jobs[1])
	w.write(t, &store.Changes{NewJobs: []*store.Job{once("long after", one), once("long after", other)}})
	renamed := once("of another name", one)
	renamed.Once = "farewell"
	refusal := errors.New("refused")
	err := w.Transact(t.Context(), new(store.Needs), func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewJobs: []*store.Job{renamed}}, refusal
	})
	wantError(t, "refused", err, refusal)
	w.write(t, &store.Changes{NewJobs: []*store.Job{renamed}})
	w.wantClaim(t, now, "of another name")
}

func storesOnceTogether(t *testing.T, w *world) {
	const workers, jobNames = 8, 20
	now := w.now()
	m := w.join(t)
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		changes := new(store.Changes)
		for i := range jobNames {
			job := w.job("job", "", now)
			job.Org, job.Once = m.org.ID, fmt.Sprint((i+worker)%jobNames)
			changes.NewJobs = append(changes.NewJobs, job)
		}
		return attempt(ctx, s, changes)
	})
	w.wantCounts(t, jobNames, 0)
}
