package httpapi

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/problem"
	"countersign/internal/service"
)

// document is an RFC 9457 problem document.
type document struct {
	Type      string             `json:"type"`
	Title     string             `json:"title"`
	Status    int                `json:"status"`
	Detail    string             `json:"detail"`
	Code      fault.Code         `json:"code"`
	RequestID string             `json:"request_id"`
	Errors    []fault.FieldError `json:"errors,omitempty"`
}

// problem answers with an error. Details that are not meant for callers are only logged.
func (x *exchange) problem(err error) {
	var org ledger.OrgID
	if x.caller != nil {
		org = x.caller.Org
	}
	x.api.service.NoteTampering(org, err)
	shown, kind := problem.Of(service.Visible(err))
	if shown.Code == fault.CodeNotFound && secretPath(x.route.Pattern) {
		shown = errNothingToShow
	}
	if kind.Status >= http.StatusInternalServerError {
		x.api.log.LogAttrs(x.r.Context(), slog.LevelError, "request failed", slog.String("request_id", x.id),
			slog.String("route", x.route.Pattern), slog.String("code", string(shown.Code)), slog.Any("error", err))
	}
	if kind.Status == http.StatusUnauthorized && x.w.Header().Get("WWW-Authenticate") == "" {
		// The key was revoked after it was authenticated and before it was used.
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="countersign", error="invalid_token"`)
	}
	problem.Pause(x.w.Header(), shown.Code)
	if x.failsWithPage(kind.Status) && x.failurePage(shown, kind) == nil {
		return
	}
	body, err := encode(x.document(shown, kind))
	if err != nil {
		body = []byte(`{}`)
	}
	x.write(kind.Status, "application/problem+json", body)
}

// encode is json.Marshal without HTML escaping, so that people can read a text such as <API_KEY>.
func encode(value any) ([]byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), err
}

func (x *exchange) document(shown *fault.Error, kind problem.Kind) document {
	return document{
		Type: "/docs#" + string(shown.Code), Title: kind.Title, Status: kind.Status, Detail: shown.Message,
		Code: shown.Code, RequestID: x.id, Errors: shown.Fields,
	}
}

func (x *exchange) tooMany(wait time.Duration, why string) error {
	problem.RetryAfter(x.w.Header(), wait)
	return fault.Errorf(fault.CodeRateLimited, "%s: try again later", why)
}

func itoa(n int) string { return strconv.Itoa(n) }
