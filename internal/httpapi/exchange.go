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

// exchange is one request and its answer.
type exchange struct {
	api    *API
	w      http.ResponseWriter
	r      *http.Request
	route  *Route
	id     string
	caller *service.Caller // nil on public routes
	slug   string          // of the caller's organization, once readSlug has read it
	status int
	held   []*sharedSlots // of each of which the request holds one
	reads  *orgSlots      // of which the request holds one; nil for none
}

// serve is the one handler that every route goes through.
func (a *API) serve(route Route) http.Handler {
	secret := secretPath(route.Pattern)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		x := &exchange{api: a, w: w, r: r, route: &route, id: a.ids.Next()}
		w.Header().Set("X-Request-Id", x.id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
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
		if broken { // a part of another answer is on its way: it must not pass for whole
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

// attempt handles the request. A handler that panics has failed as others do: the caller
// is answered, and the log says where.
func (x *exchange) attempt() (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			x.api.log.LogAttrs(x.r.Context(), slog.LevelError, "a request panicked", slog.String("request_id", x.id),
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
	if err := x.admitRead(); err != nil {
		return err
	}
	defer x.wasRead()
	return x.route.handle(x)
}

// admitRead waits until a request that only reads may do so. The connections to the store
// are few, and those who write need them too: an organization's requests leave most of them
// to the others, and its agents' some to its members. Requests that wait for a decision are
// counted elsewhere.
func (x *exchange) admitRead() error {
	if x.route.Method != http.MethodGet || x.caller == nil || x.r.URL.Query().Has("wait") {
		return nil
	}
	slots := &x.api.agents
	if x.caller.Role.Includes(ledger.RoleMember) {
		slots = &x.api.reads
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), readWait)
	defer cancel()
	if !slots.enter(ctx, x.caller.Org) {
		return fault.Errorf(fault.CodeUnavailable, "too many requests of this organization read at once: try again")
	}
	x.reads = slots
	return nil
}

// wasRead lets the organization's next request read. It can be called again.
func (x *exchange) wasRead() {
	if x.reads != nil {
		x.reads.leave(x.caller.Org)
		x.reads = nil
	}
}

const (
	mostReads = 5 // requests of one organization's agents, and of its members, that read at a time
	readWait  = 10 * time.Second
)

// refusedKeys are the faults of a credential.
var refusedKeys = []fault.Code{fault.CodeUnauthenticated, fault.CodeMalformedKey, fault.CodeKeyExpired}

func (x *exchange) authenticate() error {
	address := x.api.address(x.r)
	key, ok := bearer(x.r)
	// A valid key does not suffer for its neighbours' guesses. One that is not known yet
	// is tried when its turn comes.
	wait := x.api.failures.wait(address)
	if wait > 0 && !x.api.service.Remembers(key) {
		return x.authenticateLate(key, wait)
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

// authenticateLate tries a key for an address with too many failed authentications: one
// at a time, and nobody waits long.
func (x *exchange) authenticateLate(key string, wait time.Duration) error {
	const most = time.Second
	timer := time.NewTimer(most)
	defer timer.Stop()
	refused := func() error { return x.tooMany(wait, "too many failed authentications from this address") }
	if key == "" {
		return refused()
	}
	select {
	case x.api.unproven <- struct{}{}:
	case <-timer.C:
		return refused()
	case <-x.r.Context().Done():
		return refused()
	}
	defer func() { <-x.api.unproven }()
	caller, err := x.api.service.Authenticate(x.r.Context(), key)
	if refusedKey(err) {
		return refused()
	}
	x.caller = caller
	return err
}

// refusedKey reports whether an error is a fault of the credential.
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

// parsed reads what the request's JSON says. Nothing of its parsed form is left then but
// what parse makes of it.
func parsed[T any](x *exchange, parse func(canon.Value) (T, error)) (read T, err error) {
	body, err := x.body()
	if err == nil {
		read, err = parse(body)
	}
	x.release()
	return read, err
}

// parsedOrNothing is parsed for steps that do without a body.
func parsedOrNothing[T any](x *exchange, parse func(canon.Value) (T, error)) (read T, err error) {
	body, err := x.objectOrNothing()
	if err == nil {
		read, err = parse(body)
	}
	x.release()
	return read, err
}

// admitLarge waits until the request may hold a large body, or parse it.
func (x *exchange) admitLarge(slots *sharedSlots) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), largeWait)
	defer cancel()
	if !slots.enter(ctx, x.caller.Org) {
		return fault.Errorf(fault.CodeUnavailable, "too many large requests arrived at once, and nothing was stored: try again")
	}
	x.held = append(x.held, slots)
	return nil
}

// release gives up what admitLarge waited for. It can be called again.
func (x *exchange) release() {
	for _, slots := range x.held {
		slots.leave(x.caller.Org)
	}
	x.held = nil
}

// body reads and parses the request's JSON. Whoever keeps it does so until the request
// is answered.
func (x *exchange) body() (canon.Value, error) {
	value, given, err := x.optionalBody()
	if err == nil && !given {
		err = fault.Errorf(fault.CodeInvalidJSON, "the request needs a JSON body")
	}
	return value, err
}

// optionalBody is body for routes that do without one.
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
		if err := x.admitLarge(&x.api.large); err != nil {
			return canon.Value{}, false, err
		}
	}
	value, err = canon.Parse(data)
	if err != nil {
		return canon.Value{}, false, unreadable(err)
	}
	return value, true, nil
}

