package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"countersign/internal/canon"
	"countersign/internal/cli"
)

const (
	maxBody  = 16 << 20 // bytes of a request
	bodyTime = 30 * time.Second
	// sessionTime is how long a session may be unused before its chain is completed.
	sessionTime = time.Hour
	maxSessions = 1000

	headerSession = "Mcp-Session-Id"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
	headerParam   = "Mcp-Param-" // followed by a name that the server has given to an argument
)

// httpGateway stands in front of an MCP server that is reached over streamable HTTP.
type httpGateway struct {
	newSession func() *session
	upstream   *url.URL
	transport  *http.Transport // to the upstream server
	log        func(format string, args ...any)

	mu       sync.Mutex
	sessions map[string]*httpSession // by their ids; "" is that of clients without one
	ending   sync.WaitGroup          // sessions that end
}

// httpSession is a session of a client, which its server knows by an id.
type httpSession struct {
	*session
	// Guarded by the mu of the gateway:
	requests int       // that are under way
	used     time.Time // by the last of the others
}

// ServeHTTP passes a request on, unless it is a tool call that may not be carried out.
func (g *httpGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !isLoopback(r.Host):
		// The browser of this machine may have been led here under another name.
		http.Error(w, "the gateway does not go by this name", http.StatusForbidden)
	case isForeign(r.Header):
		http.Error(w, "the gateway is not for pages of other sites", http.StatusForbidden)
	case r.URL.Path != g.upstream.Path:
		http.NotFound(w, r)
	case len(r.Header.Values(headerSession)) > 1:
		// The server could take the other one.
		http.Error(w, "the request names two sessions", http.StatusBadRequest)
	case r.Method == http.MethodPost:
		g.post(w, r)
	case r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodDelete):
		// While nobody reads it, nobody would notice that the client is gone.
		http.Error(w, "the request must not have a body", http.StatusBadRequest)
	case r.Method == http.MethodGet, r.Method == http.MethodDelete:
		s := g.enter(r)
		defer g.leave(s)
		status := g.pass(w, r, s, nil)
		if gone := status/100 == 2 || status == http.StatusNotFound; gone && r.Method == http.MethodDelete && !s.shared {
			g.end(r.Context(), func(other *httpSession) bool { return other == s })
		}
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "the method is not supported", http.StatusMethodNotAllowed)
	}
}

// isLoopback reports whether the host of a request names this machine and no other.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

// isForeign reports whether a browser made a request for a page that is not of this machine. Such a page
// can send no messages, but it could open streams and, if the server lets it, read them.
func isForeign(header http.Header) bool {
	for _, origin := range header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || !isLoopback(u.Host) {
			return true
		}
	}
	return header.Get("Sec-Fetch-Site") == "cross-site"
}

// post handles a message of a client.
func (g *httpGateway) post(w http.ResponseWriter, r *http.Request) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" || r.Header.Get("Content-Encoding") != "" {
		http.Error(w, "the message must be sent as application/json, not compressed", http.StatusUnsupportedMediaType)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // a test's response may have none
	body, err := cli.ReadBounded(r.Body, maxBody)
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		http.Error(w, fmt.Sprintf("the message could not be read: %v", err), http.StatusRequestEntityTooLarge)
		return
	}
	m, err := parse(body)
	if err == nil {
		err = checkHeaders(r.Header, m)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, errorMessage(requestID(body), err))
		return
	}
	s := g.enter(r)
	defer g.leave(s)
	if !s.shared {
		s.parties.noteClient(m)
	}
	switch {
	case m.method == methodCallTool:
		g.call(w, r, s, m)
	case m.method == methodCancelled && s.cancelCall(cancelledID(m)) && !s.shared:
		w.WriteHeader(http.StatusAccepted) // the server has not heard of the call
	default:
		g.pass(w, r, s, m)
	}
}

// checkHeaders fails if the headers that repeat parts of a message say something else. A server may
// believe either. Which argument a header repeats is for the server to say, so it must be one of them.
func checkHeaders(header http.Header, m *message) error {
	for key, values := range header {
		for _, value := range values {
			if !repeats(m, key, value) {
				return refuse(codeInvalidRequest, "the header %s is not that of the message", key)
			}
		}
	}
	return nil
}

// repeats reports whether the value of a header is that of the message, if it ought to be.
func repeats(m *message, key, value string) bool {
	switch {
	case key == headerMethod:
		return value == m.method
	case m.method != methodCallTool:
		return true
	case key == headerName:
		name, _ := m.value.At("/params/name")
		return decodeHeader(value) == name.Str()
	case strings.HasPrefix(key, headerParam):
		arguments, _ := m.value.At("/params/arguments")
		return contains(arguments, decodeHeader(value))
	}
	return true
}

