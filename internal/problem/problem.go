// Package problem is what the front ends share when they answer: the one table
// of errors, and the ids that tie an answer to the log.
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

	"countersign/internal/ledger"
)

// ErrPanicked is the error of a request whose handler panicked. The log has the stack.
var ErrPanicked = errors.New("the handler panicked")

// Kind is how an error is answered.
type Kind struct {
	Status int
	Title  string
}

// kinds is the one table of errors: every code that a caller can meet.
var kinds = map[ledger.Code]Kind{
	ledger.CodeInvalidJSON:         {http.StatusBadRequest, "Invalid JSON"},
	ledger.CodeUnauthenticated:     {http.StatusUnauthorized, "Not authenticated"},
	ledger.CodeMalformedKey:        {http.StatusUnauthorized, "Malformed API key"},
	ledger.CodeKeyExpired:          {http.StatusUnauthorized, "API key expired"},
	ledger.CodeForbidden:           {http.StatusForbidden, "Role not sufficient"},
	ledger.CodeAgentNotAllowed:     {http.StatusForbidden, "Agent not allowed"},
	ledger.CodeNotFound:            {http.StatusNotFound, "Not found"},
	ledger.CodeMethodNotAllowed:    {http.StatusMethodNotAllowed, "Method not allowed"},
	ledger.CodeIdempotencyConflict: {http.StatusConflict, "Idempotency conflict"},
	ledger.CodeNameTaken:           {http.StatusConflict, "Name taken"},
	ledger.CodeChainSealed:         {http.StatusConflict, "Chain sealed"},
	ledger.CodeOutcomeConflict:     {http.StatusConflict, "Outcome conflict"},
	ledger.CodeApprovalDecided:     {http.StatusConflict, "Approval decided"},
	ledger.CodeApprovalExpired:     {http.StatusConflict, "Approval expired"},
	ledger.CodeKillSwitchActive:    {http.StatusConflict, "Kill switch active"},
	ledger.CodePayloadMismatch:     {http.StatusConflict, "Payload mismatch"},
	ledger.CodePolicyChanged:       {http.StatusConflict, "Policy changed"},
	ledger.CodeNotPaused:           {http.StatusConflict, "Chain not paused"},
	ledger.CodeKeyState:            {http.StatusConflict, "Signing key state"},
	ledger.CodeAPIKeyEnded:         {http.StatusConflict, "API key has ended"},
	ledger.CodeOrganizationExists:  {http.StatusConflict, "Organization exists"},
	ledger.CodeTooLarge:            {http.StatusRequestEntityTooLarge, "Too large"},
	ledger.CodeUnsupportedMedia:    {http.StatusUnsupportedMediaType, "Unsupported media type"},
	ledger.CodeInvalid:             {http.StatusUnprocessableEntity, "Invalid request"},
	ledger.CodeRateLimited:         {http.StatusTooManyRequests, "Too many requests"},
	ledger.CodeInternal:            {http.StatusInternalServerError, "Internal error"},
	ledger.CodeEvidenceTampered:    {http.StatusInternalServerError, "Stored evidence was changed"},
	ledger.CodeRolledBack:          {http.StatusServiceUnavailable, "Database put back"},
	ledger.CodeOutcomeUnknown:      {http.StatusServiceUnavailable, "Outcome unknown"},
	ledger.CodeUnavailable:         {http.StatusServiceUnavailable, "Storage unavailable"},
}

var errInternal = ledger.Errorf(ledger.CodeInternal, "something went wrong in the service; the request id finds it in the log")

// Of tells what a caller may see of an error, and how it is answered. What is not
// meant for callers becomes internal.
func Of(err error) (*ledger.Error, Kind) {
	var shown *ledger.Error
	if errors.As(err, &shown) {
		if kind, ok := kinds[shown.Code]; ok {
			return shown, kind
		}
	}
	return errInternal, kinds[ledger.CodeInternal]
}

// RetryAfter tells a caller how many seconds to wait.
func RetryAfter(header http.Header, wait time.Duration) {
	header.Set("Retry-After", strconv.Itoa(max(int(math.Ceil(wait.Seconds())), 1)))
}

// IDs are request ids: a random start, then a count.
type IDs struct {
	prefix string
	count  *atomic.Uint64
}

// NewIDs begins a series.
func NewIDs(prefix string) IDs {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	return IDs{prefix: prefix + hex.EncodeToString(random[:]) + "_", count: new(atomic.Uint64)}
}

// Next is an id that none before it had.
func (ids IDs) Next() string {
	return ids.prefix + strconv.FormatUint(ids.count.Add(1), 36)
}
