package worker_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
)

// A webhook that fails is retried on schedule with the same message until it
// succeeds.
func TestReceiverThatFailsAndRecovers(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		r.status(http.StatusInternalServerError)
		approval := w.ask()
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		if n := len(r.arrived(t)); n != 1 {
			t.Fatalf("%d attempts at once", n)
		}
		w.clock.Advance(notify.Backoff(1, 0) - time.Millisecond)
		w.run(worker)
		if n := len(r.arrived(t)); n != 1 {
			t.Fatalf("%d attempts before the wait is over", n)
		}
		w.clock.Advance(time.Millisecond)
		w.run(worker)
		r.status(http.StatusNoContent)
		w.clock.Advance(notify.Backoff(2, 0))
		w.run(worker)
		w.run(worker)
		got := r.arrived(t)
		want := message{got[0].id, "approval.requested", approval.String(), "pending"}
		if diff := cmp.Diff([]message{want, want, want}, got, cmp.AllowUnexported(message{})); diff != "" {
			t.Errorf("what arrived (-want +got):\n%s", diff)
		}
		w.queue(1, 0) // the deadline job
		if retried, done := w.meter.get("webhook retried"), w.meter.get("webhook done"); retried != 2 || done != 1 {
			t.Errorf("%d retries and %d deliveries are counted", retried, done)
		}
		checkLog(t, w, r, approval.String())
	})
}

// checkLog requires that the log names nobody and nothing.
func checkLog(t *testing.T, w *world, r *receiver, ids ...string) {
	t.Helper()
	log := w.log.String()
	for _, secret := range append(ids, "127.0.0.1", "planted-path", "@example.com", "whsec_", r.record.ID.String(), w.admin.Org.String()) {
		if strings.Contains(log, secret) {
			t.Errorf("the log shows %q:\n%s", secret, log)
		}
	}
	if log == "" {
		t.Error("the log says nothing of what failed")
	}
}

// The messages of one approval arrive in order across retries, and those of other approvals do not
// wait for them.
func TestOrderIsKeptAcrossRetries(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		r.status(http.StatusServiceUnavailable)
		slow := w.ask()
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		w.approve(slow) // queued after the request, which has failed once
		w.run(worker)
		r.status(http.StatusOK)
		quick := w.ask()
		w.approve(quick)
		w.run(worker) // another approval's messages do not wait
		w.clock.Advance(time.Hour)
		w.run(worker)
		of := func(approval string) string {
			return kindsOf(slices.DeleteFunc(r.arrived(t), func(m message) bool { return m.approval != approval }))
		}
		if got := of(slow.String()); got != strings.Repeat("approval.requested ", 2)+"approval.decided" {
			t.Errorf("in order of arrival: %s", got)
		}
		if got := of(quick.String()); got != "approval.requested approval.decided" {
			t.Errorf("in order of arrival: %s", got)
		}
		if last := r.arrived(t); last[len(last)-1].approval != slow.String() {
			t.Error("the approval whose receiver failed did not wait")
		}
	})
}

// A receiver that names a time for the retry is not called earlier.
func TestRetryAfterIsHeeded(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		r.respond(func(answer http.ResponseWriter, _ message) {
			answer.Header().Set("Retry-After", "3600")
			answer.WriteHeader(http.StatusTooManyRequests)
		})
		w.ask()
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		w.clock.Advance(time.Hour - time.Millisecond)
		w.run(worker)
		if n := len(r.arrived(t)); n != 1 {
			t.Errorf("%d attempts within the hour", n)
		}
		w.clock.Advance(time.Millisecond)
		w.run(worker)
		if n := len(r.arrived(t)); n != 2 {
			t.Errorf("%d attempts after the hour", n)
		}
	})
}

// A delivery is given up after its last attempt, and the next message is then delivered.
func TestDeliveryIsGivenUpAfterTheLastAttempt(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver("approval.requested", "approval.decided")
		r.status(http.StatusNotFound)
		approval := w.ask()
		w.approve(approval)
		worker := w.worker(w.service, nil, nil)
		for range notify.MaxAttempts + 2 {
			w.run(worker)
			w.clock.Advance(25 * time.Hour)
		}
		w.run(worker)
		if n := len(r.arrived(t)); n < notify.MaxAttempts || kindsOf(r.arrived(t)[:notify.MaxAttempts]) != strings.TrimSpace(strings.Repeat("approval.requested ", notify.MaxAttempts)) {
			t.Errorf("%d attempts: %s", n, kindsOf(r.arrived(t)))
		}
		if last := r.arrived(t); last[len(last)-1].kind != "approval.decided" {
			t.Error("what was given up still holds up what comes after it")
		}
		w.queue(1, 1)
		if n := w.meter.get("webhook buried"); n != 1 {
			t.Errorf("%d burials are counted", n)
		}
	})
}

// A receiver that answers 410 is disabled and gets no more messages.
func TestReceiverThatIsGone(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		r.status(http.StatusGone)
		w.ask()
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		w.queue(1, 1)
		webhooks, err := w.service.Webhooks(t.Context(), w.admin)
		if err != nil || len(webhooks) != 1 || webhooks[0].DisabledAt == nil {
			t.Errorf("the webhook is %+v, %v", webhooks, err)
		}
		w.ask()
		w.run(worker)
		if n := len(r.arrived(t)); n != 1 {
			t.Errorf("%d messages to a receiver that is gone", n)
		}
	})
}

// A delivery to a webhook that was deleted is dropped.
func TestReceiverThatWasDeletedMeanwhile(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		r.status(http.StatusBadGateway)
		w.ask()
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		if err := w.service.DeleteWebhook(t.Context(), w.admin, r.record.ID); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(time.Minute)
		w.run(worker)
		if n := len(r.arrived(t)); n != 1 {
			t.Errorf("%d messages", n)
		}
		w.queue(1, 0)
		if n := w.meter.get(service.JobWebhook + " done"); n != 1 {
			t.Errorf("%d jobs are counted as done", n)
		}
	})
}

// stopsAtTheEnd is a store that ends the time of the job just before a delivery is removed from the queue.
type stopsAtTheEnd struct {
	store.Store
	end context.CancelFunc
}

func (s *stopsAtTheEnd) FinishJob(ctx context.Context, job *store.Job, follow []*store.Job) error {
	if len(follow) == 0 && (job.Kind == service.JobWebhook || job.Kind == service.JobEmail) {
		s.end()
	}
	return s.Store.FinishJob(ctx, job, follow)
}

// A message that has arrived is not sent again, also if the worker is stopped right then.
func TestArrivedAtTheLastMoment(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		db := &stopsAtTheEnd{Store: open()}
		w := newWorld(t, db)
		office := newPostOffice(t)
		office.refused = "bob@example.com"
		worker := w.worker(w.service, office.mailer(t), nil)
		attempts := func() {
			t.Helper()
			for range 5 {
				ctx, end := context.WithCancel(t.Context())
				db.end = end
				if _, err := worker.RunOnce(ctx); err != nil {
					t.Fatal(err)
				}
				end()
			}
		}
		w.ask()
		w.clock.Advance(hours / 2 * time.Hour)
		attempts()
		if diff := cmp.Diff([]string{"ada@example.com"}, office.mailed("Auto-Submitted")); diff != "" {
			t.Errorf("mailed (-want +got):\n%s", diff)
		}
		r := w.receiver()
		w.ask()
		attempts()
		if n := len(r.arrived(t)); n != 1 {
			t.Errorf("the webhook got %d messages, want 1", n)
		}
	})
}
