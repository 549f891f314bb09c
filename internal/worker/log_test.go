package worker_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// logged returns the delivery log of a receiver as texts, oldest first.
func (w *world) logged(r *receiver) (log []string) {
	w.t.Helper()
	deliveries, err := w.service.WebhookDeliveries(w.t.Context(), w.admin, r.record.ID, nil, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range deliveries {
		log = append([]string{fmt.Sprintf("%s %s %d: %s %d %s", d.Trigger, d.Kind, d.Attempt, d.State, d.Code, d.Class)}, log...)
	}
	return log
}

// Each attempt is in the log of its webhook with its result: by the worker, by a test, and by a
// redelivery, which arrives like the original message.
func TestAttemptsAreLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.SQLite(t).Open(t))
	r := w.receiver("approval.requested")
	worker := w.worker(w.service, nil, nil)
	r.status(http.StatusServiceUnavailable)
	w.ask()
	w.run(worker)
	r.status(http.StatusNoContent)
	w.clock.Advance(notify.Backoff(1, 0))
	w.run(worker)
	deliveries, err := w.service.WebhookDeliveries(t.Context(), w.admin, r.record.ID, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.service.Redeliver(t.Context(), w.admin, r.record.ID, deliveries[0].ID); err != nil {
		t.Fatal(err)
	}
	w.run(worker)
	r.status(http.StatusNotFound)
	if tested, err := w.service.TestWebhook(t.Context(), w.admin, r.record.ID); err != nil || tested.State != service.DeliveryFailed || tested.Error != "the receiver answered 404" {
		t.Errorf("the test: %+v, %v", tested, err)
	}
	r.server.Close()
	if tested, err := w.service.TestWebhook(t.Context(), w.admin, r.record.ID); err != nil || tested.State != service.DeliveryFailed {
		t.Errorf("the test: %+v, %v", tested, err)
	}
	want := []string{
		"event approval.requested 1: retrying 503 status", "event approval.requested 2: delivered 204 ",
		"redelivery approval.requested 1: delivered 204 ", "test webhook.test 1: failed 404 status", "test webhook.test 1: failed 0 connection",
	}
	if diff := cmp.Diff(want, w.logged(r)); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
	if got := r.arrived(t); got[0] != got[1] || got[1] != got[2] {
		t.Errorf("attempts and the redelivery differ: %v", got)
	}
}

// The last attempt fails the message, and an attempt that is answered 410 is the last. A test that
// is answered 410 also disables the webhook.
func TestLastAttemptIsLoggedAsFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.SQLite(t).Open(t))
	r, gone := w.receiver("approval.requested"), w.receiver("approval.requested")
	r.status(http.StatusBadGateway)
	gone.status(http.StatusGone)
	w.ask()
	worker := w.worker(w.service, nil, nil)
	for range notify.MaxAttempts + 1 {
		w.run(worker)
		w.clock.Advance(30 * time.Hour)
	}
	log := w.logged(r)
	if len(log) != notify.MaxAttempts || log[0] != "event approval.requested 1: retrying 502 status" || log[9] != "event approval.requested 10: failed 502 status" {
		t.Errorf("the log: %q", log)
	}
	if diff := cmp.Diff([]string{"event approval.requested 1: failed 410 gone"}, w.logged(gone)); diff != "" {
		t.Errorf("the log of one that is gone (-want +got):\n%s", diff)
	}
	r.status(http.StatusGone)
	if tested, err := w.service.TestWebhook(t.Context(), w.admin, r.record.ID); err != nil || tested.Class != string(notify.ClassGone) {
		t.Errorf("the test: %+v, %v", tested, err)
	}
	if _, err := w.service.TestWebhook(t.Context(), w.admin, r.record.ID); err == nil {
		t.Error("a webhook that is gone is tested again")
	}
}