// decodeHeader returns the text of a header that repeats a part of a message. What a header cannot have is
// in Base64, with a mark before and after it.
func decodeHeader(value string) string {
	inner, marked := strings.CutPrefix(value, "=?base64?")
	inner, ended := strings.CutSuffix(inner, "?=")
	if !marked || !ended {
		return value
	}
	text, err := base64.StdEncoding.DecodeString(inner)
	if err != nil {
		return value // which no server may accept
	}
	return string(text)
}

// contains reports whether a value has a member, at any depth, that is written like text in a header.
func contains(value canon.Value, text string) bool {
	switch value.Kind() {
	case canon.String:
		return value.Str() == text
	case canon.Number:
		number, err := canon.Parse([]byte(text))
		return err == nil && number.Kind() == canon.Number && number.Float() == value.Float()
	case canon.Bool:
		return strconv.FormatBool(value.Bool()) == text
	case canon.Object:
		return slices.ContainsFunc(value.Members(), func(member canon.Member) bool { return contains(member.Value, text) })
	}
	return false
}

// pass passes a request and its answer on, and returns the status of that. m is nil for a request without
// a message.
func (g *httpGateway) pass(w http.ResponseWriter, r *http.Request, s *httpSession, m *message) (status int) {
	var body io.Reader
	var length int64
	if m != nil {
		if m.method == methodCallTool {
			http.Error(w, "a tool call needs a permit", http.StatusInternalServerError)
			return http.StatusInternalServerError
		}
		body, length = bytes.NewReader(m.text), int64(len(m.text))
	}
	response, err := g.forward(r, body, length)
	if err != nil {
		g.log("the MCP server does not answer: %v", cli.WithoutURL(err))
		http.Error(w, "the MCP server does not answer", http.StatusBadGateway)
		return http.StatusBadGateway
	}
	defer response.Body.Close()
	if m == nil {
		relay(w, response, s.observe)
		return response.StatusCode
	}
	if id := response.Header.Get(headerSession); m.method == methodInitialize && id != "" {
		s = g.adopt(r.Context(), id)
		s.parties.noteClient(m)
	}
	// What is answered here is not a call, even if it has the id of one.
	relay(w, response, func(text []byte) {
		if r, id := responseOf(text); id != "" {
			s.parties.noteServer(&r)
		}
	})
	return response.StatusCode
}

// forward sends a request to the server.
func (g *httpGateway) forward(r *http.Request, body io.Reader, length int64) (*http.Response, error) {
	target := *g.upstream
	target.RawQuery = r.URL.RawQuery
	request, err := http.NewRequestWithContext(r.Context(), r.Method, target.String(), body)
	if err != nil {
		return nil, err
	}
	request.Header = passedOn(r.Header)
	// The gateway must read the answer: the transport decompresses what it has asked for itself.
	request.Header.Del("Accept-Encoding")
	if body != nil {
		// The server must read the message as the gateway has read it, not in UTF-7 or decompressed.
		request.Header.Set("Content-Type", "application/json")
		request.Header.Del("Content-Encoding")
	}
	request.ContentLength = length
	request.GetBody = nil // a call is not repeated
	response, err := g.transport.RoundTrip(request)
	if err == nil && response.StatusCode/100 == 3 && response.StatusCode != http.StatusNotModified {
		// A client that follows would pass by the gateway.
		err = errors.Join(fmt.Errorf("it redirects to %q: name that address with --upstream", redirection(response)), response.Body.Close())
	}
	return response, err
}

// redirection is the address to which an answer redirects, without the query: a token may be in it.
func redirection(response *http.Response) string {
	location, err := response.Location()
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: location.Scheme, Host: location.Host, Path: location.Path}).String()
}

