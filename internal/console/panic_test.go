package console

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/service"
)

// statuses notes what was counted.
type statuses []int

func (s *statuses) Request(_ string, status int, _ time.Duration) { *s = append(*s, status) }

// A handler that panics is answered with a page as other failures are, logged with its
// stack and counted.
func TestPanickingPagesAreAnswered(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var counted statuses
	pages := New(Config{Service: new(service.Service), Log: slog.New(slog.NewTextHandler(&log, nil)), Observe: &counted})
	answer := httptest.NewRecorder()
	panics := route{pattern: "/panics", handle: func(*visit) error { panic("for the test") }, asset: true}
	pages.serve(panics).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/panics", http.NoBody))
	id := answer.Header().Get("X-Request-Id")
	if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), id) {
		t.Errorf("answered %d %s", answer.Code, answer.Body)
	}
	if !strings.Contains(log.String(), "request_id="+id) || !strings.Contains(log.String(), "panic_test.go") {
		t.Errorf("the log says %s", log.String())
	}
	if len(counted) != 1 || counted[0] != http.StatusInternalServerError {
		t.Errorf("counted %v", counted)
	}
}

// An answer that says to try again says when, as the API does: a rolled back database takes longer
// than a store that does not answer.
func TestPagesSayWhenToTryAgain(t *testing.T) {
	t.Parallel()
	pages := New(Config{Service: new(service.Service)})
	for code, want := range map[fault.Code]string{
		fault.CodeUnavailable: "1", fault.CodeOutcomeUnknown: "1", fault.CodeRolledBack: "60", fault.CodeRateLimited: "1", fault.CodeNotFound: "", fault.CodeInternal: "",
	} {
		answer := httptest.NewRecorder()
		fails := route{pattern: "/fails", handle: func(*visit) error { return fault.Errorf(code, "for the test") }, asset: true}
		pages.serve(fails).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/fails", http.NoBody))
		if got := answer.Header().Get("Retry-After"); got != want {
			t.Errorf("%s is answered %d with Retry-After %q, want %q", code, answer.Code, got, want)
		}
	}
}
