package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/problem"
	"countersign/internal/service"
)

// exchange is one HTTP request and its response. It is used by one goroutine.
type exchange struct {
	api     *API
	w       http.ResponseWriter
	r       *http.Request
	route   *Route
	id      string
	caller  *service.Caller // nil on public routes
	slug    string          // of the caller's organization, set by readSlug
	status  int             // of the response; 0 until it is sent
	held    []*sharedSlots  // the request holds one slot of each
	endRead func()          // releases the slot for reading; nil if the request holds none
}

// Header values that are the same in every response. The header's own methods would
// allocate each of them.
var (
	nosniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

// serve returns the handler of a route. All routes share it.
func (a *API) serve(route Route) http.Handler {
	secret := secretPath(route.Pattern)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		x := &exchange{api: a, w: w, r: r, route: &route, id: a.ids.Next()}
		header := w.Header()
		header["X-Request-Id"] = []string{x.id}
		header["X-Content-Type-Options"] = nosniff
		if secret {
			w.Header().Set("Referrer-Policy", "no-referrer")
			w.Header().Set("X-Robots-Tag", "noindex")
		}
		err := x.attempt()
		broken := errors.Is(err, problem.ErrPanicked) && x.status != 0
		if err != nil && !broken {
			if x.status == 0 {
				problem.Drain(w, r)
			}
			x.problem(err)
		}
		took := time.Since(began)
		if broken { // part of the response was sent: abort, so that it is not taken for complete
			a.observe.Request(route.Pattern, http.StatusInternalServerError, took)
			panic(http.ErrAbortHandler)
		}
		a.observe.Request(route.Pattern, x.status, took)
		if a.log.Enabled(r.Context(), slog.LevelDebug) {
			a.log.LogAttrs(r.Context(), slog.LevelDebug, "request",
				slog.String("request_id", x.id), slog.String("method", r.Method), slog.String("route", route.Pattern),
				slog.Int("status", x.status), slog.Duration("took", took))
		}
	})
}

// attempt handles the request. A panic of the handler is logged with its stack and returned as an
// error, so that the caller gets an answer.
func (x *exchange) attempt() (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			x.api.log.LogAttrs(x.r.Context(), slog.LevelError, "request panicked", slog.String("request_id", x.id),
				slog.String("route", x.route.Pattern), slog.String("stack", string(debug.Stack())))
			err = problem.ErrPanicked
		}
	}()
	return x.handle()
}

func (x *exchange) handle() error {
	if x.route.Limited {
		if wait := x.api.public.take(x.api.address(x.r)); wait > 0 {
			return x.tooMany(wait, "too many requests from this address")
		}
	}
	if x.route.Access != Public {
		if err := x.authenticate(); err != nil {
			return err
		}
	}
	defer x.release()
	// The route on which requests can wait for a decision admits the others itself.
	if x.route.Method == http.MethodGet && x.caller != nil && x.route.Pattern != waitPattern {
		if err := x.admitRead(); err != nil {
			return err
		}
	}
	defer x.releaseRead()
	return x.route.handle(x)
}

// admitRead waits for a slot for a request that only reads.
func (x *exchange) admitRead() (err error) {
	x.endRead, err = x.api.Read(x.r.Context(), x.caller)
	return err
}

// releaseRead releases the slot of admitRead. It may be called more than once.
func (x *exchange) releaseRead() {
	if x.endRead != nil {
		x.endRead()
		x.endRead = nil
	}
}

const (
	maxReads = 5 // concurrent reads by one organization's agents, and as many by its members and admins
	readWait = 10 * time.Second
)

// refusedKeys are the codes of errors that are the credential's fault.
var refusedKeys = []fault.Code{fault.CodeUnauthenticated, fault.CodeMalformedKey, fault.CodeKeyExpired}

