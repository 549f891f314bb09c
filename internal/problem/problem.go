// Package problem holds what the front ends share when they answer: the table of errors, the ids
// that link an answer to the log, and how to discard a request's body.
package problem

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"countersign/internal/fault"
)

// ErrPanicked is the error of a request whose handler panicked. The log has the stack.
var ErrPanicked = errors.New("the handler panicked")

// Kind is the status and the title of the answer to an error.
type Kind struct {
	Status int
	Title  string
}

// kinds lists every code that a caller can get.
var kinds = map[fault.Code]Kind{
	fault.CodeInvalidJSON:         {http.StatusBadRequest, "Invalid JSON"},
	fault.CodeUnauthenticated:     {http.StatusUnauthorized, "Not authenticated"},
	fault.CodeMalformedKey:        {http.StatusUnauthorized, "Malformed API key"},
	fault.CodeKeyExpired:          {http.StatusUnauthorized, "API key expired"},
	fault.CodeForbidden:           {http.StatusForbidden, "Role not sufficient"},
	fault.CodeAgentNotAllowed:     {http.StatusForbidden, "Agent not allowed"},
	fault.CodeNotFound:            {http.StatusNotFound, "Not found"},
	fault.CodeMethodNotAllowed:    {http.StatusMethodNotAllowed, "Method not allowed"},
	fault.CodeIdempotencyConflict: {http.StatusConflict, "Idempotency conflict"},
	fault.CodeNameTaken:           {http.StatusConflict, "Name taken"},
	fault.CodeIdentityTaken:       {http.StatusConflict, "Identity taken"},
	fault.CodeChainSealed:         {http.StatusConflict, "Chain sealed"},
	fault.CodeOutcomeConflict:     {http.StatusConflict, "Outcome conflict"},
	fault.CodeApprovalDecided:     {http.StatusConflict, "Approval decided"},
	fault.CodeApprovalExpired:     {http.StatusConflict, "Approval expired"},
	fault.CodeKillSwitchActive:    {http.StatusConflict, "Kill switch active"},
	fault.CodePayloadMismatch:     {http.StatusConflict, "Payload mismatch"},
	fault.CodePolicyChanged:       {http.StatusConflict, "Policy changed"},
	fault.CodeNotPaused:           {http.StatusConflict, "Chain not paused"},
	fault.CodeKeyState:            {http.StatusConflict, "Signing key state"},
	fault.CodeAPIKeyEnded:         {http.StatusConflict, "API key has ended"},
	fault.CodeOrganizationExists:  {http.StatusConflict, "Organization exists"},
	fault.CodeTooLarge:            {http.StatusRequestEntityTooLarge, "Too large"},
	fault.CodeUnsupportedMedia:    {http.StatusUnsupportedMediaType, "Unsupported media type"},
	fault.CodeInvalid:             {http.StatusUnprocessableEntity, "Invalid request"},
	fault.CodeRateLimited:         {http.StatusTooManyRequests, "Too many requests"},
	fault.CodeInternal:            {http.StatusInternalServerError, "Internal error"},
	fault.CodeEvidenceTampered:    {http.StatusInternalServerError, "Stored evidence was changed"},
	fault.CodeRolledBack:          {http.StatusServiceUnavailable, "Database put back"},
	fault.CodeOutcomeUnknown:      {http.StatusServiceUnavailable, "Outcome unknown"},
	fault.CodeUnavailable:         {http.StatusServiceUnavailable, "Storage unavailable"},
}

var errInternal = fault.Errorf(fault.CodeInternal, "something went wrong in the service; the request id finds it in the log")

// Of returns what a caller may see of an error, and how it is answered. An error that is not meant
// for callers becomes an internal one.
func Of(err error) (*fault.Error, Kind) {
	var shown *fault.Error
	if errors.As(err, &shown) {
		if kind, ok := kinds[shown.Code]; ok {
			return shown, kind
		}
	}
	return errInternal, kinds[fault.CodeInternal]
}

// RetryAfter sets the header that tells a caller how many seconds to wait.
func RetryAfter(header http.Header, wait time.Duration) {
	header.Set("Retry-After", strconv.Itoa(max(int(math.Ceil(wait.Seconds())), 1)))
}

// Pause sets Retry-After if the status of a code is 429 or 503 and the header is not set yet. A store
// usually recovers by itself, but a rollback needs an operator.
func Pause(header http.Header, code fault.Code) {
	status := kinds[code].Status
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests || header.Get("Retry-After") != "" {
		return
	}
	wait := time.Second
	if code == fault.CodeRolledBack {
		wait = time.Minute
	}
	RetryAfter(header, wait)
}

// IDs generates request ids: a random part that all of them share, and a counter.
type IDs struct {
	prefix string
	count  *atomic.Uint64
}

// NewIDs returns a generator whose ids begin with prefix.
func NewIDs(prefix string) IDs {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	return IDs{prefix: prefix + hex.EncodeToString(random[:]) + "_", count: new(atomic.Uint64)}
}

// Next returns a new id.
func (ids IDs) Next() string {
	return ids.prefix + strconv.FormatUint(ids.count.Add(1), 36)
}