// hopByHop are the headers that concern one connection only, besides those that Connection names.
var hopByHop = []string{
	"Connection", "Expect", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// passedOn returns the headers that concern the other end.
func passedOn(header http.Header) http.Header {
	header = header.Clone()
	for _, value := range header.Values("Connection") {
		for name := range strings.SplitSeq(value, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		header.Del(name)
	}
	return header
}

// relay passes an answer on as it arrives, and has each message in it observed.
func relay(w http.ResponseWriter, response *http.Response, observe func([]byte)) {
	for name, values := range passedOn(response.Header) {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	copyAnswer(w, response, observe)
}

func copyAnswer(w http.ResponseWriter, response *http.Response, observe func([]byte)) {
	reader := newMessageReader(response.Header.Get("Content-Type"), observe)
	flush := http.NewResponseController(w).Flush
	_ = flush() // a stream may begin with a pause
	buffer := make([]byte, 32<<10)
	for {
		n, err := response.Body.Read(buffer)
		reader.write(buffer[:n])
		if err != nil {
			reader.end() // before the client has it all, and may end the session
		}
		if n > 0 {
			if _, failed := w.Write(buffer[:n]); failed != nil || flush() != nil {
				return // the client is gone
			}
		}
		if err != nil {
			return
		}
	}
}

// call has a tool call decided, and passes it on if it is allowed.
func (g *httpGateway) call(w http.ResponseWriter, r *http.Request, s *httpSession, m *message) {
	c, refusal := s.prepare(r.Context(), m)
	if refusal != nil {
		writeJSON(w, http.StatusOK, refusal)
		return
	}
	s.deciding.Add(1) // the session ends after this, when the outcome is known
	defer s.deciding.Done()
	x := &httpExchange{gateway: g, session: s, w: w, r: r, m: m}
	if s.govern(c, x) {
		x.finish(c)
	} else if !x.answered {
		// A client whose call another message has cancelled may still read.
		_ = x.answer(toolErrorMessage(c.request, fmt.Errorf("the call of %q was cancelled", c.tool)))
	}
}

// httpExchange is the exchange of a call over HTTP.
type httpExchange struct {
	gateway  *httpGateway
	session  *httpSession
	w        http.ResponseWriter
	r        *http.Request
	m        *message
	stream   bool           // the answer has begun, as a stream of events
	answered bool           // by the gateway
	response *http.Response // of the server, unless failed is set
	failed   error
	sent     bool // the server has got something of the call
}

// tell begins a stream of events, because a client that has no answer at all gives up.
func (x *httpExchange) tell(text []byte) error {
	if !strings.Contains(x.r.Header.Get("Accept"), "text/event-stream") {
		return nil
	}
	if !x.stream {
		x.stream = true
		x.w.Header().Set("Content-Type", "text/event-stream")
		x.w.Header().Set("Cache-Control", "no-store")
	}
	event := []byte(": waiting\n\n")
	if text != nil {
		event = eventOf(text)
	}
	_, err := x.w.Write(event)
	return errors.Join(err, http.NewResponseController(x.w).Flush())
}

// eventOf is a message as an event of a stream. Canonical JSON has no line breaks.
func eventOf(text []byte) []byte {
	return append(append([]byte("event: message\ndata: "), text...), "\n\n"...)
}

func (x *httpExchange) answer(text []byte) error {
	x.answered = true
	if x.stream {
		_, err := x.w.Write(eventOf(text))
		return err
	}
	writeJSON(x.w, http.StatusOK, text)
	return nil
}

func (x *httpExchange) send(p *permit, admit func() bool) bool {
	if !admit() {
		return false
	}
	body := &permittedBody{permit: p, text: bytes.NewReader(x.m.text)}
	x.response, x.failed = x.gateway.forward(x.r, body, int64(len(x.m.text))) //nolint:bodyclose // relay closes it
	x.sent = body.begun.Load()
	return !body.late.Load()
}

// permittedBody is a message that can be read while its permit is valid. So it does not reach a server
// to which it takes a second to connect.
type permittedBody struct {
	permit      *permit
	text        *bytes.Reader
	begun, late atomic.Bool
}

var errTooLate = errors.New("the permit is not valid any more")

func (b *permittedBody) Read(buffer []byte) (int, error) {
	if !b.begun.Load() && !b.permit.valid() {
		b.late.Store(true)
		return 0, errTooLate
	}
	b.begun.Store(true)
	return b.text.Read(buffer)
}

// finish passes the server's answer to a call on, and reports the outcome if the answer has none.
func (x *httpExchange) finish(c *governedCall) {
	var result outcome
	switch {
	case x.failed != nil:
		result = x.lost(c)
	case x.response.StatusCode == http.StatusAccepted:
		x.relay(c)
		return // the answer comes in a stream of its own
	default:
		x.relay(c)
		switch status := x.response.StatusCode; {
		case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
			result = outcome{"unknown", fmt.Sprintf("a proxy has answered with the status %d instead of the server", status)}
		case status >= http.StatusBadRequest:
			result = outcome{"failed", fmt.Sprintf("the server answered with the status %d", status)}
		default:
			result = outcome{"unknown", "the connection to the server ended before it did"}
		}
	}
	x.session.settle(c.id, result)
}

// observe reads a message of the server to the client of a call.
func (x *httpExchange) observe(c *governedCall) func([]byte) {
	return func(text []byte) {
		r, id := responseOf(text)
		if id != c.request {
			return
		}
		x.session.parties.noteServer(&r)
		x.session.settle(c.id, r.outcome())
	}
}

// lost answers a call to which the server has not answered.
func (x *httpExchange) lost(c *governedCall) outcome {
	x.gateway.log("the MCP server does not answer the call of %q: %v", c.tool, cli.WithoutURL(x.failed))
	text, result := "was sent to the server, but its answer was lost: it may have been carried out.", outcome{"unknown", "the server's answer was lost"}
	if !x.sent {
		text, result = "was not carried out: the MCP server does not answer.", outcome{"failed", "the server could not be reached"}
	}
	_ = x.answer(toolErrorMessage(c.request, fmt.Errorf("the call of %q %s", c.tool, text)))
	return result
}

// relay passes the server's answer on, in the stream that has begun or as it is.
func (x *httpExchange) relay(c *governedCall) {
	defer x.response.Body.Close()
	kind, _, _ := mime.ParseMediaType(x.response.Header.Get("Content-Type"))
	switch {
	case !x.stream:
		relay(x.w, x.response, x.observe(c))
	case kind == "text/event-stream":
		copyAnswer(x.w, x.response, x.observe(c))
	default:
		text, err := cli.ReadBounded(x.response.Body, maxLine)
		x.observe(c)(text)
		// It may have line breaks, which an event may not.
		var line bytes.Buffer
		if _, id := responseOf(text); err != nil || id != c.request || json.Compact(&line, text) != nil {
			_ = x.answer(errorMessage(c.request, fmt.Errorf("the server answered with the status %d, and not with a message", x.response.StatusCode)))
			return
		}
		_ = x.answer(line.Bytes())
	}
}

// writeJSON answers with a message.
func writeJSON(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// enter returns the session of a request, which must leave it. Clients without one share a session, and so
// do those beyond maxSessions that are all in use.
func (g *httpGateway) enter(r *http.Request) *httpSession {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := r.Header.Get(headerSession)
	if g.sessions[id] == nil && !g.makeRoom(r.Context()) {
		id = ""
	}
	s := g.sessions[id]
	if s == nil {
		s = &httpSession{session: g.newSession()}
		s.shared = id == ""
		g.sessions[id] = s
	}
	s.requests++
	return s
}

func (g *httpGateway) leave(s *httpSession) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.requests--
	s.used = time.Now()
}

// adopt returns the session to which its server has given an id.
func (g *httpGateway) adopt(ctx context.Context, id string) *httpSession {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sessions[id]
	if s == nil {
		s = &httpSession{session: g.newSession(), used: time.Now()}
		if g.makeRoom(ctx) {
			g.sessions[id] = s
		}
	}
	return s
}

// makeRoom reports whether there is room for another session. If need be, the one ends that was not used
// for the longest time. It is called with mu held.
func (g *httpGateway) makeRoom(ctx context.Context) bool {
	if len(g.sessions) < maxSessions {
		return true
	}
	oldest, found := "", false
	for id, s := range g.sessions {
		if s.requests == 0 && (!found || s.used.Before(g.sessions[oldest].used)) {
			oldest, found = id, true
		}
	}
	if found {
		g.remove(ctx, oldest)
	}
	return found
}

// remove ends a session in the background. It is called with mu held.
func (g *httpGateway) remove(ctx context.Context, id string) {
	s := g.sessions[id]
	delete(g.sessions, id)
	g.ending.Go(func() { s.end(ctx) })
}

// end ends sessions in the background: the service may be out of reach.
func (g *httpGateway) end(ctx context.Context, which func(*httpSession) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, s := range g.sessions {
		if which(s) {
			g.remove(ctx, id)
		}
	}
}

// endUnused ends the sessions that were not used since a time.
func (g *httpGateway) endUnused(ctx context.Context, since time.Time) {
	g.end(ctx, func(s *httpSession) bool { return s.requests == 0 && s.used.Before(since) })
}

// endAll ends all sessions, and waits for that.
func (g *httpGateway) endAll(ctx context.Context) {
	g.end(ctx, func(*httpSession) bool { return true })
	g.ending.Wait()
}

// messageReader finds the messages in an answer.
type messageReader struct {
	each   func([]byte)
	stream bool
	text   []byte // of the line or document so far
	data   []byte // of the event so far
	over   bool   // it was too long to be read
}

func newMessageReader(contentType string, each func([]byte)) *messageReader {
	kind, _, _ := mime.ParseMediaType(contentType)
	return &messageReader{each: each, stream: kind == "text/event-stream"}
}

func (r *messageReader) write(part []byte) {
	if r.over = r.over || len(r.text)+len(r.data)+len(part) > maxLine; r.over {
		r.text, r.data = nil, nil
		return
	}
	for r.stream {
		line, rest, found := bytes.Cut(part, []byte("\n"))
		if !found {
			break
		}
		r.line(bytes.TrimSuffix(append(r.text, line...), []byte("\r")))
		r.text, part = nil, rest
	}
	r.text = append(r.text, part...)
}

// line reads a line of a stream of events.
func (r *messageReader) line(line []byte) {
	if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		r.data = append(append(r.data, bytes.TrimPrefix(value, []byte(" "))...), '\n')
	} else if len(line) == 0 && len(r.data) > 0 {
		r.each(r.data)
		r.data = nil
	}
}

func (r *messageReader) end() {
	if !r.stream && !r.over {
		r.each(r.text)
	}
}
