package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/servicetest"
)

// lineBreaks is where programs end a line: Python's text files at a carriage return, Node's readline also
// at U+2028 and U+2029, and Python's splitlines at all of these.
var lineBreaks = regexp.MustCompile(`[\n\r\v\f\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]`)

// A message is one line for every program. A tool call inside another message, between breaks that the
// gateway takes for white space, would be a message of its own for a server that ends lines there.
func TestNoCallBetweenOtherLineBreaks(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay"}}`
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) {
		return map[string]any{"policy_decision": "deny"}, 0
	}}
	s := newTestSession(t, service)
	sent := 0
	for _, around := range []string{"\r", "\n", "\v", "\f", "\x1e", "\u0085", "\u2028", "\u2029", "\x00", " "} {
		for _, inner := range []string{call, `"` + strings.ReplaceAll(call, `"`, `\"`) + `"`} {
			for _, outer := range []string{
				`{"jsonrpc":"2.0","method":"ping","id":1,"params":*}`, `{"jsonrpc":"2.0","id":1,"result":[*]}`, `*`,
			} {
				s.send(t, strings.Replace(outer, "*", around+inner+around, 1))
				s.send(t, strings.Replace(outer, "*", `"`+around+`",`+inner+`,"`+around+`"`, 1))
				sent += 2
			}
		}
	}
	passed := s.server.all()
	for _, line := range passed {
		for _, part := range lineBreaks.Split(line, -1) {
			if m, err := parse([]byte(part)); err == nil && m.method == methodCallTool {
				t.Errorf("the server got %q", line)
			}
		}
	}
	if len(passed) == 0 || len(passed) == sent {
		t.Errorf("of %d messages, %d were passed on", sent, len(passed))
	}
	if i := slices.IndexFunc(passed, func(line string) bool { return strings.ContainsRune(line, '\r') }); i >= 0 {
		t.Errorf("the server got %q", passed[i])
	}
}

// callOf is a call of a tool. The tool's name is also the id.
func callOf(tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%[1]q}}`, tool)
}

// calls returns how many tool calls the server got.
func (s *testSession) calls() int {
	return strings.Count(strings.Join(s.server.all(), ""), methodCallTool)
}

// awaitTurn waits until a call is allowed and waits for its turn to be written: its chain is used by the
// decision and by the call.
func (s *testSession) awaitTurn(t *testing.T) {
	t.Helper()
	servicetest.Eventually(t, "the call waits for its turn", func() bool {
		s.chains.mu.Lock()
		defer s.chains.mu.Unlock()
		return s.chains.current != nil && s.chains.current.calls == 2
	})
}

// A denial may be the first that is heard of a stop. An older allow begins no call after it, even if the
// call waits only for its turn to be written.
func TestAllowsThatAreOlderThanADenial(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(_ int, tool string) (map[string]any, time.Duration) {
		if tool == "denied" {
			return map[string]any{"policy_decision": "deny", "act_number": 7}, 0
		}
		return allow(6), 0
	}}
	s := newTestSession(t, service)
	s.lineSession.server.mu.Lock()
	if err := s.fromClient(t.Context(), []byte(callOf("waits"))); err != nil {
		t.Fatal(err)
	}
	s.awaitTurn(t)
	if err := s.fromClient(t.Context(), []byte(callOf("denied"))); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the other call is denied", func() bool { return strings.Contains(s.client.all()[0], "was denied") })
	s.lineSession.server.mu.Unlock()
	s.send(t, callOf("comes later"))
	if s.calls() != 0 || service.asked != 1+2*maxLateAnswers {
		t.Errorf("the server got %q after %d answers", s.server.all(), service.asked)
	}
}

// If a chain was completed by somebody else and no other can be opened, the call is answered.
func TestNoChainToGoOnIn(t *testing.T) {
	t.Parallel()
	var s *testSession
	s = newTestSession(t, &fakeService{decide: func(int, string) (map[string]any, time.Duration) {
		s.chains.mu.Lock()
		defer s.chains.mu.Unlock()
		s.chains.ended = true // so that take fails
		return map[string]any{"status": http.StatusConflict, "code": fault.CodeChainSealed}, 0
	}})
	s.send(t, callOf("pay"))
	if got := s.client.all(); s.calls() != 0 || !strings.Contains(got[0], "the session has ended") {
		t.Errorf("the client got %q", got)
	}
	s.end(t.Context())
}

// A client that gives up a call while it waits for its turn to be written is heard: the server does not
// get the call, although it was allowed, and it gets no cancellation of a call that it does not know.
//
//countersign:race
func TestCallsThatAreGivenUpBeforeTheirTurn(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: allowAll}
	s := newTestSession(t, service)
	s.lineSession.server.mu.Lock()
	if err := s.fromClient(t.Context(), []byte(callOf("pay"))); err != nil {
		t.Fatal(err)
	}
	s.awaitTurn(t)
	cancelled := make(chan error, 1)
	go func() {
		cancelled <- s.fromClient(t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"pay"}}`))
	}()
	select {
	case err := <-cancelled:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the notification waits for the server as well")
	}
	s.lineSession.server.mu.Unlock()
	s.deciding.Wait()
	s.end(t.Context())
	if got := s.server.all(); !slices.Equal(got, []string{""}) {
		t.Errorf("the server got %q", got)
	}
	if !slices.Equal(service.outcomes, []string{"failed"}) {
		t.Errorf("the outcomes are %q", service.outcomes)
	}
}

