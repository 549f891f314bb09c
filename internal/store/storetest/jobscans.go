package storetest

import (
	"errors"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func scansJobs(t *testing.T, w *world) {
	now := w.now()
	other := w.job("other kind", "", now)
	other.Kind = "other"
	w.enqueue(t, w.job("leased", "", now), w.job("buried", "", now), w.job("retried", "", now), other, w.job("late", "", now.Add(9*lease)))
	w.enqueue(t, w.job("elsewhere", "stream", now.Add(2*lease)), w.job("behind", "stream", now.Add(3*lease)))
	jobs := w.wantClaim(t, now, "leased", "buried", "retried")
	if err := w.BuryJob(t.Context(), jobs[1], "fault"); err != nil {
		t.Fatal(err)
	}
	if err := w.RetryJob(t.Context(), jobs[2], now.Add(3*lease), "fault"); err != nil {
		t.Fatal(err)
	}
	found := w.scan(t, jobKind)
	for name, want := range map[string]store.Job{
		"leased": {RunAt: now, DueAt: now, LeasedUntil: now.Add(lease)}, "retried": {RunAt: now.Add(3 * lease), DueAt: now},
		"late": {RunAt: now.Add(9 * lease), DueAt: now.Add(9 * lease)}, "elsewhere": {RunAt: now.Add(2 * lease), DueAt: now.Add(2 * lease)},
	} {
		if got, ok := found[name]; !ok || got.RunAt != want.RunAt || got.DueAt != want.DueAt || got.LeasedUntil != want.LeasedUntil || string(got.MAC) != "authenticator" || got.Org == (ledger.OrgID{}) {
			t.Errorf("%s is found as %+v", name, got)
		}
	}
	if _, ok := found["other kind"]; ok {
		t.Error("a job of another kind is visited")
	}
	if all := w.scan(t, ""); len(all) != 6 {
		t.Errorf("%d jobs of every kind are visited, want 6", len(all))
	}
	stop := errors.New("enough")
	wantError(t, "a visit that fails", w.ScanJobs(t.Context(), "", func(*store.Job) error { return stop }), stop)
}

// scan returns the waiting jobs by body.
func (w *world) scan(t *testing.T, kind string) map[string]store.Job {
	t.Helper()
	found := make(map[string]store.Job)
	err := w.ScanJobs(t.Context(), kind, func(job *store.Job) error {
		found[string(job.Body)] = *job
		return nil
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return found
}

func buriesJobs(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("first", "stream", now), w.job("second", "stream", now+1), w.job("third", "stream", now+2),
		w.job("leased", "held", now), w.job("next", "held", now+1), w.job("alone", "", now), w.job("kept", "", now+3))
	w.wantClaim(t, now, "first", "leased", "alone")
	found := w.scan(t, "")
	bury := func(names ...string) {
		t.Helper()
		var jobs []*store.Job
		for _, name := range names {
			job := found[name]
			jobs = append(jobs, &job)
		}
		if err := w.BuryJobs(t.Context(), jobs, "not ours"); err != nil {
			t.Fatalf("bury: %v", err)
		}
	}
	bury("second") // behind the first in the stream, which is unaffected
	bury("first", "leased", "alone")
	bury("first")
	w.wantCounts(t, 3, 4)
	w.wantClaim(t, now+9, "next", "third", "kept")
}

func findsLastName(t *testing.T, w *world) {
	now := w.now()
	named := func(name string) *store.Job {
		job := w.job(name, "", now)
		job.Once = name
		return job
	}
	jobs := []*store.Job{named("a/1"), named("a/2"), named("a/10"), named("a0"), named("ab/9"), named("b/ü"), named("b/z")}
	w.enqueue(t, jobs...)
	org := jobs[0].Org
	w.enqueue(t, named("a/3"), named("c/1"))
	for _, job := range w.claim(t, now, lease, 100) {
		w.finish(t, job)
	}
	for prefix, want := range map[string]string{"a/": "a/2", "a": "ab/9", "b/": "b/ü", "c/": "", "a/10": "a/10", "": "b/ü"} {
		got, err := w.LastJobName(t.Context(), org, prefix, "")
		if err != nil || got != want {
			t.Errorf("the last of %q is %q, error %v; want %q", prefix, got, err, want)
		}
	}
	for before, want := range map[string]string{"a/2": "a/10", "a/10": "a/1", "a/1": "", "zzz": "a/2"} {
		got, err := w.LastJobName(t.Context(), org, "a/", before)
		if err != nil || got != want {
			t.Errorf("the last before %q is %q, error %v; want %q", before, got, err, want)
		}
	}
}
