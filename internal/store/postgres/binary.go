package postgres

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"countersign/internal/ledger"
)

// row is one row of a result in the server's binary form. Its values are read one after the other.
// It does not use the driver's conversions, which would cost the write path more than everything
// else together.
type row struct {
	values [][]byte
	next   int
	failed bool
}

var errUnexpectedForm = errors.New("the server sent a record in an unexpected form")

// end returns an error unless the row had exactly the values that were read.
func (r *row) end() error {
	if r.failed || r.next != len(r.values) {
		return errUnexpectedForm
	}
	return nil
}

// borrow returns the next value, or nil for null. It is valid only until the next row is read.
func (r *row) borrow() []byte {
	if r.next >= len(r.values) {
		r.failed = true
		return nil
	}
	value := r.values[r.next]
	r.next++
	return value
}

func (r *row) skip(values int) { r.next += values }

// bytes returns a copy of the next value, or nil for null.
func (r *row) bytes() []byte {
	value := r.borrow()
	if value == nil {
		return nil
	}
	return append(make([]byte, 0, len(value)), value...)
}

func (r *row) text() string { return string(r.borrow()) }

// sized returns the next value, which must have the given size.
func (r *row) sized(size int) []byte {
	value := r.borrow()
	if len(value) != size {
		r.failed = true
		return make([]byte, size)
	}
	return value
}

func (r *row) id() uuid.UUID     { return uuid.UUID(r.sized(len(uuid.UUID{}))) }
func (r *row) int() int64        { return int64(binary.BigEndian.Uint64(r.sized(8))) } //nolint:gosec // two's complement, as PostgreSQL writes it
func (r *row) hash() [32]byte    { return [32]byte(r.sized(32)) }
func (r *row) bool() bool        { return r.sized(1)[0] != 0 }
func (r *row) time() ledger.Time { return ledger.Time(r.int()) }

// duration reads a span that is stored in milliseconds.
func (r *row) duration() time.Duration { return ledger.Milliseconds(r.int()) }

// null reports whether the next value is null, and consumes it if it is.
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

// Parameters of the write path are arrays, one for each column. They are encoded here in the
// server's binary form, because the driver would use reflection for each element.

const arrayHeader = 20

// beginArray starts a one-dimensional array with capacity for its elements.
func beginArray(element uint32, count, bytes int) []byte {
	array := make([]byte, 0, arrayHeader+4*count+bytes)
	array = appendInt32(array, 1) // dimensions
	array = appendInt32(array, 1) // may contain nulls
	array = appendInt32(array, int(element))
	array = appendInt32(array, count)
	return appendInt32(array, 1) // lower bound
}

func appendInt32(array []byte, value int) []byte {
	return binary.BigEndian.AppendUint32(array, uint32(int32(value))) //nolint:gosec // counts and lengths are far below 2^31
}

func appendInt64(array []byte, value int64) []byte {
	return binary.BigEndian.AppendUint64(array, uint64(value)) //nolint:gosec // two's complement, as PostgreSQL writes it
}

func ids[T any](records []T, id func(T) uuid.UUID) []byte {
	array := beginArray(pgtype.UUIDOID, len(records), len(uuid.UUID{})*len(records))
	for _, record := range records {
		value := id(record)
		array = append(appendInt32(array, len(value)), value[:]...)
	}
	return array
}

func ints[T any](records []T, value func(T) int64) []byte {
	array := beginArray(pgtype.Int8OID, len(records), 8*len(records))
	for _, record := range records {
		array = appendInt64(appendInt32(array, 8), value(record))
	}
	return array
}

// intsOrNull encodes nil as null.
func intsOrNull[T any, I ~int64](records []T, value func(T) *I) []byte {
	array := beginArray(pgtype.Int8OID, len(records), 8*len(records))
	for _, record := range records {
		if v := value(record); v != nil {
			array = appendInt64(appendInt32(array, 8), int64(*v))
		} else {
			array = appendInt32(array, -1)
		}
	}
	return array
}

func bools[T any](records []T, value func(T) bool) []byte {
	array := beginArray(pgtype.BoolOID, len(records), len(records))
	for _, record := range records {
		bit := byte(0)
		if value(record) {
			bit = 1
		}
		array = append(appendInt32(array, 1), bit)
	}
	return array
}

func texts[T any](records []T, value func(T) string) []byte {
	return variable(pgtype.TextOID, records, func(record T) (string, bool) { return value(record), true })
}

// textsOrNull encodes an empty text as null.
func textsOrNull[T any](records []T, value func(T) string) []byte {
	return variable(pgtype.TextOID, records, func(record T) (string, bool) {
		text := value(record)
		return text, text != ""
	})
}

// blobs encodes nil as null.
func blobs[T any](records []T, value func(T) []byte) []byte {
	return variable(pgtype.ByteaOID, records, func(record T) ([]byte, bool) {
		bytes := value(record)
		return bytes, bytes != nil
	})
}

func variable[T any, V string | []byte](element uint32, records []T, value func(T) (V, bool)) []byte {
	size := 0
	for _, record := range records {
		v, _ := value(record)
		size += len(v)
	}
	array := beginArray(element, len(records), size)
	for _, record := range records {
		v, some := value(record)
		if !some {
			array = appendInt32(array, -1)
			continue
		}
		array = append(appendInt32(array, len(v)), v...)
	}
	return array
}
