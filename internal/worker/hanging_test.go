package worker_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/worker"
)

// due queues the given number of deliveries to a receiver, all due now.
func (w *world) due(r *receiver, count int) {
	w.t.Helper()
	now := ledger.TimeOf(w.clock.Now())
	notice, err := notify.Notice{Kind: notify.WebhookTest, At: now, Organization: "acme"}.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	changes := new(store.Changes)
	for i := range count {
		body := canon.BeginObject(nil)
		body.String("message_id", fmt.Sprint("message-", i))
		body.Raw("notice", notice)
		body.String("webhook_id", r.record.ID.String())
		changes.NewJobs = append(changes.NewJobs, &store.Job{Org: w.admin.Org, Kind: service.JobWebhook, RunAt: now, Body: body.End()})
	}
	err = evidence.New(w.store, w.ring).Transact(w.t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
	if err != nil {
		w.t.Fatal(err)
	}
}

// impatient returns a worker with the given timeout for receivers.
func (w *world) impatient(timeout time.Duration) *worker.Worker {
	webhooks := notify.NewWebhooks(notify.Options{AllowPrivate: true, Timeout: timeout})
	w.t.Cleanup(webhooks.Close)
	return worker.New(worker.Config{Service: w.service, Webhooks: webhooks, Clock: w.clock.Now, Meter: w.meter, Ticks: make(chan time.Time)})
}

// hang makes a receiver answer nothing until the returned function is called.
func (r *receiver) hang() (answer func()) {
	over := make(chan struct{})
	r.respond(func(http.ResponseWriter, message) { <-over })
	return func() {
		r.respond(nil)
		close(over)
	}
}

// A receiver that hangs does not delay the deadline of an approval.
func TestHangingReceiverDelaysNoDeadline(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		approval := w.ask()
		r := w.receiver("webhook.test")
		answer := r.hang()
		const deliveries = 100
		w.clock.Advance(hours/2*time.Hour - time.Minute)
		w.due(r, deliveries)
		ticks := make(chan time.Time)
		worker := w.worker(w.service, nil, ticks)
		worker.Start()
		servicetest.Eventually(w.t, "the receiver hangs", func() bool { return len(r.arrived(t)) == 16 })
		w.clock.Advance(time.Minute)
		ticks <- w.clock.Now()
		servicetest.Eventually(w.t, "the approval is escalated", func() bool { return w.stored(approval) == ledger.ApprovalEscalated })
		if n := w.meter.get("webhook done") + w.meter.get("webhook retried"); n != 0 {
			t.Errorf("%d deliveries had come to an end before", n)
		}
		answer()
		servicetest.Eventually(w.t, "all is delivered", func() bool { return w.meter.get("webhook done") == deliveries })
		worker.Stop(t.Context())
		w.queue(1+check, 0)
	})
}

// A receiver whose deliveries all time out occupies one worker, not all of them.
func TestHangingReceiverHoldsUpNoOtherReceiver(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		hangs, answers := w.receiver("webhook.test"), w.receiver("webhook.test")
		defer hangs.hang()()
		const deliveries = 100
		w.due(hangs, deliveries)
		w.clock.Advance(time.Millisecond) // later jobs are due after the hanging ones
		w.due(answers, 1)
		worker := w.impatient(2 * time.Second)
		worker.Start()
		servicetest.Eventually(w.t, "the other one hears of it", func() bool { return len(answers.arrived(t)) == 1 })
		servicetest.Eventually(w.t, "each delivery has counted as an attempt", func() bool { return w.meter.get("webhook retried") == deliveries })
		worker.Stop(t.Context())
		if n := len(hangs.arrived(t)); n < 16 || n > deliveries/2 {
			t.Errorf("%d deliveries were tried on a receiver that hangs", n)
		}
		w.queue(deliveries+check, 0)
	})
}

// Messages to a receiver that was hanging are delivered once it answers.
func TestReceiverThatHungIsToldAgain(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver("webhook.test")
		answer := r.hang()
		const deliveries = 30
		w.due(r, deliveries)
		worker := w.impatient(300 * time.Millisecond)
		w.run(worker)
		if n := w.meter.get("webhook retried"); n != deliveries {
			t.Errorf("%d attempts count", n)
		}
		answer()
		for range notify.MaxAttempts { // on a busy machine one more may time out
			w.clock.Advance(25 * time.Hour)
			w.run(worker)
		}
		if n := w.meter.get("webhook done"); n != deliveries {
			t.Errorf("%d of %d deliveries are done", n, deliveries)
		}
		w.queue(0, 0)
	})
}
