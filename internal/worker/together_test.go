package worker_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
)

// check is the number of jobs that starting a worker adds: the next self-check of the ledger, and
// the next search for abandoned chains.
const check = 2

// A receiver that hangs delays neither escalations nor mail, and gets a bounded number of
// concurrent calls.
func TestHangingReceiverHoldsUpNothingElse(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		office := newPostOffice(t)
		// Half of this is less than a lease: the clock's jump must not end any.
		if _, err := w.service.UpdateOrganization(t.Context(), w.admin, parse(t, `{"approval_timeout_hours":0.1}`)); err != nil {
			t.Fatal(err)
		}
		r := w.receiver()
		answer := make(chan struct{})
		r.respond(func(http.ResponseWriter, message) { <-answer })
		ticks := make(chan time.Time)
		worker := w.worker(w.service, office.mailer(t), ticks)
		worker.Start()
		approvals := make([]ledger.ApprovalID, 20)
		for i := range approvals {
			approvals[i] = w.ask()
		}
		servicetest.Eventually(w.t, "the receiver hangs in every delivery", func() bool { return len(r.arrived(t)) >= 16 })
		w.clock.Advance(3 * time.Minute)
		ticks <- w.clock.Now()
		servicetest.Eventually(w.t, "the approvals are escalated", func() bool {
			for _, id := range approvals {
				if w.stored(id) != ledger.ApprovalEscalated {
					return false
				}
			}
			return true
		})
		servicetest.Eventually(w.t, "the mail is out", func() bool { return len(office.mailed("")) == 2*len(approvals) })
		if n := len(r.arrived(t)); n != 16 {
			t.Errorf("%d deliveries at once", n)
		}
		close(answer)
		servicetest.Eventually(w.t, "the receiver has all of it", func() bool { return len(r.arrived(t)) == 2*len(approvals) })
		worker.Stop(t.Context())
		w.queue(int64(len(approvals))+check, 0)
	})
}

// A job whose worker died is run by another one after its lease has ended, and not before.
//
//countersign:race
func TestWorkerThatDiesLeavesItsJobToAnother(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		began, answer := make(chan struct{}), make(chan struct{})
		r.respond(func(http.ResponseWriter, message) {
			close(began)
			<-answer
		})
		w.ask()
		first, second := w.worker(w.service, nil, nil), w.worker(w.serve(open()), nil, nil)
		if _, err := first.RunOnce(t.Context()); err != nil { // runs the notice
			t.Fatal(err)
		}
		var hanging sync.WaitGroup
		hanging.Go(func() { _, _ = first.RunOnce(t.Context()) })
		<-began
		r.respond(nil)
		w.clock.Advance(4 * time.Minute)
		w.run(second)
		if n := len(r.arrived(t)); n != 1 {
			t.Errorf("the job was taken from a worker that may live: %d deliveries", n)
		}
		w.clock.Advance(time.Minute)
		w.run(second)
		got := r.arrived(t)
		if len(got) != 2 || got[0] != got[1] {
			t.Errorf("what arrived: %+v", got)
		}
		close(answer)
		hanging.Wait() // its success comes too late and changes nothing
		w.queue(1, 0)
	})
}

// Two workers deliver every message once and in order.
func TestTwoWorkersNeverDoTheSameJob(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		const asked = 30
		for range asked {
			w.approve(w.ask())
		}
		first, second := w.worker(w.service, nil, nil), w.worker(w.serve(open()), nil, nil)
		first.Start()
		second.Start()
		servicetest.Eventually(w.t, "all is delivered", func() bool { return len(r.arrived(t)) >= 2*asked })
		first.Stop(t.Context())
		second.Stop(t.Context())
		seen := make(map[string]bool)
		decided := make(map[string]bool)
		for _, m := range r.arrived(t) {
			if seen[m.id] {
				t.Errorf("%s was delivered twice", m.kind)
			}
			if m.kind == "approval.requested" && decided[m.approval] {
				t.Error("a request came after its decision")
			}
			seen[m.id] = true
			decided[m.approval] = decided[m.approval] || m.kind == "approval.decided"
		}
		if len(seen) != 2*asked {
			t.Errorf("%d messages", len(seen))
		}
		w.queue(asked+check, 0)
	})
}

// A worker that has no time left to stop releases its jobs, and they do not count as failed.
func TestStopGivesBackWhatIsUnderWay(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		answer := make(chan struct{})
		r.respond(func(http.ResponseWriter, message) { <-answer })
		defer close(answer)
		for range 20 {
			w.ask()
		}
		first := w.worker(w.service, nil, nil)
		first.Start()
		servicetest.Eventually(w.t, "deliveries hang", func() bool { return len(r.arrived(t)) == 16 })
		// Chores queue them, and stopping without time interrupts chores.
		servicetest.Eventually(w.t, "the next looks at the ledger are queued", func() bool {
			queued := 0
			for _, kind := range []string{service.JobCheck, service.JobAbandon} {
				err := w.store.ScanJobs(t.Context(), kind, func(*store.Job) error { queued++; return nil })
				if err != nil {
					t.Fatal(err)
				}
			}
			return queued == check
		})
		over, cancel := context.WithCancel(t.Context())
		cancel()
		first.Stop(over)
		r.respond(nil)
		w.run(w.worker(w.service, nil, nil))
		if n := len(r.arrived(t)); n != 36 {
			t.Errorf("%d deliveries, want the 16 that were broken off and all 20", n)
		}
		if retried := w.meter.get("webhook retried"); retried != 0 {
			t.Errorf("%d attempts count as failed", retried)
		}
		w.queue(20+check, 0)
		first.Stop(t.Context()) // stopping twice is harmless
	})
}

// A worker that stops waits for running deliveries.
//
//countersign:race
func TestStopWaitsForWhatIsUnderWay(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		answer := make(chan struct{})
		r.respond(func(http.ResponseWriter, message) { <-answer })
		w.ask()
		worker := w.worker(w.service, nil, nil)
		worker.Start()
		servicetest.Eventually(w.t, "the delivery hangs", func() bool { return len(r.arrived(t)) == 1 })
		servicetest.Eventually(w.t, "the queue is counted", func() bool { return w.meter.get("waiting") > 0 })
		stopped := make(chan struct{})
		go func() {
			worker.Stop(t.Context())
			close(stopped)
		}()
		select {
		case <-stopped:
			t.Fatal("it did not wait")
		default:
		}
		close(answer)
		<-stopped
		if done := w.meter.get("webhook done"); done != 1 {
			t.Errorf("%d deliveries are counted", done)
		}
		w.queue(1+check, 0)
	})
}
