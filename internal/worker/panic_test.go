package worker

import (
	"errors"
	"io"
	"log/slog"
	"testing"

	"countersign/internal/service"
)

// A job that panics has failed, and the server lives on.
func TestPanickingJobHasFailed(t *testing.T) {
	t.Parallel()
	w := &Worker{Config: Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}} // without a service behind it
	err := w.attempt(t.Context(), &service.Job{Kind: service.JobCheck, Body: []byte("{}")})
	if !errors.Is(err, errPanicked) {
		t.Errorf("error %v, want %v", err, errPanicked)
	}
}
