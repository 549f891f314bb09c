package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
)

// withArguments is a call whose tool and arguments headers can repeat.
const withArguments = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"größe","arguments":{"region":"us","count":42,"dry":true,"deep":{"text":"ä"}}}}`

const aCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"progressToken":"p"}}}`

// upstream is an MCP server that keeps what it gets.
type upstream struct {
	mu     sync.Mutex
	bodies []string
	header http.Header // of the last request
	answer func(w http.ResponseWriter)
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the message is not complete
	}
	u.mu.Lock()
	u.bodies, u.header = append(u.bodies, string(body)), r.Header
	u.mu.Unlock()
	if u.answer != nil {
		u.answer(w)
	}
}

func (u *upstream) got() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.bodies)
}

// newTestHTTP returns a gateway in front of an upstream server, and its address.
func newTestHTTP(t *testing.T, service *fakeService, server http.Handler) (*httpGateway, string) {
	t.Helper()
	service.most = 100000
	decisions, web := httptest.NewServer(service), httptest.NewServer(server)
	t.Cleanup(decisions.Close)
	t.Cleanup(web.Close)
	target, err := url.Parse(web.URL + "/mcp")
	if err != nil {
		t.Fatal(err)
	}
	command := &Command{}
	g := newHTTPGateway(target, func() *session {
		s := command.newSession(cli.NewClient(decisions.URL, ledger.Secret{}), t.Logf, new(atomic.Int64))
		s.governor.clock = service.clock
		s.reporting = context.WithoutCancel(t.Context())
		return s
	}, t.Logf)
	t.Cleanup(func() { g.endAll(t.Context()) }) // what it does in the background must not outlast the test
	front := httptest.NewServer(g)
	t.Cleanup(front.Close)
	return g, front.URL + "/mcp"
}

// posted is the answer to a message.
type posted struct {
	status int
	header http.Header
	text   string
}

// post sends a message as clients do.
func post(t *testing.T, address, body string, change func(*http.Request)) posted {
	t.Helper()
	return request(t, http.MethodPost, address, body, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if change != nil {
			change(r)
		}
	})
}

func request(t *testing.T, method, address, body string, change func(*http.Request)) posted {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(request)
	}
	response, err := servicetest.Client.Transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return posted{response.StatusCode, response.Header, string(text)}
}

func deny(int, string) (map[string]any, time.Duration) {
	return map[string]any{"policy_decision": "deny", "decision_reason": "no"}, 0
}

func allowAll(int, string) (map[string]any, time.Duration) { return allow(1), 0 }

// Over HTTP, too, no text in which some parser could find a tool call reaches the server undecided.
func TestNoUndecidedCallReachesTheServerOverHTTP(t *testing.T) {
	t.Parallel()
	server, service := &upstream{}, &fakeService{decide: deny}
	_, address := newTestHTTP(t, service, server)
	texts := ambiguousMessages()
	for i := 0; i < len(texts); i += 7 { // those over lines are all sent
		post(t, address, texts[i], nil)
	}
	got := server.got()
	for _, text := range got {
		if slices.Contains(looseReadings(text), "tools/call") {
			t.Errorf("the server got %s", text)
		}
	}
	if len(got) < 10 || service.asked < 10 {
		t.Errorf("%d messages were passed on, and %d decided", len(got), service.asked)
	}
}

