package storetest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"countersign/internal/store"
)

var streamCases = []testCase{
	{name: "one of each stream is claimed at a time, in order", run: claimsOneOfEachStream},
	{name: "a job that is retried blocks its stream", run: retryHoldsUp},
	{name: "a job with an expired lease blocks its stream", run: lostLeaseHoldsUp},
	{name: "a buried job does not block its stream", run: buriedHoldsNothingUp},
	{name: "a job that has not started does not block its stream", run: unbegunHoldsNothingUp},
	{name: "a job that follows takes its place in the stream", run: followsInStream},
	{name: "a blocked stream does not block others", run: otherStreamsGoOn},
	{name: "concurrent claims hand out each job once", run: claimsAtOnce, concurrent: true},
	{name: "streams keep their order under many workers", run: streamsAtOnce, concurrent: true},
}

func claimsOneOfEachStream(t *testing.T, w *world) {
	now := w.now() + 10
	w.enqueue(t,
		w.job("a1", "a", now-6), w.job("a2", "a", now-5), w.job("b1", "b", now-4), w.job("x", "", now-3), w.job("y", "", now-2),
		w.job("b2", "b", now-1), w.job("a3", "a", now))
	first := w.wantClaim(t, now, "a1", "b1", "x", "y")
	w.wantClaim(t, now)
	w.finish(t, first[0])
	second := w.wantClaim(t, now, "a2")
	w.finish(t, first[1])
	w.finish(t, second[0])
	w.wantClaim(t, now, "b2", "a3")
}

func retryHoldsUp(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("a1", "a", now), w.job("a2", "a", now))
	for attempt := range 3 {
		job := w.wantClaim(t, now, "a1")[0]
		if job.Attempts != attempt+1 {
			t.Errorf("attempt %d is counted as %d", attempt+1, job.Attempts)
		}
		if err := w.RetryJob(t.Context(), job, now+100, "fault"); err != nil {
			t.Fatalf("retry: %v", err)
		}
		w.wantClaim(t, now+99)
		now += 100
		w.enqueue(t, w.job(fmt.Sprint("urgent ", attempt), "a", now.Add(-lease))) // due before it, and blocked
	}
	w.finish(t, w.wantClaim(t, now, "a1")[0])
	for _, next := range []string{"urgent 0", "urgent 1", "urgent 2", "a2"} {
		w.finish(t, w.wantClaim(t, now, next)[0])
	}
}

func lostLeaseHoldsUp(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("a1", "a", now), w.job("a2", "a", now))
	w.wantClaim(t, now, "a1")
	w.finish(t, w.wantClaim(t, now.Add(lease), "a1")[0])
	w.wantClaim(t, now.Add(lease), "a2")
}

func buriedHoldsNothingUp(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("a1", "a", now), w.job("a2", "a", now), w.job("a3", "a", now))
	if err := w.BuryJob(t.Context(), w.wantClaim(t, now, "a1")[0], "gone"); err != nil {
		t.Fatalf("bury: %v", err)
	}
	w.finish(t, w.wantClaim(t, now, "a2")[0])
	w.finish(t, w.wantClaim(t, now, "a3")[0])
	w.enqueue(t, w.job("a4", "a", now)) // nor does it block later jobs
	w.wantClaim(t, now, "a4")
	w.wantCounts(t, 1, 1)
}

// unbegunHoldsNothingUp: a job that is not due does not block others until it has started.
func unbegunHoldsNothingUp(t *testing.T, w *world) {
	now := w.now()
	w.enqueue(t, w.job("tomorrow", "a", now+100), w.job("today", "a", now))
	today := w.wantClaim(t, now, "today")[0]
	if err := w.RetryJob(t.Context(), today, now+200, "fault"); err != nil {
		t.Fatalf("retry: %v", err)
	}
	w.wantClaim(t, now+100) // the first one has started and is not done
	w.finish(t, w.wantClaim(t, now+200, "today")[0])
	w.enqueue(t, w.job("urgent", "a", now))
	w.finish(t, w.wantClaim(t, now+200, "urgent")[0])
	w.wantClaim(t, now+200, "tomorrow")
}

