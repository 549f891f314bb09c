package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"countersign/internal/store"
)

// SQLSTATE codes that determine the error that a caller gets.
const (
	codeUniqueViolation = "23505"
	codeReadOnly        = "25006"
	codeNoStatement     = "26000"
	codeIdleTooLong     = "25P03" // in a transaction
	codeNotPermitted    = "42501"
	classDataException  = "22"
)

// busyCodes mean that nothing was written and that the same call may succeed later.
var busyCodes = map[string]bool{
	"40001":         true, // serialization failure
	"40P01":         true, // deadlock
	"55P03":         true, // lock not available in time
	"57014":         true, // statement timeout
	"57P01":         true, // administrator shutdown
	"57P02":         true, // crash shutdown
	"57P03":         true, // starting up
	"57P05":         true, // idle session timeout
	codeIdleTooLong: true,
	codeReadOnly:    true, // a standby, or a primary that became one
	codeNoStatement: true, // the prepared statements were lost, for example by a pooler
}

// busyClasses are classes with the same meaning as busyCodes: connection lost, resources exhausted,
// input or output of the server's system failed.
var busyClasses = map[string]bool{"08": true, "53": true, "58": true}

// faults maps codes to problems of the store itself.
var faults = map[string]error{
	"53100":      store.ErrFull,
	codeReadOnly: store.ErrReadOnly,
	"58030":      store.ErrInputOutput,
	"XX001":      store.ErrDamaged, // data corrupted
	"XX002":      store.ErrDamaged, // index corrupted
}

// explain translates an error that occurred before the commit into an error of the port. It returns
// nil for nil, and an error that is already translated unchanged.
func explain(what string, err error) error {
	if err == nil || isExplained(err) {
		return err
	}
	var refusal *pgconn.PgError
	switch {
	case errors.As(err, &refusal) && refusal.Code == codeUniqueViolation:
		return fmt.Errorf("%s: %w (%s)", what, store.ErrExists, refusal.ConstraintName)
	case refusal != nil && (busyCodes[refusal.Code] || busyClasses[class(refusal)] || faults[refusal.Code] != nil):
		return unavailable(what, err)
	case refusal != nil:
		return fmt.Errorf("%s: %w", what, describe(refusal))
	case errors.Is(err, context.Canceled): // the caller has given up
		return unavailable(what, err)
	case connectionFailed(err):
		return unavailable(what, fmt.Errorf("%w: %w", errGone, err))
	}
	if strings.Contains(err.Error(), "unable to encode") {
		// The rest of the driver's text contains the value.
		return fmt.Errorf("%s: a parameter does not fit its type", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// errGone says that the server did not answer or that the connection was lost.
var errGone = errors.New("no answer from the server")

func isExplained(err error) bool {
	return errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnavailable)
}

func unavailable(what string, err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) {
		if fault := faults[refusal.Code]; fault != nil {
			return fmt.Errorf("%s: %w: %w: %w", what, store.ErrUnavailable, fault, describe(refusal))
		}
		return fmt.Errorf("%s: %w: %w", what, store.ErrUnavailable, describe(refusal))
	}
	return fmt.Errorf("%s: %w: %w", what, store.ErrUnavailable, err)
}

// describe returns a server's error without anything that can contain a value: always without the
// detail, and without the message if it is about data.
func describe(refusal *pgconn.PgError) error {
	message := refusal.Message
	if class(refusal) == classDataException {
		message = "the server refused a value"
	}
	return fmt.Errorf("%s (SQLSTATE %s)", message, refusal.Code)
}

func connectionFailed(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connect) ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}

// class returns the first part of an error's code.
func class(refusal *pgconn.PgError) string {
	return refusal.Code[:min(2, len(refusal.Code))]
}