// What could mean one thing to the gateway and another to the server is refused, and so is a request
// that a page in a browser makes under another name of this machine.
func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	server := &upstream{answer: func(w http.ResponseWriter) {
		http.Redirect(w, new(http.Request), "https://elsewhere.example/mcp", http.StatusTemporaryRedirect)
	}}
	_, address := newTestHTTP(t, &fakeService{decide: allowAll}, server)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, test := range map[string]struct {
		body   string
		change func(*http.Request)
		status int
	}{
		"another host":       {ping, func(r *http.Request) { r.Host = "attacker.example" }, http.StatusForbidden},
		"another page":       {ping, header("Origin", "https://attacker.example"), http.StatusForbidden},
		"a hidden page":      {ping, header("Origin", "null"), http.StatusForbidden},
		"an image of a page": {ping, header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		"two sessions":       {ping, func(r *http.Request) { r.Header[headerSession] = []string{"a", "b"} }, http.StatusBadRequest},
		"another path":       {ping, func(r *http.Request) { r.URL.Path = "/other" }, http.StatusNotFound},
		"a stream with text": {ping, func(r *http.Request) { r.Method = http.MethodGet }, http.StatusBadRequest},
		"a deletion":         {ping, func(r *http.Request) { r.Method, r.ContentLength = http.MethodDelete, -1 }, http.StatusBadRequest},
		"another method":     {ping, func(r *http.Request) { r.Method = http.MethodPut }, http.StatusMethodNotAllowed},
		"a form":             {ping, header("Content-Type", "text/plain"), http.StatusUnsupportedMediaType},
		"compressed":         {ping, header("Content-Encoding", "gzip"), http.StatusUnsupportedMediaType},
		"too long":           {strings.Repeat(" ", maxBody+1), nil, http.StatusRequestEntityTooLarge},
		"a batch":            {"[" + ping + "]", nil, http.StatusBadRequest},
		"no JSON":            {"ping", nil, http.StatusBadRequest},
		"a call in a header": {ping, header(headerMethod, "tools/call"), http.StatusBadRequest},
		"a tool in a header": {aCall, header(headerName, "other"), http.StatusBadRequest},
		"another argument":   {withArguments, header(headerParam+"Region", "other"), http.StatusBadRequest},
		"two arguments":      {withArguments, func(r *http.Request) { r.Header[headerParam+"Region"] = []string{"us", "other"} }, http.StatusBadRequest},
		"no number":          {withArguments, header(headerParam+"Count", "0x2a"), http.StatusBadRequest},
		"a mark in a header": {withArguments, header(headerParam+"Region", "=?base64?b3RoZXI=?="), http.StatusBadRequest},
		"no Base64":          {withArguments, header(headerParam+"Region", "=?base64?us?="), http.StatusBadRequest},
		"a redirect":         {ping, nil, http.StatusBadGateway},
	} {
		if got := post(t, address, test.body, test.change); got.status != test.status || got.header.Get("Location") != "" {
			t.Errorf("%s is answered %+v", name, got)
		}
	}
	if got := server.got(); !slices.Equal(got, []string{ping}) {
		t.Errorf("the server got %q", got)
	}
}

// Headers reach the server, except those that are about the client's connection. The gateway has answered
// the client's question whether to send the message: asking the server again takes the time of a permit.
func TestHeadersThatReachTheServer(t *testing.T) {
	t.Parallel()
	server := &upstream{}
	_, address := newTestHTTP(t, &fakeService{decide: allowAll}, server)
	kept := map[string]string{
		"Authorization": "Bearer token", "Cookie": "a=b", "Mcp-Protocol-Version": "2025-06-18", headerSession: "named", "Last-Event-Id": "7", "X-Other": "1",
	}
	dropped := map[string]string{
		"Connection": "close, X-Mine", "X-Mine": "1", "Keep-Alive": "1", "Te": "trailers", "Upgrade": "h2c", "Proxy-Authorization": "Basic x", "Expect": "100-continue",
	}
	post(t, address, aCall, func(r *http.Request) {
		for name, value := range kept {
			r.Header.Set(name, value)
		}
		for name, value := range dropped {
			r.Header.Set(name, value)
		}
	})
	for name, value := range kept {
		if server.header.Get(name) != value {
			t.Errorf("%s is %q", name, server.header.Get(name))
		}
	}
	for name := range dropped {
		if server.header.Get(name) != "" {
			t.Errorf("%s is %q", name, server.header.Get(name))
		}
	}
}

