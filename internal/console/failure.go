package console

import (
	"errors"
	"log/slog"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/problem"
	"countersign/internal/service"
)

var nowhere = route{pattern: "/", handle: func(*visit) error {
	return fault.Errorf(fault.CodeNotFound, "there is no page at this address")
}}

func wrongMethod(pattern, methods string) route {
	return route{pattern: pattern, handle: func(v *visit) error {
		v.w.Header().Set("Allow", methods)
		return fault.Errorf(fault.CodeMethodNotAllowed, "this address takes %s", methods)
	}}
}

// failurePage is what an error page says.
type failurePage struct {
	Title     string
	Message   string
	RequestID string
	SignIn    bool // say how to sign in
	Missing   bool // say where to look instead
}

// fail answers an error with a page. What is not meant for people goes to the
// log.
func (v *visit) fail(err error) {
	var org ledger.OrgID
	if v.caller != nil {
		org = v.caller.Org
	}
	v.console.service.NoteTampering(org, err)
	problem.Drain(v.w, v.r)
	shown, kind := problem.Of(service.Visible(err))
	v.report(kind.Status, shown.Code, err)
	if kind.Status == http.StatusUnauthorized {
		v.challenge()
	}
	body := failurePage{Title: kind.Title, Message: sentence(shown.Message), RequestID: v.id, SignIn: kind.Status == http.StatusUnauthorized, Missing: kind.Status == http.StatusNotFound}
	if err := v.show(kind.Status, "failure.html", kind.Title, body); err != nil {
		v.report(http.StatusInternalServerError, fault.CodeInternal, err)
		v.write(http.StatusInternalServerError, "text/plain; charset=utf-8", []byte("Something went wrong. Request id: "+v.id+"\n"))
	}
}

// challenge completes a 401, which must name a way to authenticate.
func (v *visit) challenge() {
	v.w.Header().Set("WWW-Authenticate", `SignInLink realm="countersign"`)
}

func (v *visit) report(status int, code fault.Code, err error) {
	if status < http.StatusInternalServerError {
		return
	}
	v.console.log.LogAttrs(v.r.Context(), slog.LevelError, "request failed", slog.String("request_id", v.id),
		slog.String("route", v.route.pattern), slog.String("code", string(code)), slog.Any("error", err))
}

func (v *visit) tooMany(wait time.Duration, why string) error {
	problem.RetryAfter(v.w.Header(), wait)
	return fault.Errorf(fault.CodeRateLimited, "%s: wait %s s and try again", why, v.w.Header().Get("Retry-After"))
}

// codeOf is an error's code, "" without an error.
func codeOf(err error) fault.Code {
	if err == nil {
		return ""
	}
	var own *fault.Error
	if errors.As(err, &own) {
		return own.Code
	}
	return fault.CodeInternal
}

// sentence makes one of a message: inside the service they are parts of one.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + message[size:] + "."
}
