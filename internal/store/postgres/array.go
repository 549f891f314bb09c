package postgres

import (
	"encoding/binary"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Parameters of the write path are arrays, one for each column, written here in
// the server's binary form: the driver would look at each element by reflection.

const arrayHeader = 20

// beginArray begins an array of one dimension with room for its elements.
func beginArray(element uint32, count, bytes int) []byte {
	array := make([]byte, 0, arrayHeader+4*count+bytes)
	array = appendInt32(array, 1) // dimensions
	array = appendInt32(array, 1) // may hold nulls
	array = appendInt32(array, int(element))
	array = appendInt32(array, count)
	return appendInt32(array, 1) // the first index
}

func appendInt32(array []byte, value int) []byte {
	return binary.BigEndian.AppendUint32(array, uint32(int32(value))) //nolint:gosec // counts and lengths are far below 2^31
}

func appendInt64(array []byte, value int64) []byte {
	return binary.BigEndian.AppendUint64(array, uint64(value)) //nolint:gosec // bit for bit, as PostgreSQL writes it
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

// intsOrNull leaves null where there is no value.
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

// textsOrNull leaves null where the text is empty.
func textsOrNull[T any](records []T, value func(T) string) []byte {
	return variable(pgtype.TextOID, records, func(record T) (string, bool) {
		text := value(record)
		return text, text != ""
	})
}

// blobs leaves null where the bytes are nil.
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