// A call may repeat its tool and its arguments in headers, as the protocol of 2026-07-28 wants it.
func TestHeadersThatRepeatTheCall(t *testing.T) {
	t.Parallel()
	server := &upstream{}
	_, address := newTestHTTP(t, &fakeService{decide: allowAll}, server)
	said := map[string]string{
		headerMethod: "tools/call", headerName: "=?base64?Z3LDtsOfZQ==?=", headerParam + "Region": "us", headerParam + "Count": "42.0",
		headerParam + "Dry": "true", headerParam + "Text": "=?base64?w6Q=?=",
	}
	got := post(t, address, withArguments, func(r *http.Request) {
		for name, value := range said {
			r.Header.Set(name, value)
		}
	})
	if got.status != http.StatusOK || !slices.Equal(server.got(), []string{withArguments}) {
		t.Fatalf("the call is answered %+v, and the server got %q", got, server.got())
	}
	for name, value := range said {
		if server.header.Get(name) != value {
			t.Errorf("%s is %q", name, server.header.Get(name))
		}
	}
}

// A server reads a message as the gateway has read it, whatever its client says about the text: in UTF-7,
// for one, this ping is a tool call. Express reads it so.
func TestMessagesHaveOneReading(t *testing.T) {
	t.Parallel()
	server := &upstream{}
	_, address := newTestHTTP(t, &fakeService{decide: deny}, server)
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"+ACIAfQAs-+ACI-method+ACI-:+ACI-tools/call+ACI-"}}`
	post(t, address, ping, func(r *http.Request) {
		r.Header["Content-Type"] = []string{"application/json; charset=utf-7", "application/json; charset=utf-16"}
		r.Header["Content-Encoding"] = []string{"", "deflate"}
	})
	if got := server.header; !slices.Equal(got["Content-Type"], []string{"application/json"}) || got["Content-Encoding"] != nil {
		t.Errorf("the server got %v", got)
	}
}

// A call does not reach a server to which it takes longer to connect than its permit is valid.
func TestServerThatIsReachedTooLate(t *testing.T) {
	t.Parallel()
	server, service := &upstream{}, &fakeService{decide: allowAll}
	g, address := newTestHTTP(t, service, server)
	g.transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		service.delay.Add(int64(leaseTime))
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	if got := post(t, address, aCall, nil); !strings.Contains(got.text, "the MCP server takes too long to accept it") {
		t.Errorf("the call is answered %s", got.text)
	}
	if got := server.got(); len(got) != 0 || service.asked != maxLateAnswers {
		t.Errorf("the server got %q, and the service was asked %d times", got, service.asked)
	}
}

// The answers of the server reach the client as they are, and their outcomes the service, whether they
// come alone, in a stream, in a later stream or not at all.
func TestAnswersOverHTTP(t *testing.T) {
	t.Parallel()
	write := func(kind string, status int, text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			fmt.Fprint(w, text)
		}
	}
	for name, test := range map[string]struct {
		answer   func(http.ResponseWriter)
		says     string
		outcomes []string
	}{
		"alone":              {write("application/json", 200, `{"jsonrpc":"2.0","id":1,"result":{"big":12345678901234567890}}`), `{"jsonrpc":"2.0","id":1,"result":{"big":12345678901234567890}}`, []string{"succeeded"}},
		"an error":           {write("application/json", 200, `{"id":1,"error":{"code":-1}}`), `"code":-1`, []string{"failed"}},
		"in a stream":        {write("text/event-stream; charset=utf-8", 200, "id: 1\r\ndata: {\"method\":\"x\"}\r\n\r\ndata: {\"id\":1,\ndata: \"result\":{\"isError\":true}}\n\n"), `"isError":true`, []string{"failed"}},
		"a stream that ends": {write("text/event-stream", 200, "data: {\"method\":\"x\"}\n\n"), "data", []string{"unknown"}},
		"no message":         {write("text/plain", 500, "broken"), "broken", []string{"failed"}},
		"a proxy's answer":   {write("text/html", 504, "timeout"), "timeout", []string{"unknown"}},
		"later":              {write("application/json", 202, ""), "", nil},
		"lost":               {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "it may have been carried out", []string{"unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &fakeService{decide: allowAll}
			g, address := newTestHTTP(t, service, &upstream{answer: test.answer})
			named := func(r *http.Request) { r.Header.Set(headerSession, "named") }
			if got := post(t, address, aCall, named); !strings.Contains(got.text, test.says) {
				t.Errorf("the call is answered %s", got.text)
			}
			if test.outcomes == nil { // the answer is in another stream
				g.sessions["named"].observe([]byte(`{"id":1,"result":{}}`))
				test.outcomes = []string{"succeeded"}
			}
			g.endAll(t.Context())
			if !slices.Equal(service.outcomes, test.outcomes) || len(service.complete) != 1 {
				t.Errorf("the outcomes are %v, and completed are %v", service.outcomes, service.complete)
			}
		})
	}
}

// The outcome of a call is that of its own answer: clients without a session may use the same ids at the
// same time, and so may other requests of a client.
//
//countersign:race
func TestCallsWithTheSameID(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 4), make(chan struct{})
	service := &fakeService{decide: allowAll}
	g, address := newTestHTTP(t, service, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(string(body), "tools/call") {
			arrived <- struct{}{}
			<-release
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`)
			return
		}
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}))
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			defer func() { arrived <- struct{}{} }() // also if the call does not arrive
			if got := post(t, address, aCall, nil); !strings.Contains(got.text, "isError") {
				t.Errorf("a call is answered %s", got.text)
			}
		})
		<-arrived
	}
	post(t, address, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, nil)
	close(release)
	calls.Wait()
	g.endAll(t.Context())
	if want := []string{"failed", "failed"}; !slices.Equal(service.outcomes, want) {
		t.Errorf("the outcomes are %v", service.outcomes)
	}
}

