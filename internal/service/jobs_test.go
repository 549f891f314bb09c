package service_test

import (
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

func (g *governed) waitingJobs() int64 {
	g.t.Helper()
	waiting, buried, err := g.Jobs().Count(g.t.Context())
	if err != nil || buried != 0 {
		g.t.Fatalf("%d jobs are buried: %v", buried, err)
	}
	return waiting
}

// Jobs are queued in the transaction of their cause: a cause that is not stored leaves none, and
// one that is leaves them once, whatever answer its caller got.
//
//countersign:race
func TestJobsShareTheFateOfTheirCause(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.hook()
		for how, key := range map[breakage]string{lost: "lost", kept: "kept"} {
			chain := g.open(key)
			before := g.waitingJobs()
			broken := g.over(&faulty{Store: g.store, how: how, breaks: func(write int64) bool { return write == 1 }})
			_, err := broken.RecordEvent(t.Context(), g.who.agent, chain, payment(t, gatedAmount, key))
			want, jobs := fault.CodeUnavailable, int64(0)
			if how == kept {
				want, jobs = fault.CodeOutcomeUnknown, 2 // the deadline and the notice
			}
			checkCode(t, key, err, want)
			if got := g.waitingJobs() - before; got != jobs {
				t.Errorf("a write that was %s leaves %d jobs, want %d", how, got, jobs)
			}
			again := must[*service.Recorded](t)(broken.RecordEvent(t.Context(), g.who.agent, chain, payment(t, gatedAmount, key)))
			if got := g.waitingJobs() - before; got != 2 {
				t.Errorf("sent again after it was %s it leaves %d jobs, want 2", how, got)
			}
			for name, act := range map[string]func(*service.Service) error{
				"a decision": func(s *service.Service) error {
					_, err := s.DecideApproval(t.Context(), g.who.member, again.Event.Approval, &ledger.Verdict{})
					return err
				},
				"the kill switch": func(s *service.Service) error {
					_, err := s.ActivateKillSwitch(t.Context(), g.who.admin, "an incident")
					return err
				},
			} {
				before, acts := g.waitingJobs(), len(g.acts())
				s := g.over(&faulty{Store: g.store, how: lost, breaks: func(write int64) bool { return write == 1 }})
				checkCode(t, name+" lost", act(s), fault.CodeUnavailable)
				if g.waitingJobs() != before || len(g.acts()) != acts {
					t.Errorf("%s that was lost leaves a job or an act", name)
				}
				checkCode(t, name, act(s), "")
				if g.waitingJobs() != before+1 || len(g.acts()) != acts+1 {
					t.Errorf("%s leaves %d jobs and %d acts, want one each", name, g.waitingJobs()-before, len(g.acts())-acts)
				}
			}
			g.deactivateKillSwitch()
		}
	})
}

// The jobs of one approval are claimed one after the other, and do not delay those of another.
func TestNoticesOfOneApprovalKeepTheirOrder(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.hook()
		first, second := g.ask(g.open("first")), g.ask(g.open("second"))
		g.approve(first)
		claimed := g.claim(time.Minute, 10)
		if len(claimed) != 2 || claimed[0].Stream != first.String() || claimed[1].Stream != second.String() {
			t.Fatalf("%d jobs are handed out at first", len(claimed))
		}
		if none := g.claim(time.Minute, 10); len(none) != 0 {
			t.Errorf("%d jobs are handed out before their turn", len(none))
		}
		done(t, g.Jobs().FanOut(t.Context(), claimed[0]))
		next := g.claim(time.Minute, 10)
		kinds := map[string]int{}
		for _, job := range next {
			kinds[job.Kind]++
		}
		if kinds[service.JobNotice] != 1 || kinds[service.JobWebhook] != 1 {
			t.Errorf("after the first notice come %v, want the second one and a delivery", kinds)
		}
		if err := g.Jobs().Finish(t.Context(), &store.Job{No: claimed[0].No, Lease: claimed[0].Lease}); err == nil {
			t.Error("a job that is done is finished again")
		}
	})
}

// The job for a deadline is kept until its approval has ended, and no longer.
func TestDeadlinesOutliveTheirWorker(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		id := g.ask(g.open("deadline"))
		deadline := func() *service.Job {
			t.Helper()
			for _, job := range g.claim(time.Second, 10) {
				if job.Kind == service.JobDeadline {
					return job
				}
			}
			return nil
		}
		if deadline() != nil {
			t.Error("a deadline is due before its time")
		}
		g.clock.Set(time.UnixMilli(int64(g.view(id).EscalatesAt)))
		if deadline() == nil {
			t.Fatal("no deadline at half the time")
		}
		g.clock.Advance(2 * time.Second) // the worker that claimed it has died
		taken := deadline()
		if taken == nil || taken.Attempts != 2 {
			t.Fatalf("nobody takes over: %+v", taken)
		}
		done(t, g.Jobs().Deadline(t.Context(), taken))
		checkStatus(t, g.view(id), ledger.ApprovalEscalated)
		g.clock.Set(time.UnixMilli(int64(g.view(id).ExpiresAt - 1)))
		if deadline() != nil {
			t.Error("a deadline is due before the end")
		}
		g.approve(id)
		g.clock.Set(time.UnixMilli(int64(g.view(id).ExpiresAt)))
		done(t, g.Jobs().Deadline(t.Context(), deadline()))
		checkStatus(t, g.view(id), ledger.ApprovalApproved)
		g.clock.Advance(2 * time.Second)
		if deadline() != nil {
			t.Error("a deadline outlives its approval")
		}
	})
}
