package httpapi

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"countersign/internal/service"
)

// statuses notes what was counted.
type statuses []int

func (s *statuses) Request(_ string, status int, _ time.Duration) { *s = append(*s, status) }

// A handler that panics is answered as other failures are, logged with its stack and
// counted. Where a part of the answer was sent, the connection is broken off.
func TestPanickingHandlersAreAnswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handle  func(*exchange) error
		aborted bool
	}{
		"before the answer": {handle: func(*exchange) error { panic("for the test") }},
		"in an answer": {handle: func(x *exchange) error {
			x.write(http.StatusOK, "application/json", []byte("{}"))
			panic("for the test")
		}, aborted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			var counted statuses
			api := New(Config{Service: new(service.Service), Log: slog.New(slog.NewTextHandler(&log, nil)), Observe: &counted})
			answer := httptest.NewRecorder()
			aborted := func() (aborted bool) {
				defer func() { aborted = recover() == http.ErrAbortHandler }()
				api.serve(Route{Pattern: "/panics", Access: Public, handle: test.handle}).
					ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/panics", http.NoBody))
				return false
			}()
			if aborted != test.aborted {
				t.Errorf("aborted: %t", aborted)
			}
			var shown document
			if err := json.Unmarshal(answer.Body.Bytes(), &shown); err != nil {
				t.Error(err)
			}
			if id := answer.Header().Get("X-Request-Id"); !strings.Contains(log.String(), "request_id="+id) || !strings.Contains(log.String(), "panic_test.go") {
				t.Errorf("the log says %s", log.String())
			}
			if !test.aborted && (answer.Code != http.StatusInternalServerError || shown.Code != "internal") {
				t.Errorf("answered %d %s", answer.Code, answer.Body)
			}
			if len(counted) != 1 || counted[0] != http.StatusInternalServerError {
				t.Errorf("counted %v", counted)
			}
		})
	}
}
