package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
)

// A job that panics has failed, and the server continues.
func TestPanickingJobHasFailed(t *testing.T) {
	t.Parallel()
	w := &Worker{Config: Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}} // has no service, so the job panics
	err := w.attempt(t.Context(), &service.Job{Kind: service.JobCheck, Body: []byte("{}")})
	if !errors.Is(err, errPanicked) {
		t.Errorf("error %v, want %v", err, errPanicked)
	}
}

// A chore that panics has failed, and the server continues and runs it again.
func TestPanickingChoreHasFailed(t *testing.T) {
	t.Parallel()
	w := &Worker{Config: Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, working: t.Context()}
	c := &chore{name: "fail", do: func(context.Context) error { panic("for the test") }}
	w.doChore(c)
	if !c.failing.Load() {
		t.Error("the chore did not fail")
	}
	c.do = func(context.Context) error { return nil }
	w.doChore(c)
	if c.failing.Load() {
		t.Error("the chore still fails")
	}
}

// A panic while it is tried whether a hanging receiver answers ends the trial: the next delivery is
// tried.
func TestPanickingTrialEnds(t *testing.T) {
	t.Parallel()
	w := &Worker{Config: Config{Clock: time.Now}} // has no client, so a delivery panics
	webhook := &store.WebhookRecord{ID: ledger.WebhookID{UUID: [16]byte{1}}}
	w.endpoints.end(webhook.ID, false, true)
	for range 2 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the delivery was not tried")
				}
			}()
			w.try(t.Context(), &service.Job{Kind: service.JobWebhook}, &service.Delivery{Webhook: webhook})
		}()
	}
}
