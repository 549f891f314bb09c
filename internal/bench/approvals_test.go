package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A client whose wait ends before its approval is decided asks again: with many clients,
// deciding takes longer than one wait may.
//
//countersign:host it runs the server that is measured
func TestWaitingClientsAskAgain(t *testing.T) {
	t.Parallel()
	var polls atomic.Int64
	approved := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := "pending"
		switch {
		case strings.HasSuffix(r.URL.Path, "/approve"):
			close(approved)
		case r.Method == http.MethodGet && polls.Add(1) > 1:
			<-approved
			status = "approved"
		}
		fmt.Fprintf(w, `{"id":%q,"approval_id":%q,"status":%q}`, idPlace, idPlace, status)
	}))
	t.Cleanup(server.Close)
	room := &waitingRoom{
		target:    &target{filled: &filled{waiters: []string{"waiter"}}},
		addresses: []string{strings.TrimPrefix(server.URL, "http://")}, clients: 1,
	}
	m, err := room.run(t.Context())
	if err != nil || m.Requests != 1 || polls.Load() != 2 {
		t.Errorf("got %+v, %v after %d polls, want one approval after two", m, err, polls.Load())
	}
}
