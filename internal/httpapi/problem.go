package httpapi

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"countersign/internal/ledger"
)

// statuses is the one table of errors: every code that a caller can meet, its
// status and its title.
var statuses = map[ledger.Code]struct {
	status int
	title  string
}{
	ledger.CodeInvalidJSON:         {http.StatusBadRequest, "Invalid JSON"},
	ledger.CodeUnauthenticated:     {http.StatusUnauthorized, "Not authenticated"},
	ledger.CodeMalformedKey:        {http.StatusUnauthorized, "Malformed API key"},
	ledger.CodeForbidden:           {http.StatusForbidden, "Role not sufficient"},
	ledger.CodeNotFound:            {http.StatusNotFound, "Not found"},
	ledger.CodeMethodNotAllowed:    {http.StatusMethodNotAllowed, "Method not allowed"},
	ledger.CodeIdempotencyConflict: {http.StatusConflict, "Idempotency conflict"},
	ledger.CodeChainSealed:         {http.StatusConflict, "Chain sealed"},
	ledger.CodeOutcomeConflict:     {http.StatusConflict, "Outcome conflict"},
	ledger.CodeOrganizationExists:  {http.StatusConflict, "Organization exists"},
	ledger.CodeTooLarge:            {http.StatusRequestEntityTooLarge, "Body too large"},
	ledger.CodeUnsupportedMedia:    {http.StatusUnsupportedMediaType, "Unsupported media type"},
	ledger.CodeInvalid:             {http.StatusUnprocessableEntity, "Invalid request"},
	ledger.CodeRateLimited:         {http.StatusTooManyRequests, "Too many requests"},
	ledger.CodeInternal:            {http.StatusInternalServerError, "Internal error"},
	ledger.CodeEvidenceTampered:    {http.StatusInternalServerError, "Stored evidence was changed"},
	ledger.CodeOutcomeUnknown:      {http.StatusServiceUnavailable, "Outcome unknown"},
	ledger.CodeUnavailable:         {http.StatusServiceUnavailable, "Storage unavailable"},
}

// problem is an RFC 9457 document.
type problem struct {
	Type      string              `json:"type"`
	Title     string              `json:"title"`
	Status    int                 `json:"status"`
	Detail    string              `json:"detail"`
	Code      ledger.Code         `json:"code"`
	RequestID string              `json:"request_id"`
	Errors    []ledger.FieldError `json:"errors,omitempty"`
}

var errInternal = ledger.Errorf(ledger.CodeInternal, "something went wrong in the service; the request_id finds it in the log")

// problem answers an error. What is not meant for callers goes to the log.
func (x *exchange) problem(err error) {
	shown := errInternal
	var own *ledger.Error
	if errors.As(err, &own) {
		shown = own
	}
	entry, ok := statuses[shown.Code]
	if !ok {
		shown, entry = errInternal, statuses[ledger.CodeInternal]
	}
	if entry.status >= http.StatusInternalServerError {
		x.api.log.LogAttrs(x.r.Context(), slog.LevelError, "request failed", slog.String("request_id", x.id),
			slog.String("route", x.route.Pattern), slog.String("code", string(shown.Code)), slog.Any("error", err))
	}
	if entry.status == http.StatusUnauthorized && x.w.Header().Get("WWW-Authenticate") == "" {
		// The key was revoked between its authentication and its use.
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="countersign", error="invalid_token"`)
	}
	if entry.status == http.StatusServiceUnavailable && x.w.Header().Get("Retry-After") == "" {
		x.w.Header().Set("Retry-After", "1")
	}
	body, err := json.Marshal(problem{
		Type: "/docs#" + string(shown.Code), Title: entry.title, Status: entry.status, Detail: shown.Message,
		Code: shown.Code, RequestID: x.id, Errors: shown.Fields,
	})
	if err != nil {
		body = []byte(`{}`)
	}
	x.write(entry.status, "application/problem+json", body)
}

func (x *exchange) tooMany(wait time.Duration, why string) error {
	seconds := int(math.Ceil(wait.Seconds()))
	x.w.Header().Set("Retry-After", strconv.Itoa(max(seconds, 1)))
	return ledger.Errorf(ledger.CodeRateLimited, "%s: try again later", why)
}

func itoa(n int) string { return strconv.Itoa(n) }
