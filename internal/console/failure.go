package console

import (
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"countersign/internal/ledger"
)

// failures is the one table of errors: the status and title of each code that
// can reach a page. Any other is internal.
var failures = map[ledger.Code]struct {
	status int
	title  string
}{
	ledger.CodeUnauthenticated:  {http.StatusUnauthorized, "Please sign in"},
	ledger.CodeForbidden:        {http.StatusForbidden, "Not allowed"},
	ledger.CodeNotFound:         {http.StatusNotFound, "Not found"},
	ledger.CodeMethodNotAllowed: {http.StatusMethodNotAllowed, "Not done this way"},
	ledger.CodeTooLarge:         {http.StatusRequestEntityTooLarge, "Too large"},
	ledger.CodeInvalid:          {http.StatusUnprocessableEntity, "That cannot be read"},
	ledger.CodeRateLimited:      {http.StatusTooManyRequests, "Too many requests"},
	ledger.CodeEvidenceTampered: {http.StatusInternalServerError, "Stored evidence was changed"},
	ledger.CodeOutcomeUnknown:   {http.StatusServiceUnavailable, "Outcome unknown"},
	ledger.CodeUnavailable:      {http.StatusServiceUnavailable, "Storage unavailable"},
	ledger.CodeInternal:         {http.StatusInternalServerError, "Something went wrong"},
}

var errInternal = ledger.Errorf(ledger.CodeInternal, "the fault is on our side, and it is in the server's log under the request id below")

var nowhere = route{pattern: "/", handle: func(*visit) error {
	return ledger.Errorf(ledger.CodeNotFound, "there is no page at this address")
}}

func wrongMethod(pattern, methods string) route {
	return route{pattern: pattern, handle: func(v *visit) error {
		v.w.Header().Set("Allow", methods)
		return ledger.Errorf(ledger.CodeMethodNotAllowed, "this address takes %s", methods)
	}}
}

// failurePage is what an error page says.
type failurePage struct {
	Title     string
	Message   string
	RequestID string
	SignIn    bool // say how to sign in
}

// fail answers an error with a page. What is not meant for people goes to the
// log.
func (v *visit) fail(err error) {
	shown := errInternal
	var own *ledger.Error
	if errors.As(err, &own) {
		shown = own
	}
	entry, ok := failures[shown.Code]
	if !ok {
		shown, entry = errInternal, failures[ledger.CodeInternal]
	}
	v.report(entry.status, shown.Code, err)
	if entry.status == http.StatusUnauthorized {
		v.challenge()
	}
	body := failurePage{Title: entry.title, Message: sentence(shown.Message), RequestID: v.id, SignIn: entry.status == http.StatusUnauthorized}
	if err := v.show(entry.status, "failure.html", entry.title, body); err != nil {
		v.report(http.StatusInternalServerError, ledger.CodeInternal, err)
		v.write(http.StatusInternalServerError, "text/plain; charset=utf-8", []byte("Something went wrong. Request id: "+v.id+"\n"))
	}
}

// challenge completes a 401, which must name a way to authenticate.
func (v *visit) challenge() {
	v.w.Header().Set("WWW-Authenticate", `SignInLink realm="countersign"`)
}

func (v *visit) report(status int, code ledger.Code, err error) {
	if status < http.StatusInternalServerError {
		return
	}
	v.console.log.LogAttrs(v.r.Context(), slog.LevelError, "request failed", slog.String("request_id", v.id),
		slog.String("route", v.route.pattern), slog.String("code", string(code)), slog.Any("error", err))
}

func (v *visit) tooMany(wait time.Duration, why string) error {
	seconds := max(int(math.Ceil(wait.Seconds())), 1)
	v.w.Header().Set("Retry-After", strconv.Itoa(seconds))
	return ledger.Errorf(ledger.CodeRateLimited, "%s: wait %d s and try again", why, seconds)
}

// codeOf is an error's code, "" without an error.
func codeOf(err error) ledger.Code {
	if err == nil {
		return ""
	}
	var own *ledger.Error
	if errors.As(err, &own) {
		return own.Code
	}
	return ledger.CodeInternal
}

// sentence makes one of a message: inside the service they are parts of one.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + message[size:] + "."
}
