// Package fault holds the errors that a caller may see, and their codes.
package fault

import "fmt"

// Code names a fault for programs. Codes are stable: clients branch on them.
type Code string

// The codes that a caller can meet. The HTTP status of each stands in one table,
// in package problem.
const (
	CodeInvalidJSON         Code = "invalid_json"
	CodeUnsupportedMedia    Code = "unsupported_media_type"
	CodeTooLarge            Code = "too_large"
	CodeUnauthenticated     Code = "unauthenticated"
	CodeMalformedKey        Code = "malformed_key"
	CodeKeyExpired          Code = "key_expired"
	CodeForbidden           Code = "forbidden"
	CodeAgentNotAllowed     Code = "agent_not_allowed"
	CodeNotFound            Code = "not_found"
	CodeMethodNotAllowed    Code = "method_not_allowed"
	CodeInvalid             Code = "invalid_request"
	CodeIdempotencyConflict Code = "idempotency_conflict"
	CodeNameTaken           Code = "name_taken"
	CodeIdentityTaken       Code = "identity_taken"
	CodeChainSealed         Code = "chain_sealed"
	CodeOutcomeConflict     Code = "outcome_conflict"
	CodeApprovalDecided     Code = "approval_decided"
	CodeApprovalExpired     Code = "approval_expired"
	CodeKillSwitchActive    Code = "kill_switch_active"
	CodePayloadMismatch     Code = "payload_mismatch"
	CodePolicyChanged       Code = "policy_changed"
	CodeNotPaused           Code = "chain_not_paused"
	CodeKeyState            Code = "signing_key_state"
	CodeAPIKeyEnded         Code = "api_key_ended" //nolint:gosec // a name, no key
	CodeRolledBack          Code = "store_rolled_back"
	CodeOrganizationExists  Code = "organization_exists"
	CodeRateLimited         Code = "rate_limited"
	CodeEvidenceTampered    Code = "evidence_tampered"
	CodeOutcomeUnknown      Code = "outcome_unknown"
	CodeUnavailable         Code = "storage_unavailable"
	CodeInternal            Code = "internal"
)

// Error is what a caller may see: a code, a sentence that says what to do, and
// the faulty fields. Any other error is "internal" outside and whole in the log.
type Error struct {
	Code    Code
	Message string
	Fields  []FieldError
}

// FieldError points at one faulty member of a request (RFC 6901).
type FieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes the error for well-formed requests that break a rule.
func Invalid(fields ...FieldError) *Error {
	return &Error{Code: CodeInvalid, Message: "the request has invalid fields; each is named in errors", Fields: fields}
}

// ErrNotFound is the one answer for what does not exist and for what belongs to
// another organization: the two must not be told apart.
var ErrNotFound = &Error{Code: CodeNotFound, Message: "there is no such object here: check the id, and that the key belongs to its organization"}
