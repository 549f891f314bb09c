package storetest

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func countsJobsDue(t *testing.T, w *world) {
	now := w.now()
	other := w.job("other kind", "", now)
	other.Kind = "other"
	w.enqueue(t, w.job("leased", "", now), w.job("buried", "", now), w.job("retried", "", now), other, w.job("soon", "", now+2*lease), w.job("late", "", now+9*lease))
	one := other.Org
	w.enqueue(t, w.job("elsewhere", "stream", now+2*lease))
	jobs := w.wantClaim(t, now, "leased", "buried", "retried")
	if err := w.BuryJob(t.Context(), jobs[1], "fault"); err != nil {
		t.Fatal(err)
	}
	if err := w.RetryJob(t.Context(), jobs[2], now+3*lease, "fault"); err != nil {
		t.Fatal(err)
	}
	wantDue := func(by ledger.Time, here, elsewhere int64) {
		t.Helper()
		due := must[map[ledger.OrgID]int64](t)(w.JobsDue(t.Context(), jobKind, by))
		total := int64(0)
		for _, count := range due {
			total += count
		}
		if due[one] != here || total != here+elsewhere {
			t.Errorf("by %d ms from now: %d here of %d in all, want %d and %d elsewhere", by-now, due[one], total, here, elsewhere)
		}
	}
	wantDue(now+lease-1, 0, 0)
	wantDue(now+lease, 1, 0) // its lease ends
	wantDue(now+2*lease, 2, 1)
	wantDue(now+3*lease, 3, 1)
	wantDue(now+9*lease, 4, 1)
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
		got, err := w.LastJobName(t.Context(), org, prefix)
		if err != nil || got != want {
			t.Errorf("the last of %q is %q, error %v; want %q", prefix, got, err, want)
		}
	}
}
