package notify

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// failure says why an attempt failed. It wraps only the caller's own context error, because other
// causes contain URLs and what the peer said.
type failure struct {
	text       string
	class      Class
	permanent  bool
	limited    bool // the peer only asked to wait
	retryAfter time.Duration
	cause      error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() error { return f.cause }

// Class says, for programs, why an attempt failed. A class is never renamed.
type Class string

// The classes of failures.
const (
	ClassInvalid     Class = "invalid"             // the request could not be built
	ClassAddress     Class = "address_not_allowed" // a private or reserved address
	ClassName        Class = "name_not_resolved"
	ClassConnection  Class = "connection"
	ClassTLS         Class = "tls"
	ClassTimeout     Class = "timeout"
	ClassRedirect    Class = "redirect"
	ClassStatus      Class = "status" // a status other than 2xx, 3xx and 410
	ClassGone        Class = "gone"
	ClassInterrupted Class = "interrupted" // the server stopped, or the caller gave up
	ClassHeldBack    Class = "held_back"   // not attempted: an earlier delivery to the receiver still hangs
)

// Classes lists every class.
func Classes() []Class {
	return []Class{
		ClassInvalid, ClassAddress, ClassName, ClassConnection, ClassTLS, ClassTimeout,
		ClassRedirect, ClassStatus, ClassGone, ClassInterrupted, ClassHeldBack,
	}
}

// ClassOf returns the class of a failed attempt, or ClassConnection if nothing else is known.
func ClassOf(err error) Class {
	var f *failure
	if errors.As(err, &f) && f.class != "" {
		return f.class
	}
	return ClassConnection
}

// HeldBack returns the failure of an attempt that was not made.
func HeldBack(text string) error { return &failure{text: text, class: ClassHeldBack} }

// Permanent reports whether another attempt would fail in the same way.
func Permanent(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.permanent
}

// EndpointGone reports whether the receiver does not want any more messages (410). Its endpoint
// should be disabled. Such a failure is also permanent.
func EndpointGone(err error) bool { return ClassOf(err) == ClassGone }

// TimedOut reports whether the peer did not answer in time, so that the next attempt may take as
// long.
func TimedOut(err error) bool { return ClassOf(err) == ClassTimeout }

// RateLimited reports whether the peer took too many messages already and only asked to wait. Such an
// attempt says nothing about the next one.
func RateLimited(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.limited
}

// RetryAfter returns how long the receiver asked to wait, at most a day. Wait for the longer of
// this and Backoff.
func RetryAfter(err error) (time.Duration, bool) {
	var f *failure
	if !errors.As(err, &f) || f.retryAfter <= 0 {
		return 0, false
	}
	return f.retryAfter, true
}

// permanent marks an error of this package as permanent.
func permanent(err error) error {
	return &failure{text: err.Error(), class: ClassInvalid, permanent: true}
}

// unreachable returns the failure of a connection to peer. If the caller gave up, the error matches
// that with errors.Is, because such an attempt says nothing about the peer. otherwise describes
// errors without a more specific description.
func unreachable(ctx context.Context, peer string, err error, otherwise string) error {
	if cause := ctx.Err(); cause != nil {
		return &failure{text: "the delivery was given up: " + cause.Error(), class: ClassInterrupted, cause: cause}
	}
	class, words := connectionFault(err)
	return &failure{text: peer + " " + cmp.Or(words, otherwise), class: class}
}

// connectionFault describes err without quoting it. It returns "" if it cannot.
func connectionFault(err error) (class Class, words string) {
	var (
		timeout net.Error
		name    *net.DNSError
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		alert   *net.OpError
		errno   syscall.Errno
	)
	switch {
	case errors.Is(err, errPrivateAddress):
		return ClassAddress, "has a private or reserved address, and those are not allowed"
	case errors.As(err, &timeout) && timeout.Timeout():
		return ClassTimeout, "did not answer in time"
	case errors.As(err, &name):
		return ClassName, "has a host name that could not be resolved"
	case errors.As(err, &cert):
		return ClassTLS, "showed a certificate that is not trusted, has expired or is for another name"
	case errors.As(err, &record), errors.As(err, &alert) && alert.Op == "remote error":
		return ClassTLS, "did not agree on TLS 1.2 or later"
	case errors.As(err, &errno):
		return ClassConnection, fmt.Sprintf("could not be reached: %v", errno)
	}
	return ClassConnection, ""
}
