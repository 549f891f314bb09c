package anchor

import (
	"errors"
	"fmt"
)

// Reason says, for programs, why an anchor could not be obtained or is not valid.
type Reason string

// The reasons. Retrying helps if the other side was Unavailable. If it Refused or lied, retrying
// helps only after something has changed.
const (
	WrongImprint  Reason = "wrong_imprint"   // it is about another digest, or a hash other than SHA-256
	WrongNonce    Reason = "wrong_nonce"     // it answers another request
	UntrustedRoot Reason = "untrusted_root"  // no chain to a configured root
	Untrusted     Reason = "untrusted"       // not a timestamping certificate, or not part of a chain; a block header without work
	ExpiredAtTime Reason = "expired_at_time" // a certificate was not valid at the token's time
	Malformed     Reason = "malformed"       // it cannot be read, or exceeds a limit
	BadSignature  Reason = "bad_signature"   // the signature is wrong
	Refused       Reason = "refused"         // the other side refused
	Unavailable   Reason = "unavailable"     // no usable answer; worth retrying
	WrongBlock    Reason = "wrong_block"     // the block that the proof names does not contain its result
	Unattested    Reason = "unattested"      // the proof has no attestation of a supported kind
)

// Error is the type of all errors of this package. Its text names hosts but never a credential, a
// path or a digest.
type Error struct {
	Reason Reason
	cause  error
}

func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.cause }

// ReasonOf returns the reason of an error of this package, or "" for any other.
func ReasonOf(err error) Reason {
	var fault *Error
	if errors.As(err, &fault) {
		return fault.Reason
	}
	return ""
}

func faultf(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, cause: fmt.Errorf(format, args...)}
}