func (x *exchange) authenticate() error {
	address := x.api.address(x.r)
	key, ok := bearer(x.r)
	// Failures from the same address must not lock out a valid key. A key that this process has
	// not seen yet is tried, but with a bound on concurrency.
	wait := x.api.failures.wait(address)
	if wait > 0 && !x.api.service.AuthenticatedRecently(key) {
		return x.authenticateThrottled(key, wait)
	}
	if !ok {
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="countersign"`)
		x.api.failures.take(address)
		return fault.Errorf(fault.CodeUnauthenticated, "send an API key: Authorization: Bearer <API_KEY>")
	}
	caller, err := x.api.service.Authenticate(x.r.Context(), key)
	if err != nil {
		if refusedKey(err) {
			x.w.Header().Set("WWW-Authenticate", `Bearer realm="countersign", error="invalid_token"`)
			x.api.failures.take(address)
		}
		return err
	}
	x.caller = caller
	return nil
}

// authenticateThrottled tries a key from an address with too many failed authentications. Only one
// such attempt runs at a time, and a request waits at most a second for its turn.
func (x *exchange) authenticateThrottled(key string, wait time.Duration) error {
	const turnWait = time.Second
	timer := time.NewTimer(turnWait)
	defer timer.Stop()
	refused := func() error { return x.tooMany(wait, "too many failed authentications from this address") }
	if key == "" {
		return refused()
	}
	select {
	case x.api.throttledAuth <- struct{}{}:
	case <-timer.C:
		return refused()
	case <-x.r.Context().Done():
		return refused()
	}
	defer func() { <-x.api.throttledAuth }()
	caller, err := x.api.service.Authenticate(x.r.Context(), key)
	if refusedKey(err) {
		return refused()
	}
	x.caller = caller
	return err
}

// refusedKey reports whether an error is the credential's fault.
func refusedKey(err error) bool {
	var own *fault.Error
	return errors.As(err, &own) && slices.Contains(refusedKeys, own.Code)
}

func bearer(r *http.Request) (string, bool) {
	const scheme = "Bearer "
	header := r.Header.Get("Authorization")
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	return strings.TrimSpace(header[len(scheme):]), true
}

// parsed reads the request's JSON body and converts it with parse. It releases the slots of a large
// body, so parse must not retain the parsed JSON.
func parsed[T any](x *exchange, parse func(canon.Value) (T, error)) (read T, err error) {
	body, err := x.body()
	if err == nil {
		read, err = parse(body)
	}
	x.release()
	return read, err
}

// parsedOptional is parsed for routes whose body is optional.
func parsedOptional[T any](x *exchange, parse func(canon.Value) (T, error)) (read T, err error) {
	body, err := x.optionalObject()
	if err == nil {
		read, err = parse(body)
	}
	x.release()
	return read, err
}

// tenantOf returns whose share of the slots a request uses. Public requests, which have no caller,
// share one.
func tenantOf(caller *service.Caller) ledger.OrgID {
	if caller == nil {
		return ledger.OrgID{}
	}
	return caller.Org
}

// admitLarge waits for a slot for holding or parsing a large body.
func (x *exchange) admitLarge(slots *sharedSlots) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), largeWait)
	defer cancel()
	if !slots.enter(ctx, tenantOf(x.caller)) {
		return fault.Errorf(fault.CodeUnavailable, "too many large requests at once; nothing was stored: try again")
	}
	x.held = append(x.held, slots)
	return nil
}

// release releases the slots of admitLarge. It may be called more than once.
func (x *exchange) release() {
	for _, slots := range x.held {
		slots.leave(tenantOf(x.caller))
	}
	x.held = nil
}

// body reads and parses the request's JSON body. The slots of a large body are held until the
// request is answered or release is called.
func (x *exchange) body() (canon.Value, error) {
	value, given, err := x.optionalBody()
	if err == nil && !given {
		err = fault.Errorf(fault.CodeInvalidJSON, "the request needs a JSON body")
	}
	return value, err
}

// optionalBody is body for routes whose body is optional.
func (x *exchange) optionalBody() (value canon.Value, given bool, err error) {
	if x.r.ContentLength == 0 {
		return canon.Value{}, false, nil
	}
	data, err := x.read(MaxBody)
	if err != nil || len(data) == 0 {
		return canon.Value{}, false, err
	}
	if !isJSON(x.r.Header.Get("Content-Type")) {
		return canon.Value{}, false, fault.Errorf(fault.CodeUnsupportedMedia, "send the body as Content-Type: application/json")
	}
	if len(data) > largeBody {
		if err := x.admitLarge(&x.api.parses); err != nil {
			return canon.Value{}, false, err
		}
	}
	value, err = canon.Parse(data)
	if err != nil {
		return canon.Value{}, false, unreadable(err)
	}
	return value, true, nil
}

// optionalObject is optionalBody for actions that cannot be undone. It refuses null, which is more
// likely a mistake than a way to say that there is no body.
func (x *exchange) optionalObject() (canon.Value, error) {
	value, given, err := x.optionalBody()
	if err == nil && given && value.IsNull() {
		err = fault.Invalid(fault.FieldError{Detail: "must be an object"})
	}
	return value, err
}

const (
	largeBody = 64 << 10 // bytes
	// A large body occupies memory from its first byte on, however slowly the rest arrives. Parsed,
	// it can take a hundred times its size.
	maxBodies, maxBodiesPerOrg = 128, 16
	maxParses                  = 2 // large bodies parsed at a time, at most one per organization
	largeWait                  = 10 * time.Second
)

// read reads the body. It allocates memory for a large body only after admitLarge.
func (x *exchange) read(limit int64) ([]byte, error) {
	length := x.r.ContentLength // -1 if the body is chunked
	if length > limit {
		return nil, tooLarge(limit)
	}
	limited := http.MaxBytesReader(x.w, x.r.Body, limit)
	var data []byte
	var err error
	if length < 0 {
		data, err = io.ReadAll(io.LimitReader(limited, largeBody+1))
	}
	if length > largeBody || len(data) > largeBody {
		if err := x.admitLarge(&x.api.bodies); err != nil {
			return nil, err
		}
	}
	switch {
	case err != nil:
	case length > 0:
		data = make([]byte, length)
		_, err = io.ReadFull(limited, data)
	case len(data) > largeBody:
		var rest []byte
		rest, err = io.ReadAll(limited)
		data = slices.Concat(data, rest)
	}
	var exceeded *http.MaxBytesError
	switch {
	case errors.As(err, &exceeded):
		return nil, tooLarge(limit)
	case err != nil:
		return nil, fault.Errorf(fault.CodeInvalidJSON, "the body ended early or took too long to arrive")
	}
	return data, nil
}

func tooLarge(limit int64) error {
	return fault.Errorf(fault.CodeTooLarge, "the body is larger than %d bytes", limit)
}

func isJSON(contentType string) bool {
	return contentType == "application/json" || mediaType(contentType) == "application/json"
}

// mediaType returns a Content-Type without its parameters. It returns "" if there are parameters
// other than charset=utf-8.
func mediaType(contentType string) string {
	kind, parameters, _ := strings.Cut(contentType, ";")
	parameters = strings.TrimSpace(parameters)
	if parameters != "" && !strings.EqualFold(strings.ReplaceAll(parameters, `"`, ""), "charset=utf-8") {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(kind))
}

func unreadable(err error) error {
	var syntax *canon.Error
	if !errors.As(err, &syntax) {
		return err
	}
	if syntax.WellFormed {
		return fault.Invalid(fault.FieldError{Pointer: syntax.Pointer, Detail: syntax.Reason})
	}
	return &fault.Error{
		Code: fault.CodeInvalidJSON, Message: "the body is not acceptable JSON: " + syntax.Reason,
		Fields: []fault.FieldError{{Pointer: syntax.Pointer, Detail: syntax.Reason}},
	}
}

// answer sends a JSON response. It returns nil, so that handlers can return its result.
func (x *exchange) answer(status int, body []byte) error {
	x.write(status, "application/json", body)
	return nil
}

// noContent answers 204.
func (x *exchange) noContent() {
	x.status = http.StatusNoContent
	x.w.Header().Set("Cache-Control", "no-store")
	x.w.WriteHeader(x.status)
}

func (x *exchange) write(status int, contentType string, body []byte) {
	x.begin(status, contentType, len(body))
	x.send(body)
}

// begin sends the header of a response. length is in bytes, or -1 if it is not known yet. If the
// header was sent before, begin does nothing.
func (x *exchange) begin(status int, contentType string, length int) {
	if x.status != 0 {
		return
	}
	x.status = status
	if length >= 0 {
		// The response is complete, so a slow client must not occupy a read slot. A response of
		// unknown length keeps its slot until it is sent, because the page stays in memory.
		x.releaseRead()
	}
	header := x.w.Header()
	header.Set("Content-Type", contentType)
	if length >= 0 {
		header.Set("Content-Length", itoa(length))
	}
	if header["Cache-Control"] == nil {
		header["Cache-Control"] = noStore
	}
	x.w.WriteHeader(status)
}

func (x *exchange) send(part []byte) {
	if _, err := x.w.Write(part); err != nil {
		x.api.log.Debug("response not delivered", "request_id", x.id)
	}
}
