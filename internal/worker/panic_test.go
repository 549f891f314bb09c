package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"countersign/internal/service"
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