// observingWriter is a client that looks whether its answer was observed as soon as it has it.
type observingWriter struct {
	http.ResponseWriter
	observed, known bool
}

func (w *observingWriter) Write(b []byte) (int, error) {
	w.known = w.observed
	return len(b), nil
}

func (*observingWriter) FlushError() error { return nil }

// An answer is observed before the client has all of it, and may end the session.
func TestAnswersAreObservedFirst(t *testing.T) {
	t.Parallel()
	for kind, text := range map[string]string{"application/json": `{"id":1}`, "text/event-stream": "data: {}\n\n"} {
		web := httptest.NewServer(&upstream{answer: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", kind)
			fmt.Fprint(w, text)
		}})
		t.Cleanup(web.Close)
		response, err := web.Client().Get(web.URL)
		if err != nil {
			t.Fatal(err)
		}
		w := &observingWriter{ResponseWriter: httptest.NewRecorder()}
		copyAnswer(w, response, func([]byte) { w.observed = true })
		_ = response.Body.Close()
		if !w.known {
			t.Errorf("as %s, it is observed afterwards", kind)
		}
	}
}

// While a call waits for a person, the client gets a stream of events. The server's answer is its last.
func TestWaitOverHTTP(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter)
		last   string
	}{
		"a message":      {func(w http.ResponseWriter) { fmt.Fprint(w, "{\n\"id\":1,\"result\":{}}") }, `{"id":1,"result":{}}`},
		"a large number": {func(w http.ResponseWriter) { fmt.Fprint(w, `{"id":1, "result":{"n":12345678901234567890}}`) }, `{"id":1,"result":{"n":12345678901234567890}}`},
		"a stream": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"id\":1,\"result\":{}}\n\n")
		}, `{"id":1,"result":{}}`},
		"no answer to the call": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_token"}`)
		}, `{"error":{"code":-32603,"message":"the server answered with the status 401, and not with a message"},"id":1,"jsonrpc":"2.0"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &fakeService{decide: func(n int, _ string) (map[string]any, time.Duration) {
				if n == 1 {
					return map[string]any{"policy_decision": "require_approval", "approval_id": "approval-1"}, 0
				}
				return allow(1), 0
			}}
			_, address := newTestHTTP(t, service, &upstream{answer: test.answer})
			got := post(t, address, aCall, nil)
			events := strings.Split(strings.TrimSuffix(got.text, "\n\n"), "\n\n")
			if got.header.Get("Content-Type") != "text/event-stream" || len(events) != 2 || !strings.Contains(events[0], "notifications/progress") || !strings.HasSuffix(events[1], "data: "+test.last) {
				t.Errorf("the call is answered %q", got.text)
			}
		})
	}
}

// A call may wait more than once: here, its chain is completed by somebody else while it waits. The client is
// told of one wait after the other, and then has the server's answer.
//
//countersign:race
func TestCallThatWaitsTwice(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: func(n int, _ string) (map[string]any, time.Duration) {
		switch n {
		case 1, 3:
			return map[string]any{"policy_decision": "require_approval", "approval_id": fmt.Sprint("approval-", n)}, 0
		case 2:
			return map[string]any{"status": http.StatusConflict, "code": fault.CodeChainSealed}, 0
		}
		return allow(1), 0
	}}
	_, address := newTestHTTP(t, service, &upstream{answer: func(w http.ResponseWriter) { fmt.Fprint(w, `{"id":1,"result":{}}`) }})
	got := post(t, address, aCall, nil)
	events := strings.Split(strings.TrimSuffix(got.text, "\n\n"), "\n\n")
	if len(events) != 3 || !strings.Contains(events[0], "approval-1") || !strings.Contains(events[1], "approval-3") || !strings.Contains(events[2], "result") {
		t.Errorf("the call is answered %q", got.text)
	}
}

// Sessions that were not used for a while end, and those that the server names have their own chains.
func TestSessionsOverHTTP(t *testing.T) {
	t.Parallel()
	server := &upstream{answer: func(w http.ResponseWriter) {
		w.Header().Set(headerSession, "named")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"serverInfo":{"name":"tools"}}}`)
	}}
	service := &fakeService{decide: allowAll}
	g, address := newTestHTTP(t, service, server)
	post(t, address, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"desk"}}}`, nil)
	named := func(r *http.Request) { r.Header.Set(headerSession, "named") }
	post(t, address, aCall, named)
	post(t, address, aCall, nil)
	if len(service.opened) != 2 || service.opened[0]["name"] != "tools" || service.opened[0]["metadata"].(map[string]any)["mcp_client"] != "desk" {
		t.Errorf("the chains are %v", service.opened)
	}
	g.endUnused(t.Context(), time.Now().Add(-time.Minute))
	if len(service.complete) != 0 {
		t.Errorf("completed are %v", service.complete)
	}
	request(t, http.MethodDelete, address, "", named)
	g.endUnused(t.Context(), time.Now().Add(time.Minute))
	servicetest.Eventually(t, "both chains are completed", func() bool {
		service.mu.Lock()
		defer service.mu.Unlock()
		slices.Sort(service.complete)
		return slices.Equal(service.complete, []string{"chain-1", "chain-2"})
	})
}

// approve is the decision that a person must approve a call.
func approve(int, string) (map[string]any, time.Duration) {
	return map[string]any{"policy_decision": "require_approval", "approval_id": "approval-1"}, 0
}

// A client that deletes its session gives up the calls that wait in it. A session goes on if the server
// does not delete it, and nobody can delete that of the clients without one.
//
//countersign:race
func TestDeletedSessions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		session string
		status  int
		ends    bool
	}{
		"deleted":                 {"named", http.StatusOK, true},
		"not known to the server": {"named", http.StatusNotFound, true},
		"not deleted":             {"named", http.StatusMethodNotAllowed, false},
		"no session":              {"", http.StatusOK, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &fakeService{decide: approve, pending: true}
			g, address := newTestHTTP(t, service, &upstream{answer: func(w http.ResponseWriter) { w.WriteHeader(test.status) }})
			header := func(r *http.Request) { r.Header.Set(headerSession, test.session) }
			answered := make(chan posted, 1)
			go func() { answered <- post(t, address, aCall, header) }()
			servicetest.Eventually(t, "the call waits", func() bool {
				service.mu.Lock()
				defer service.mu.Unlock()
				return service.asked == 1
			})
			if got := request(t, http.MethodDelete, address, "", header); got.status != test.status {
				t.Errorf("the request is answered %+v", got)
			}
			if !test.ends {
				g.mu.Lock()
				if g.sessions[test.session] == nil {
					t.Error("the session has ended")
				}
				g.mu.Unlock()
				g.endAll(t.Context())
			}
			if got := <-answered; !strings.Contains(got.text, "was cancelled") {
				t.Errorf("the call is answered %s", got.text)
			}
			g.endAll(t.Context())
			if service.given != 1 || len(service.complete) != 1 {
				t.Errorf("%d approvals were cancelled, and completed are %v", service.given, service.complete)
			}
		})
	}
}

// A call that is carried out while its session is deleted has the outcome that its answer says.
//
//countersign:race
func TestDeletionDuringACall(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	service := &fakeService{decide: allowAll}
	g, address := newTestHTTP(t, service, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			return
		}
		close(arrived)
		<-release
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}))
	named := func(r *http.Request) { r.Header.Set(headerSession, "named") }
	var call sync.WaitGroup
	call.Go(func() { post(t, address, aCall, named) })
	<-arrived
	request(t, http.MethodDelete, address, "", named)
	servicetest.Eventually(t, "the session ends", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.sessions) == 0
	})
	close(release)
	call.Wait()
	g.endAll(t.Context())
	if !slices.Equal(service.outcomes, []string{"succeeded"}) || len(service.complete) != 1 {
		t.Errorf("the outcomes are %v, and completed are %v", service.outcomes, service.complete)
	}
}

// While the service cannot be reached, the gateway goes on although a session cannot end.
//
//countersign:race
func TestSessionsEndInTheBackground(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: allowAll, outage: "/outcome"}
	g, address := newTestHTTP(t, service, &upstream{})
	post(t, address, aCall, nil)
	ended := make(chan struct{})
	go func() {
		g.endUnused(t.Context(), time.Now().Add(time.Minute))
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(callTimeout):
		t.Error("it waits for the service")
	}
	service.mu.Lock()
	service.outage = ""
	service.mu.Unlock()
	g.endAll(t.Context())
	if len(service.outcomes) != 1 || len(service.complete) != 1 {
		t.Errorf("the outcomes are %v, and completed are %v", service.outcomes, service.complete)
	}
}

// A session with a request under way is in use, however long that takes. When there are too many, the
// one that was not used for the longest time ends.
//
//countersign:race
func TestSessionsInUse(t *testing.T) {
	t.Parallel()
	opened, release := make(chan struct{}), make(chan struct{})
	g, address := newTestHTTP(t, &fakeService{decide: allowAll}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			close(opened)
			<-release
		}
	}))
	end := sync.OnceFunc(func() { close(release) })
	defer end() // the server waits for the stream, also if the test fails
	named := func(id string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(headerSession, id) }
	}
	var stream sync.WaitGroup
	stream.Go(func() { request(t, http.MethodGet, address, "", named("stream")) })
	<-opened
	g.endUnused(t.Context(), time.Now().Add(time.Minute))
	for id := range maxSessions {
		post(t, address, `{"jsonrpc":"2.0","method":"ping"}`, named(fmt.Sprint(id)))
	}
	g.mu.Lock()
	if len(g.sessions) != maxSessions || g.sessions["stream"] == nil || g.sessions["0"] != nil || g.sessions["1"] == nil {
		t.Errorf("there are %d sessions", len(g.sessions))
	}
	g.mu.Unlock()
	end()
	stream.Wait()
}

// The gateway ends when it is told to, also if a client neither sends the rest of its message nor leaves.
//
//countersign:race
func TestClientsDoNotKeepTheGateway(t *testing.T) {
	t.Parallel()
	g, _ := newTestHTTP(t, &fakeService{decide: allowAll}, &upstream{})
	listener, err := cli.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.serve(ctx, listener) }()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// The gateway says that the rest may come, so it has begun to read.
	fmt.Fprint(client, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
	if _, err := client.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A redirect is refused with the address that should be named instead. A token in a query is not logged,
// nor is what a server sends instead of an address.
func TestRedirectsAreLoggedWithoutSecrets(t *testing.T) {
	t.Parallel()
	for location, want := range map[string]string{
		"https://elsewhere.example/mcp/?token=hidden": `"https://elsewhere.example/mcp/"`,
		"%zz?token=hidden":                            `""`,
	} {
		g, address := newTestHTTP(t, &fakeService{decide: allowAll}, &upstream{answer: func(w http.ResponseWriter) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusPermanentRedirect)
		}})
		var logged strings.Builder
		g.log = func(format string, args ...any) { fmt.Fprintf(&logged, format, args...) }
		if got := post(t, address+"?token=hidden", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, nil); got.status != http.StatusBadGateway {
			t.Errorf("it is answered %+v", got)
		}
		if text := logged.String(); strings.Contains(text, "hidden") || !strings.Contains(text, "redirects to "+want) {
			t.Errorf("the log says %s", text)
		}
	}
}

// silentExchange is an exchange with a client that is gone.
type silentExchange struct{ exchange }

func (silentExchange) tell([]byte) error { return net.ErrClosed }

// A call whose client cannot be told that it waits is given up: nobody would get its answer.
//
//countersign:race
func TestCallsOfClientsThatAreGone(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: approve, pending: true}
	s := newTestSession(t, service)
	m, err := parse([]byte(aCall))
	if err != nil {
		t.Fatal(err)
	}
	c, refusal := s.prepare(t.Context(), m)
	if refusal != nil {
		t.Fatalf("%s", refusal)
	}
	ended := make(chan bool, 1)
	go func() { ended <- s.govern(c, silentExchange{}) }()
	select {
	case sent := <-ended:
		if sent || service.given != 1 {
			t.Errorf("sent: %t, cancelled: %d", sent, service.given)
		}
	case <-time.After(callTimeout):
		t.Error("the call still waits")
	}
}

// The messages of a stream are found however it is cut into parts, and a long one is not searched again
// with each of them: one of 32 MiB in small parts took minutes.
func TestMessagesInPartsOfAStream(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 32<<20)
	for size, text := range map[int]string{
		1:       "id: 1\r\ndata: a\r\ndata:b\r\n\r\n: c\n\ndata: d\n\n",
		7:       "data: a\ndata: b\n\nevent: x\ndata: d\n\n",
		1 << 20: "data: a\ndata: b\n\ndata: d\n\ndata: e",
		512:     "data: a\ndata: b\n\ndata: d\n\ndata: " + long,
	} {
		var got []string
		reader := newMessageReader("text/event-stream; charset=utf-8", func(text []byte) { got = append(got, string(text)) })
		for part := range slices.Chunk([]byte(text), size) {
			reader.write(part)
		}
		reader.end()
		if !slices.Equal(got, []string{"a\nb\n", "d\n"}) {
			t.Errorf("in parts of %d bytes the messages are %q", size, got)
		}
	}
}

// Clients that share a session are not taken for each other: a call is recorded under the name that comes
// with it. What their server calls itself is known all the same.
func TestNamesInASharedSession(t *testing.T) {
	t.Parallel()
	service := &fakeService{decide: deny}
	_, address := newTestHTTP(t, service, &upstream{answer: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"serverInfo":{"name":"tools"}}}`)
	}})
	post(t, address, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"first"}}}`, nil)
	for _, name := range []string{"", "one", "two"} {
		post(t, address, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"io.modelcontextprotocol/clientInfo":{"name":%q}}}}`, name), nil)
	}
	if want := []any{"mcp-client", "one", "two"}; !slices.Equal(service.agents, want) {
		t.Errorf("the agents are %v", service.agents)
	}
	if fingerprint(&action{Agent: "one", Tool: "pay"}) == fingerprint(&action{Agent: "two", Tool: "pay"}) {
		t.Error("one takes up the call for which another waits")
	}
	if chain := service.opened[0]; chain["name"] != "tools" || chain["metadata"].(map[string]any)["mcp_client"] != nil {
		t.Errorf("the chain is %v", chain)
	}
}

// What is too long to be read is not kept either.
func TestLongAnswersAreNotKept(t *testing.T) {
	t.Parallel()
	reader := newMessageReader("application/json", func([]byte) { t.Error("it is read") })
	part := make([]byte, maxLine/2)
	for range 3 {
		reader.write(part)
	}
	reader.end()
	if reader.text != nil {
		t.Errorf("%d bytes are kept", len(reader.text))
	}
}
