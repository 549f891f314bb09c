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

// failure is why an attempt failed. It wraps nothing but the caller's own
// context error: other causes repeat URLs and what the peer said.
type failure struct {
	text       string
	permanent  bool
	gone       bool
	silent     bool
	retryAfter time.Duration
	cause      error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() error { return f.cause }

// Permanent reports whether another attempt would fail just the same.
func Permanent(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.permanent
}

// Gone reports whether the receiver asked to be left alone (410). Its endpoint
// should be disabled. What is gone is permanent.
func Gone(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.gone
}

// Silent reports whether the peer kept the caller waiting and did not answer in
// time: the next attempt may have to wait as long.
func Silent(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.silent
}

// RetryAfter returns how long the receiver asked to be spared, at most a day.
// Wait for the longer of this and Backoff.
func RetryAfter(err error) (time.Duration, bool) {
	var f *failure
	if !errors.As(err, &f) || f.retryAfter <= 0 {
		return 0, false
	}
	return f.retryAfter, true
}

// permanent marks an error of our own words.
func permanent(err error) error {
	return &failure{text: err.Error(), permanent: true}
}

// unreachable is the failure of a connection to peer. When it was the caller who
// gave up, the error says so to errors.Is: that attempt says nothing of the peer.
// otherwise is what to say of faults that have no words of their own.
func unreachable(ctx context.Context, peer string, err error, otherwise string) error {
	if cause := ctx.Err(); cause != nil {
		return &failure{text: "the delivery was given up: " + cause.Error(), cause: cause}
	}
	var timeout net.Error
	silent := errors.As(err, &timeout) && timeout.Timeout()
	return &failure{text: peer + " " + cmp.Or(connectionFault(err), otherwise), silent: silent}
}

// connectionFault describes err without repeating it; "" if it cannot.
func connectionFault(err error) string {
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
		return "has a private or reserved address, and those are not allowed"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "did not answer in time"
	case errors.As(err, &name):
		return "has a host name that could not be resolved"
	case errors.As(err, &cert):
		return "showed a certificate that is not trusted, has expired or is for another name"
	case errors.As(err, &record), errors.As(err, &alert) && alert.Op == "remote error":
		return "did not agree on TLS 1.2 or later"
	case errors.As(err, &errno):
		return fmt.Sprintf("could not be reached: %v", errno)
	}
	return ""
}
