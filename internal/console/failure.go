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

var notFound = route{pattern: "/", handle: func(*visit) error {
	return fault.Errorf(fault.CodeNotFound, "there is no page at this address")
}}

func wrongMethod(pattern, methods string) route {
	return route{pattern: pattern, handle: func(v *visit) error {
		v.w.Header().Set("Allow", methods)
		return fault.Errorf(fault.CodeMethodNotAllowed, "this address takes %s", methods)
	}}
}

// failurePage is the data of an error page.
type failurePage struct {
	Title     string
	Message   string
	RequestID string
	SignIn    bool // explain how to sign in
	SSO       *ssoButton
	Missing   bool // link to the lists
}

// fail answers with an error page. Details that are not meant for people are only logged.
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
	problem.Pause(v.w.Header(), shown.Code)
	body := failurePage{Title: kind.Title, Message: sentence(shown.Message), RequestID: v.id, SignIn: kind.Status == http.StatusUnauthorized, SSO: v.ssoButton(), Missing: kind.Status == http.StatusNotFound}
	if err := v.show(kind.Status, "failure.html", kind.Title, body); err != nil {
		v.report(http.StatusInternalServerError, fault.CodeInternal, err)
		v.write(http.StatusInternalServerError, "text/plain; charset=utf-8", []byte("Something went wrong. Request id: "+v.id+"\n"))
	}
}

// challenge sets the WWW-Authenticate header, which a 401 response must have.
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

// codeOf returns the code of an error, or "" if err is nil.
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

// sentence turns an error message into a sentence.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + message[size:] + "."
}