// A server that has closed its output, and does not end with its input either, is ended all the same.
//
//countersign:race
func TestServersThatCloseTheirOutput(t *testing.T) {
	t.Parallel()
	server, err := (&Command{Server: []string{"sh", "-c", "exec sleep 100 >&-"}}).start(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	s := newTestSession(t, &fakeService{})
	client, input := io.Pipe()
	defer input.Close()
	go func() { ended <- s.run(t.Context(), client, server) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the MCP server has ended") {
			t.Errorf("the session ended with %v", err)
		}
	case <-time.After(4 * stopTime):
		_ = server.Process.Kill()
		t.Error("the session does not end")
	}
}

// unreadWriter is a writer whose other end nobody reads.
type unreadWriter struct{ begun chan struct{} }

func (w unreadWriter) Write([]byte) (int, error) {
	w.begun <- struct{}{}
	select {}
}

// A client that reads nothing does not keep the gateway from its end.
//
//countersign:race
func TestClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	server, err := (&Command{Server: []string{"cat"}}).start(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) {
		return map[string]any{"policy_decision": "deny"}, 0
	}}
	s := newTestSession(t, service)
	unread := unreadWriter{make(chan struct{}, 1)}
	s.lineSession.client.w = unread
	client, input := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, client, server) }()
	if _, err := io.WriteString(input, callOf("pay")+"\n"); err != nil {
		t.Fatal(err)
	}
	<-unread.begun
	cancel()
	select {
	case err := <-ended:
		if err != nil || len(service.complete) != 1 {
			t.Errorf("the session ended with %v, and %d chains are completed", err, len(service.complete))
		}
	case <-time.After(4 * stopTime):
		t.Error("the session does not end")
	}
}

// A request that is refused is answered under its id, even if the message cannot be taken as it is. A
// response is not: its id is one of the server's, and the client may have a request with the same.
func TestRefusalsNameTheRequest(t *testing.T) {
	t.Parallel()
	s := newTestSession(t, &fakeService{})
	for text, id := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay","arguments":{"to":12345678901234567890}}}`: `7`,
		`{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x":1,"x":2}}`:                                              `"a"`,
		`{"jsonrpc":"2.0","id":"a","Method":"ping"}`:                                                                     `"a"`,
		`{"jsonrpc":"2.0","id":7,"result":12345678901234567890}`:                                                         `null`,
		`{"jsonrpc":"2.0","id":7,"result":{},"Error":{}}`:                                                                `null`,
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`:                                                                      `null`,
		`{"jsonrpc":"2.0","id":12345678901234567890,"method":"ping"}`:                                                    `null`,
		`{"jsonrpc":"2.0","id":7,"method":"ping"`:                                                                        `null`,
		`[{"jsonrpc":"2.0","id":7,"method":"ping"}]`:                                                                     `null`,
	} {
		s.send(t, text)
		var answer struct{ ID json.RawMessage }
		said := s.client.all()
		if err := json.Unmarshal([]byte(said[len(said)-1]), &answer); err != nil || string(answer.ID) != id {
			t.Errorf("%s is answered %q", text, said[len(said)-1])
		}
	}
	if got := s.server.all(); !slices.Equal(got, []string{""}) {
		t.Errorf("the server got %q", got)
	}
}

// A service that asks for approval again and again is not asked again and again at once.
func TestApprovalsThatChangeNothing(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) {
		return map[string]any{"policy_decision": "require_approval", "approval_id": "approval"}, 0
	}}
	s := newTestSession(t, service)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := s.fromClient(ctx, []byte(callOf("pay"))); err != nil {
		t.Fatal(err)
	}
	s.deciding.Wait()
	if service.asked > 3 {
		t.Errorf("the service was asked %d times", service.asked)
	}
}

// A call that was answered while it was undecided can be taken up after it was repeated in vain, because the
// service was away or answered too late: otherwise what a person approves would be lost, and another one asked.
func TestPostponedCallsOutliveTheirRepetition(t *testing.T) {
	t.Parallel()
	for name, hinder := range map[string]func(*fakeService){
		"an outage": func(f *fakeService) { f.outage = "/events" },
		"late answers": func(f *fakeService) {
			f.decide = func(int, string) (map[string]any, time.Duration) { return allow(1), leaseTime }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &fakeService{decide: approve, pending: true}
			s := newTestSession(t, service)
			s.governor.patience = 50 * time.Millisecond
			s.send(t, callOf("pay"))
			key := func() string {
				s.chains.mu.Lock()
				defer s.chains.mu.Unlock()
				for _, call := range s.chains.postponed {
					return call.key
				}
				return ""
			}
			first := key()
			service.mu.Lock()
			hinder(service)
			service.mu.Unlock()
			s.send(t, callOf("pay"))
			if got := key(); first == "" || got != first {
				t.Errorf("the key of the call is %q, and was %q", got, first)
			}
			s.end(t.Context())
		})
	}
}
