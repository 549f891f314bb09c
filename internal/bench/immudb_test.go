package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// refusingImmudb is a server that speaks gRPC, opens sessions, and refuses what is set
// without one.
//
//countersign:host it runs the server that is called
func refusingImmudb(t *testing.T) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/grpc" || len(body) < messagePrefix {
			http.Error(w, "not gRPC", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		switch {
		case strings.HasSuffix(r.URL.Path, "/OpenSession"):
			answer := appendField(make([]byte, messagePrefix), 1, "the-session")
			answer[messagePrefix-1] = byte(len(answer) - messagePrefix)
			_, _ = w.Write(answer)
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case r.Header.Get("Sessionid") == "the-session" && bytes.Contains(body, []byte(eventHead)):
			_, _ = w.Write(make([]byte, messagePrefix))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		default:
			w.Header().Set("Grpc-Status", "16")
			w.Header().Set("Grpc-Message", "no session")
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// The benchmark opens a session with immudb and sets events under it; what immudb
// refuses is an error.
func TestSetSession(t *testing.T) {
	t.Parallel()
	address := refusingImmudb(t)
	sessionID, err := openImmudbSession(t.Context(), address)
	if err != nil || sessionID != "the-session" {
		t.Fatalf("got %q, %v", sessionID, err)
	}
	for id, want := range map[string]string{sessionID: "", "another": "no session"} {
		c, err := dial(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		if err := c.expire(time.Now()); err != nil {
			t.Fatal(err)
		}
		s := newSetSession(t.Context(), address, id)
		for range 2 { // on one connection
			counts, err := s.step(c)
			if !counts || (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
				t.Errorf("session %q: got %v, %v, want an error with %q", id, counts, err, want)
			}
		}
	}
}

// An answer with a success's status is an error all the same if it is not the one that
// is measured: a decision that denies, a receipt that does not verify.
func TestSessionsReadTheirAnswers(t *testing.T) {
	t.Parallel()
	one := func() *queue { return &queue{ids: []string{idPlace}} }
	event := func() session {
		s := newEventSession("key", 0)
		s.left = 1
		return s
	}
	for _, c := range []struct {
		what      string
		begin     func() session
		good, bad string
	}{
		{"an event", event, `{"policy_decision":"allow"}`, `{"policy_decision":"deny"}`},
		{"a completion", func() session { return newCompletionSession("key", one()) }, `{"receipt_id":"1"}`, `{}`},
		{"a receipt check", func() session { return newCheckSession(one()) }, `{"valid":true}`, `{"valid":false}`},
		{"a token check", func() session { return newTokenSession(one()) }, `{"overall_status":"verified"}`, `{"overall_status":"failed"}`},
		{"OPA's decision", newDecisionSession, `{"result":"allow"}`, `{"result":"deny"}`},
		{"OPA without the policy", newDecisionSession, `{"result":"allow"}`, `{}`},
	} {
		for body, want := range map[string]error{c.good: nil, c.bad: errUnexpected} {
			answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			if counts, err := c.begin().step(answering(t, answer)); !counts || !errors.Is(err, want) {
				t.Errorf("%s, %s: got %v, %v, want %v", c.what, body, counts, err, want)
			}
		}
	}
}