func followsInStream(t *testing.T, w *world) {
	now := w.now() + 10
	w.enqueue(t, w.job("a1", "a", now-9), w.job("a2", "a", now))
	job := w.wantClaim(t, now, "a1")[0]
	follow := []*store.Job{w.job("between", "a", now-5), w.job("last", "a", now+1), w.job("first of another", "b", now-6)}
	for _, each := range follow {
		each.Org = job.Org
	}
	w.finish(t, job, follow...)
	jobs := w.wantClaim(t, now+1, "first of another", "between")
	w.finish(t, jobs[1])
	w.finish(t, w.wantClaim(t, now+1, "a2")[0])
	w.wantClaim(t, now+1, "last")
}

// otherStreamsGoOn puts a long, blocked stream before everything else.
func otherStreamsGoOn(t *testing.T, w *world) {
	const long = 1000
	now := w.now() + long
	var jobs []*store.Job
	for range long {
		jobs = append(jobs, w.job("held up", "a", now-long))
	}
	jobs = append(jobs, w.job("b1", "b", now), w.job("x", "", now))
	w.enqueue(t, jobs...)
	assertEqual(t, "first", labels(w.claim(t, now, lease, 1)), []string{"held up"})
	assertEqual(t, "next", labels(w.claim(t, now, lease, 1)), []string{"b1"})
	assertEqual(t, "then", labels(w.claim(t, now, lease, 1)), []string{"x"})
	assertEqual(t, "at last", labels(w.claim(t, now, lease, 1)), nil)
}

func claimsAtOnce(t *testing.T, w *world) {
	const workers, count, limit = 9, 200, 7
	now := w.now()
	var jobs []*store.Job
	for i := range count {
		stream := ""
		if i%2 == 0 {
			stream = fmt.Sprint("stream ", i)
		}
		jobs = append(jobs, w.job(fmt.Sprint(i), stream, now))
	}
	w.enqueue(t, jobs...)
	var mu sync.Mutex
	claims := make(map[string]int)
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		for range count {
			claimed, err := s.ClaimJobs(ctx, now, now.Add(lease), map[string]int{jobKind: limit})
			if err != nil || len(claimed) == 0 {
				return err
			}
			mu.Lock()
			for _, job := range claimed {
				claims[string(job.Body)]++
			}
			mu.Unlock()
		}
		return nil
	})
	// A worker may stop when all due jobs are claimed by others, and so may the last worker.
	for _, job := range w.claim(t, now, lease, count) {
		claims[string(job.Body)]++
	}
	if len(claims) != count {
		t.Errorf("%d jobs were claimed, want %d", len(claims), count)
	}
	for name, times := range claims {
		if times != 1 {
			t.Errorf("job %s was claimed %d times", name, times)
		}
	}
}

// streamsAtOnce runs each worker until it finds nothing to do. A worker that has just finished a
// job finds the next of its stream, unless another one was faster.
func streamsAtOnce(t *testing.T, w *world) {
	const workers, streams, each = 6, 5, 10
	now := w.now()
	var jobs []*store.Job
	for i := range each {
		for stream := range streams {
			jobs = append(jobs, w.job(fmt.Sprint(i), fmt.Sprint(stream), now))
		}
	}
	w.enqueue(t, jobs...)
	var next [streams]atomic.Int64 // the next job of each stream, -1 while one is running
	perform := func(ctx context.Context, s store.Store, job *store.Job) error {
		var stream int
		var place int64
		if _, err := fmt.Sscan(job.Stream+" "+string(job.Body), &stream, &place); err != nil {
			return err
		}
		if !next[stream].CompareAndSwap(place, -1) {
			return fmt.Errorf("stream %d: job %d was handed out when %d was due", stream, place, next[stream].Load())
		}
		runtime.Gosched()
		next[stream].Store(place + 1)
		return s.FinishJob(ctx, job, nil)
	}
	work := func(ctx context.Context, s store.Store, _ int) error {
		for range streams * each {
			claimed, err := s.ClaimJobs(ctx, now, now.Add(lease), map[string]int{jobKind: 2})
			if err != nil || len(claimed) == 0 {
				return err
			}
			for _, job := range claimed {
				if err := perform(ctx, s, job); err != nil {
					return err
				}
			}
		}
		return nil
	}
	w.together(t, workers, work)
	// All workers may have stopped while the last jobs were claimed by others.
	if err := work(t.Context(), w, 0); err != nil {
		t.Error(err)
	}
	for stream := range next {
		if done := next[stream].Load(); done != each {
			t.Errorf("stream %d: %d jobs are done, want %d", stream, done, each)
		}
	}
	w.wantCounts(t, 0, 0)
}
