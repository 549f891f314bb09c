package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
)

// fakeService answers as the service does. It is for what a real one cannot be made to do, such as
// answering late.
type fakeService struct {
	mu       sync.Mutex
	decide   func(n int, tool string) (answer map[string]any, late time.Duration)
	asked    int
	most     int64 // events of a chain; negative if it does not say
	opened   []map[string]any
	agents   []any // of the actions
	outcomes []string
	complete []string
	pending  bool         // approvals are not decided
	given    int          // approvals that were cancelled
	outage   string       // how the paths end that are not served
	delay    atomic.Int64 // how far clock is ahead
}

// clock is the time as the gateway knows it. Late answers are late by this clock.
func (f *fakeService) clock() time.Time { return time.Now().Add(time.Duration(f.delay.Load())) }

func (f *fakeService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in map[string]any
	_ = json.Unmarshal(body, &in)
	f.mu.Lock()
	answer, late := f.answer(r, in)
	f.mu.Unlock()
	f.delay.Add(int64(late))
	if status, ok := answer["status"].(int); ok { // a problem
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// answer is called with mu held.
func (f *fakeService) answer(r *http.Request, in map[string]any) (map[string]any, time.Duration) {
	switch path := r.URL.Path; {
	case f.outage != "" && strings.HasSuffix(path, f.outage):
		return map[string]any{"status": http.StatusServiceUnavailable}, 0
	case path == "/v1/chains":
		f.opened = append(f.opened, in)
		answer := map[string]any{"id": fmt.Sprintf("chain-%d", len(f.opened))}
		if f.most > 0 {
			answer["effective_limits"] = map[string]any{"auto_pause": map[string]any{"max_events": f.most, "max_duration_seconds": 86400}}
		}
		return answer, 0
	case strings.HasSuffix(path, "/events"):
		f.asked++
		f.agents = append(f.agents, in["agent_name"])
		answer, late := f.decide(f.asked, in["action_name"].(string))
		answer["event_id"] = fmt.Sprintf("event-%d", f.asked)
		answer["chain_id"] = strings.Split(path, "/")[3]
		return answer, late
	case strings.HasPrefix(path, "/v1/approvals/") && strings.HasSuffix(path, "/cancel"):
		f.given++
		return map[string]any{}, 0
	case strings.HasPrefix(path, "/v1/approvals/") && f.pending:
		return map[string]any{"status": "pending"}, 0
	case strings.HasPrefix(path, "/v1/approvals/"):
		return map[string]any{"status": "approved"}, 0
	case strings.HasSuffix(path, "/outcome"):
		f.outcomes = append(f.outcomes, in["outcome"].(string))
		return map[string]any{}, 0
	case strings.HasSuffix(path, "/complete"):
		f.complete = append(f.complete, strings.Split(path, "/")[3])
		return map[string]any{}, 0
	}
	return map[string]any{"status": http.StatusNotFound, "code": "not_found"}, 0
}

func allow(act int64) map[string]any {
	return map[string]any{"policy_decision": "allow", "act_number": act}
}

// lines are what was written to a party.
type lines struct{ servicetest.Buffer }

func (l *lines) all() []string { return strings.Split(strings.TrimSuffix(l.String(), "\n"), "\n") }

// testSession is a session between two texts.
type testSession struct {
	*lineSession
	client, server lines
}

func newTestSession(t *testing.T, service *fakeService) *testSession {
	t.Helper()
	if service.most == 0 {
		service.most = 1000
	}
	web := httptest.NewServer(service)
	t.Cleanup(web.Close)
	s := &testSession{}
	command := &Command{Server: []string{"tools"}}
	s.lineSession = &lineSession{command.newSession(cli.NewClient(web.URL, ledger.Secret{}), t.Logf, new(atomic.Int64)), &lineWriter{w: &s.client}, &lineWriter{w: &s.server}}
	s.governor.clock = service.clock
	s.reporting = t.Context()
	return s
}

// send hands the session messages of the client, and waits until they are decided.
func (s *testSession) send(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err := s.fromClient(t.Context(), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	s.deciding.Wait()
}

// looseReadings are the methods that some parser could find in a text: they take the first or the
// last of equal names, ignore case, look into arrays, and stop at the end of the first value.
func looseReadings(text string) (methods []string) {
	var folded struct{ Method any }
	decoder := json.NewDecoder(strings.NewReader(strings.TrimLeft(text, "\ufeff \x00")))
	if decoder.Decode(&folded) == nil {
		methods = append(methods, fmt.Sprint(folded.Method))
	}
	var items []json.RawMessage
	if json.Unmarshal([]byte(text), &items) == nil {
		for _, item := range items {
			methods = append(methods, looseReadings(string(item))...)
		}
	}
	tokens := json.NewDecoder(strings.NewReader(text))
	for name := ""; ; {
		token, err := tokens.Token()
		if err != nil {
			return methods
		}
		if value, ok := token.(string); ok {
			if strings.EqualFold(name, "method") {
				methods = append(methods, value)
			}
			name = value
		}
	}
}

// ambiguousMessages are texts in which some parser could find a tool call, and others.
func ambiguousMessages() (texts []string) {
	names := []string{`"method"`, `"Method"`, `"METHOD"`, `"m\u0065thod"`, `"metho\u0064"`, `"method "`}
	values := []string{`"tools/call"`, `"tools\/call"`, `"\u0074ools/call"`, `"ping"`, `null`, `["tools/call"]`}
	members := []string{`"params":{"name":"pay","arguments":{}}`, `"Params":{"name":"pay"}`, `"params":{"name":"a","Name":"pay"}`, `"params":[]`, `"x":1`}
	for _, name := range names {
		for _, value := range values {
			for _, member := range members {
				one := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s:%s,%s}`, len(texts), name, value, member)
				texts = append(texts, one, "["+one+"]", one+one, "\ufeff"+one, one+"\x00", strings.Replace(one, `"id"`, `"ID"`, 1))
				for _, other := range names {
					for _, second := range values[:4] {
						texts = append(texts, strings.Replace(one, `"jsonrpc":"2.0"`, other+":"+second, 1))
					}
				}
			}
		}
	}
	return texts
}

// Whatever a client sends, a text in which some parser could find a tool call does not reach the server
// unless the service has allowed it.
func TestNoUndecidedCallReachesTheServer(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) {
		return map[string]any{"policy_decision": "deny", "decision_reason": "no"}, 0
	}}
	s := newTestSession(t, service)
	texts := ambiguousMessages()
	s.send(t, texts...)
	passed := s.server.all()
	for _, text := range passed {
		if slices.Contains(looseReadings(text), "tools/call") {
			t.Errorf("the server got %s", text)
		}
	}
	if len(passed) < 10 || service.asked < 10 {
		t.Errorf("of %d messages, %d were passed on and %d were decided", len(texts), len(passed), service.asked)
	}
	if answered := len(s.client.all()); answered+len(passed) != len(texts) {
		t.Errorf("of %d messages, %d were answered and %d passed on", len(texts), answered, len(passed))
	}
}

// An allow is used within a second of the request, and never after an answer that is newer.
func TestAllowsThatComeTooLate(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"pay"}}`
	for name, test := range map[string]struct {
		decide func(n int, tool string) (map[string]any, time.Duration)
		sent   int
		asked  int
	}{
		"in time": {func(int, string) (map[string]any, time.Duration) { return allow(1), 0 }, 2, 2},
		"late once": {func(n int, _ string) (map[string]any, time.Duration) {
			if n == 1 {
				return allow(1), leaseTime + 100*time.Millisecond
			}
			return allow(1), 0
		}, 2, 3},
		"always late": {func(int, string) (map[string]any, time.Duration) { return allow(1), leaseTime + 100*time.Millisecond }, 0, 2 * maxLateAnswers},
		"older than another": {func(n int, _ string) (map[string]any, time.Duration) {
			if n == 1 {
				return allow(7), 0
			}
			return allow(6), 0
		}, 1, 1 + maxLateAnswers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &fakeService{decide: test.decide}
			s := newTestSession(t, service)
			s.send(t, fmt.Sprintf(call, 1))
			s.send(t, fmt.Sprintf(call, 2))
			sent := 0
			for _, line := range s.server.all() {
				sent += strings.Count(line, "tools/call")
			}
			if sent != test.sent || service.asked != test.asked {
				t.Errorf("%d calls were sent to the server, and the service was asked %d times", sent, service.asked)
			}
			if refused := strings.Count(strings.Join(s.client.all(), ""), "come too late"); refused != 2-test.sent {
				t.Errorf("%d calls were answered: %q", refused, s.client.all())
			}
		})
	}
}

// permitAt is a permit that was asked for at a time, at another.
func permitAt(sent, now time.Time) *permit {
	return &permit{sent: sent, newest: new(atomic.Int64), clock: func() time.Time { return now }}
}

// The clock of the system may be set, and the other one may stop while the machine sleeps: a permit is
// valid only if both say so.
func TestPermitsNeedBothClocks(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	for elapsed, valid := range map[time.Duration]bool{0: true, 900 * time.Millisecond: true, leaseTime: false, time.Hour: false} {
		if permitAt(sent, sent.Add(elapsed)).valid() != valid {
			t.Errorf("after %s it is not %t", elapsed, valid)
		}
	}
	// Without its monotonic reading, the later time has only that of the wall clock.
	slept := sent.Add(100 * time.Millisecond).Round(0).Add(time.Hour)
	if permitAt(sent, slept).valid() {
		t.Error("it is valid after an hour of sleep")
	}
}

// Before the service would pause a chain, another one follows, which names it. Each is completed once
// its calls are answered.
func TestChainsFollowEachOther(t *testing.T) {
	t.Parallel()
	service := &fakeService{most: 3, decide: func(int, string) (map[string]any, time.Duration) { return allow(1), 0 }}
	s := newTestSession(t, service)
	for id := range 6 {
		s.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":"pay"}}`, id))
	}
	for id := range 5 { // the last one is left open
		if err := s.fromServer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"%d","result":{"isError":%t}}`, id, id == 1)); err != nil {
			t.Fatal(err)
		}
	}
	s.end(t.Context())
	slices.Sort(service.complete)
	if want := []string{"chain-1", "chain-2", "chain-3"}; !slices.Equal(service.complete, want) {
		t.Errorf("completed are %v", service.complete)
	}
	if metadata := service.opened[2]["metadata"].(map[string]any); metadata["predecessor_chain_id"] != "chain-2" {
		t.Errorf("the third chain has the metadata %v", metadata)
	}
	slices.Sort(service.outcomes)
	if want := []string{"failed", "succeeded", "succeeded", "succeeded", "succeeded", "unknown"}; !slices.Equal(service.outcomes, want) {
		t.Errorf("the outcomes are %v", service.outcomes)
	}
}

// A chain that somebody else has completed is replaced once for a call, not for ever.
func TestChainsThatAreSealed(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) {
		return map[string]any{"status": http.StatusConflict, "code": "chain_sealed", "detail": "the chain is sealed"}, 0
	}}
	s := newTestSession(t, service)
	s.send(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}`)
	if got := s.client.all(); len(got) != 1 || !strings.Contains(got[0], "the chain is sealed") || len(service.opened) != 2 {
		t.Errorf("the client got %q, and %d chains were opened", got, len(service.opened))
	}
}

// A service that does not say its limits, such as one of an earlier version, has the usual ones.
func TestChainsWithoutKnownLimits(t *testing.T) {
	t.Parallel()
	service := &fakeService{most: -1, decide: func(int, string) (map[string]any, time.Duration) { return allow(1), 0 }}
	s := newTestSession(t, service)
	for id := range 3 {
		s.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"pay"}}`, id))
	}
	if got := s.server.all(); len(got) != 3 || len(service.opened) != 1 {
		t.Errorf("the server got %q, in %d chains", got, len(service.opened))
	}
}

// An outcome says how a call ended, and nothing of what the server has said.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]outcome{
		`{"result":{"content":[]}}`:                                 {"succeeded", ""},
		`{"result":{"isError":true,"content":[{"text":"secret"}]}}`: {"failed", "the tool reported an error"},
		`{"error":{"code":-32000,"message":"secret"}}`:              {"failed", "the server answered with the error -32000"},
		`{"result":{"task":{"taskId":"secret"}}}`:                   {"unknown", "the server carries it out as a task"},
		`{"result":{"resultType":"input_required"}}`:                {"unknown", "the tool asked the client for input"},
		`{"result":"secret"}`:                                       {"unknown", "the server's answer cannot be read"},
	} {
		r, _ := responseOf([]byte(text))
		if got := r.outcome(); got != want {
			t.Errorf("%s is %+v", text, got)
		}
	}
}

// What a client answers to the questions of a tool is decided on like an argument.
func TestAnswersToAToolAreDecided(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]string{
		`{"name":"pay","arguments":{"to":"a"},"requestState":"s"}`:            `{"to":"a"}`,
		`{"name":"pay","arguments":{"to":"a"},"inputResponses":null}`:         `{"to":"a"}`,
		`{"name":"pay","arguments":{"to":"a"},"inputResponses":{"sum":5}}`:    `{"inputResponses":{"sum":5},"to":"a"}`,
		`{"name":"pay","inputResponses":{"sum":5}}`:                           `{"inputResponses":{"sum":5}}`,
		`{"name":"pay","arguments":{"inputResponses":1}}`:                     `{"inputResponses":1}`,
		`{"name":"pay","arguments":{"inputResponses":1},"inputResponses":{}}`: "",
		`{"name":"pay","arguments":{"to":"a"},"InputResponses":{"sum":5}}`:    "",
		`{"name":"pay","arguments":[1],"inputResponses":{"sum":5}}`:           "",
	} {
		m, err := parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		call, err := toolCallOf(m)
		if err == nil {
			got = string(call.payload.Bytes())
		}
		if got != want {
			t.Errorf("%s is decided by %q, error %v, want %q", params, got, err, want)
		}
	}
}

// A request whose id is that of an open one is refused, and so is a call too many.
func TestCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) { return allow(1), 0 }}
	s := newTestSession(t, service)
	s.slots = make(chan struct{}, 1)
	const call = `{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"pay"}}`
	s.send(t, fmt.Sprintf(call, `1`), fmt.Sprintf(call, `2`))
	if got := s.client.all(); len(got) != 1 || !strings.Contains(got[0], "1 calls are under way already") {
		t.Errorf("the client got %q", got)
	}
	s.slots = make(chan struct{}, 2)
	s.slots <- struct{}{}
	s.send(t, fmt.Sprintf(call, `1.0`))
	if got := s.client.all(); len(got) != 2 || !strings.Contains(got[1], "is not answered yet") {
		t.Errorf("the client got %q", got)
	}
}

// A server need not answer a call that was cancelled. Such a call does not take the place of another one
// for ever, and an answer that comes nevertheless says how it ended.
//
//countersign:race
func TestCallsThatAreCancelledOnTheServer(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(int, string) (map[string]any, time.Duration) { return allow(1), 0 }}
	s := newTestSession(t, service)
	s.slots = make(chan struct{}, 1)
	const call = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"pay"}}`
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`
	s.expiry = time.Hour
	s.send(t, fmt.Sprintf(call, 1))
	s.send(t, fmt.Sprintf(cancel, 1))
	if err := s.fromServer([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)); err != nil {
		t.Fatal(err)
	}
	s.expiry = time.Millisecond
	s.send(t, fmt.Sprintf(call, 2))
	s.send(t, fmt.Sprintf(cancel, 2), fmt.Sprintf(cancel, 2))
	s.slots <- struct{}{} // waits until there is room
	<-s.slots
	s.send(t, fmt.Sprintf(call, 3))
	s.end(t.Context())
	if got := strings.Count(strings.Join(s.server.all(), ""), "cancelled"); got != 3 {
		t.Errorf("the server heard of %d cancellations", got)
	}
	slices.Sort(service.outcomes)
	if want := []string{"succeeded", "unknown", "unknown"}; !slices.Equal(service.outcomes, want) {
		t.Errorf("the outcomes are %v", service.outcomes)
	}
}

// The names of the parties are bounded and fit on a line, whatever they are.
func TestNamesOfParties(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"claude": "claude", "a\nb\u202e": "ab", strings.Repeat("ä", 300): strings.Repeat("ä", maxLabel), "\xff": "\uFFFD",
	} {
		if got := label(text); got != want {
			t.Errorf("%q becomes %q", text, got)
		}
	}
	var p parties
	for _, text := range []string{
		`{"method":"ping"}`,
		`{"method":"x","params":{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"new","version":"3"}}}}`,
		`{"method":"initialize","params":{"clientInfo":{"name":"later"}}}`,
	} {
		m, err := parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		p.noteClient(m)
	}
	if client, _ := p.names(); client != (party{"new", "3"}) {
		t.Errorf("the client is %+v", client)
	}
}

// Lines are read whole, empty ones are passed over, and one that is too long ends the reading.
func TestReadLines(t *testing.T) {
	t.Parallel()
	var got []string
	collect := func(text []byte) error {
		got = append(got, string(text))
		return nil
	}
	long := strings.Repeat("x", 200<<10)
	if err := readLines(strings.NewReader("a\r\n\n  \n"+long+"\nlast"), collect); err != nil || !slices.Equal(got, []string{"a", long, "last"}) {
		t.Errorf("read %d lines (%v)", len(got), err)
	}
	if err := readLines(io.LimitReader(zeros{}, maxLine+1), collect); err != errLongLine {
		t.Errorf("a long line is %v", err)
	}
}

// zeros is a text without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}