// objectOrNothing is optionalBody for steps that cannot be undone: null, which
// elsewhere stands for nothing, was a slip.
func (x *exchange) objectOrNothing() (canon.Value, error) {
	value, given, err := x.optionalBody()
	if err == nil && given && value.IsNull() {
		err = fault.Invalid(fault.FieldError{Detail: "must be an object"})
	}
	return value, err
}

const (
	largeBody = 64 << 10 // bytes
	// A large body is in memory from the moment in which its first bytes are read, however
	// slowly the others come. Parsed, it can take a hundred times its size.
	mostBodies, mostBodiesOfEach = 128, 16
	mostLarge                    = 2 // large bodies that are parsed at a time, one of each organization
	largeWait                    = 10 * time.Second
)

// read reads the body. It takes memory for a large one only when that was admitted.
func (x *exchange) read(limit int64) ([]byte, error) {
	length := x.r.ContentLength // -1 where the body is chunked
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
		return nil, fault.Errorf(fault.CodeInvalidJSON, "the body ended before its announced length or took too long")
	}
	return data, nil
}

func tooLarge(limit int64) error {
	return fault.Errorf(fault.CodeTooLarge, "the body is larger than %d bytes", limit)
}

func isJSON(contentType string) bool {
	return contentType == "application/json" || mediaType(contentType) == "application/json"
}

// mediaType is a Content-Type without its parameters, "" for one that names
// another charset than UTF-8 or anything else.
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

// answer writes JSON bytes.
func (x *exchange) answer(status int, body []byte) error {
	x.write(status, "application/json", body)
	return nil
}

// nothing answers that there is nothing to say.
func (x *exchange) nothing() {
	x.status = http.StatusNoContent
	x.w.Header().Set("Cache-Control", "no-store")
	x.w.WriteHeader(x.status)
}

func (x *exchange) write(status int, contentType string, body []byte) {
	x.begin(status, contentType, len(body))
	x.send(body)
}

// begin starts an answer of so many bytes, -1 where that is not known yet. Where it has
// been started it does nothing.
func (x *exchange) begin(status int, contentType string, length int) {
	if x.status != 0 {
		return
	}
	x.status = status
	if length >= 0 {
		// A client that takes its time with the answer keeps nobody waiting. What is not
		// small is held until it is sent, and counts until then.
		x.wasRead()
	}
	header := x.w.Header()
	header.Set("Content-Type", contentType)
	if length >= 0 {
		header.Set("Content-Length", itoa(length))
	}
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-store")
	}
	x.w.WriteHeader(status)
}

func (x *exchange) send(part []byte) {
	if _, err := x.w.Write(part); err != nil {
		x.api.log.Debug("answer not delivered", "request_id", x.id)
	}
}
