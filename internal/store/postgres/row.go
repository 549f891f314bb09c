package postgres

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// row is one row of an answer, in the server's binary form, whose values are
// taken one after the other. It is read without the driver's own conversions:
// those cost the write path more than the rest of its work together.
type row struct {
	values [][]byte
	next   int
	failed bool
}

var errUnexpectedForm = errors.New("the server sent a record in an unexpected form")

// end says whether the row had the form that its reader took it for.
func (r *row) end() error {
	if r.failed || r.next != len(r.values) {
		return errUnexpectedForm
	}
	return nil
}

// borrow takes a value that is valid only until the next row is read; nil for
// null.
func (r *row) borrow() []byte {
	if r.next >= len(r.values) {
		r.failed = true
		return nil
	}
	value := r.values[r.next]
	r.next++
	return value
}

// skip leaves values out.
func (r *row) skip(values int) { r.next += values }

// bytes takes a copy; nil for null.
func (r *row) bytes() []byte {
	value := r.borrow()
	if value == nil {
		return nil
	}
	return append(make([]byte, 0, len(value)), value...)
}

func (r *row) text() string { return string(r.borrow()) }

// sized takes a value of one size.
func (r *row) sized(size int) []byte {
	value := r.borrow()
	if len(value) != size {
		r.failed = true
		return make([]byte, size)
	}
	return value
}

func (r *row) id() uuid.UUID     { return uuid.UUID(r.sized(len(uuid.UUID{}))) }
func (r *row) int() int64        { return int64(binary.BigEndian.Uint64(r.sized(8))) } //nolint:gosec // bit for bit, as PostgreSQL writes it
func (r *row) hash() [32]byte    { return [32]byte(r.sized(32)) }
func (r *row) bool() bool        { return r.sized(1)[0] != 0 }
func (r *row) time() ledger.Time { return ledger.Time(r.int()) }

// null takes a value that is null and says so, or leaves it.
func (r *row) null() bool {
	if r.next < len(r.values) && r.values[r.next] == nil {
		r.next++
		return true
	}
	return false
}

func (r *row) hashOrNil() *[32]byte {
	if r.null() {
		return nil
	}
	hash := r.hash()
	return &hash
}

func (r *row) timeOrNil() *ledger.Time {
	if r.null() {
		return nil
	}
	t := r.time()
	return &t
}
