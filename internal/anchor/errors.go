package anchor

import (
	"errors"
	"fmt"
)

// Reason says, for programs, why an anchor could not be had or does not hold.
type Reason string

// The reasons. Asking again helps where the other side was Unavailable, and where
// it Refused or lied only once someone has changed something.
const (
	WrongImprint  Reason = "wrong_imprint"   // it is about another digest, or a hash other than SHA-256
	WrongNonce    Reason = "wrong_nonce"     // it answers another request
	UntrustedRoot Reason = "untrusted_root"  // no way to a configured root
	Untrusted     Reason = "untrusted"       // not a timestamping certificate, or one that nothing vouches for; a block header without work
	ExpiredAtTime Reason = "expired_at_time" // a certificate was not valid at the token's time
	Malformed     Reason = "malformed"       // it cannot be read, or is beyond a bound
	BadSignature  Reason = "bad_signature"   // the signature does not fit
	Refused       Reason = "refused"         // the other side said no
	Unavailable   Reason = "unavailable"     // the other side gave no usable answer: worth another try
	WrongBlock    Reason = "wrong_block"     // the block that the proof names does not hold what it leads to
	Unattested    Reason = "unattested"      // the proof has no attestation of a kind known here
)

// Error is every error of this package. Its text names hosts but never a
// credential, a path or a digest.
type Error struct {
	Reason Reason
	cause  error
}

func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns what lies behind the error.
func (e *Error) Unwrap() error { return e.cause }

// ReasonOf is the reason of an error of this package, and empty for any other.
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
