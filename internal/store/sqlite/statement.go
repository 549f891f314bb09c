package sqlite

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/google/uuid"
	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlitelib "modernc.org/sqlite/lib"
)

// statement is a prepared statement with a buffer for its parameters.
//
// Bounds. Memory outside the Go heap is accessed in two places only:
//
//   - The buffer at params has size bytes, allocated by reserve. bind reserves the sum
//     of the lengths of all values before it copies the first one, and copies each
//     value right after the one before it.
//   - A column's bytes, at the address and with the length that SQLite returns for it.
//     They are valid until the statement's next step or reset; what outlives that is
//     copied (row.assign).
type statement struct {
	*connection
	handle uintptr // the sqlite3_stmt object
	params uintptr // the buffer, 0 before the first use
	size   int     // of the buffer, in bytes
}

// keptSize is how large a buffer may be to be kept between two uses, in bytes, so that
// a rare large record does not stay in memory.
const keptSize = 64 << 10

// maxParameters limits the parameters of one statement, in bytes. SQLite takes a length
// as 32 bits, and reads up to the next zero byte when it is negative.
const maxParameters = 1 << 30

// bind sets the parameters, whose types are []byte, string, int64 or nil. SQLite reads
// text and bytes from the buffer while the statement runs.
func (s *statement) bind(args []any) error {
	size := 0
	for _, arg := range args {
		switch value := arg.(type) {
		case []byte:
			size += len(value)
		case string:
			size += len(value)
		}
	}
	if err := s.reserve(size); err != nil {
		return err
	}
	at := s.params
	for i, arg := range args {
		used, err := s.bindOne(int32(i+1), arg, at)
		if err != nil {
			return err
		}
		at += uintptr(used)
	}
	return nil
}

// reserve makes the buffer at least size bytes large, and never empty: SQLite takes the
// address 0 for null.
func (s *statement) reserve(size int) error {
	if size > maxParameters {
		return errTooBig
	}
	if size = max(size, 1); size <= s.size {
		return nil
	}
	s.release()
	size = max(size, 256)
	if s.params = libc.Xmalloc(s.tls, types.Size_t(size)); s.params == 0 {
		return errNoMemory
	}
	s.size = size
	return nil
}

func (s *statement) release() {
	libc.Xfree(s.tls, s.params)
	s.params, s.size = 0, 0
}

// bindOne copies a value to the address at, which is inside the buffer, and returns how
// many bytes it used there.
func (s *statement) bindOne(index int32, arg any, at uintptr) (used int, err error) {
	const static = 0 // SQLITE_STATIC: SQLite neither copies nor frees the value
	switch value := arg.(type) {
	case nil:
		return 0, s.check(sqlitelib.Xsqlite3_bind_null(s.tls, s.handle, index))
	case int64:
		return 0, s.check(sqlitelib.Xsqlite3_bind_int64(s.tls, s.handle, index, value))
	case string:
		used = copy(memory(at, len(value)), value)
		return used, s.check(sqlitelib.Xsqlite3_bind_text(s.tls, s.handle, index, at, int32(used), static)) //nolint:gosec // at most maxParameters
	case []byte:
		if value == nil {
			return 0, s.check(sqlitelib.Xsqlite3_bind_null(s.tls, s.handle, index))
		}
		used = copy(memory(at, len(value)), value)
		return used, s.check(sqlitelib.Xsqlite3_bind_blob(s.tls, s.handle, index, at, int32(used), static)) //nolint:gosec // at most maxParameters
	}
	// Not %T with the value: whatever goes to fmt is moved to the heap, here in every call.
	return 0, fmt.Errorf("parameter %d: %v is not a column type", index, reflect.TypeOf(arg))
}

// reset makes the statement ready for its next use. It ignores SQLite's result, which
// repeats the error of the last step.
func (s *statement) reset() {
	sqlitelib.Xsqlite3_reset(s.tls, s.handle)
	if s.size > keptSize {
		sqlitelib.Xsqlite3_clear_bindings(s.tls, s.handle)
		s.release()
	}
}

func (s *statement) close() {
	sqlitelib.Xsqlite3_finalize(s.tls, s.handle)
	s.release()
}

// row is the current row of a statement, beginning with one of its columns.
type row struct {
	*statement
	from int
}

// Scan copies columns into the targets, of the few types that the tables have. A
// nullable column is scanned into a pointer to a pointer, or into bytes, which become
// nil. Bytes of the wrong length become the zero id or hash: see idOf.
func (r row) Scan(targets ...any) error {
	for i, target := range targets {
		if !r.assign(int32(r.from+i), target) { //nolint:gosec // a query has few columns
			return fmt.Errorf("column %d does not fit %v", r.from+i, reflect.TypeOf(target)) // as in bindOne
		}
	}
	return nil
}

// scanTogether is Scan for columns of bytes that nobody keeps without each other: they share one
// allocation.
func (r row) scanTogether(targets ...*[]byte) error {
	size := 0
	for i := range targets {
		size += int(sqlitelib.Xsqlite3_column_bytes(r.tls, r.handle, int32(r.from+i))) //nolint:gosec // a query has few columns
	}
	free := make([]byte, 0, size)
	for i, target := range targets {
		column := int32(r.from + i) //nolint:gosec // a query has few columns
		kind := sqlitelib.Xsqlite3_column_type(r.tls, r.handle, column)
		if *target = nil; kind == sqlitelib.SQLITE_NULL {
			continue
		}
		if kind != sqlitelib.SQLITE_BLOB {
			return fmt.Errorf("column %d does not fit %v", r.from+i, reflect.TypeOf(target))
		}
		value := r.borrow(column)
		free = append(free, value...)
		*target, free = free[:len(value):len(value)], free[len(value):]
	}
	return nil
}

// skip returns the row without its first columns.
func (r row) skip(columns int) row { return row{r.statement, r.from + columns} }

// null reports whether the first column is null.
func (r row) null() bool {
	return sqlitelib.Xsqlite3_column_type(r.tls, r.handle, int32(r.from)) == sqlitelib.SQLITE_NULL //nolint:gosec // a query has few columns
}

// assign copies one column and reports whether its type fits the target.
func (r row) assign(column int32, target any) bool {
	kind := sqlitelib.Xsqlite3_column_type(r.tls, r.handle, column)
	null := kind == sqlitelib.SQLITE_NULL
	switch target := target.(type) {
	case *int64:
		*target = sqlitelib.Xsqlite3_column_int64(r.tls, r.handle, column)
		return kind == sqlitelib.SQLITE_INTEGER
	case *string:
		*target = string(r.borrow(column))
		return kind == sqlitelib.SQLITE_TEXT
	case *[]byte:
		if *target = nil; !null {
			value := r.borrow(column)
			*target = append(make([]byte, 0, len(value)), value...)
		}
		return null || kind == sqlitelib.SQLITE_BLOB
	case *uuid.UUID:
		*target = idOf(r.borrow(column))
		return null || kind == sqlitelib.SQLITE_BLOB
	case *[32]byte:
		*target = hashOf(r.borrow(column))
		return null || kind == sqlitelib.SQLITE_BLOB
	case **int64:
		if *target = nil; !null {
			value := sqlitelib.Xsqlite3_column_int64(r.tls, r.handle, column)
			*target = &value
		}
		return null || kind == sqlitelib.SQLITE_INTEGER
	case **string:
		if *target = nil; !null {
			value := string(r.borrow(column))
			*target = &value
		}
		return null || kind == sqlitelib.SQLITE_TEXT
	}
	return false
}

// borrow returns a column's bytes without copying them. They are valid until the
// statement's next step or reset.
func (r row) borrow(column int32) []byte {
	at := sqlitelib.Xsqlite3_column_blob(r.tls, r.handle, column)
	return memory(at, int(sqlitelib.Xsqlite3_column_bytes(r.tls, r.handle, column)))
}

// memory returns size bytes outside the Go heap as a slice. The caller vouches for the
// size: it is that of the buffer's free part, or what SQLite says of a column.
func memory(at uintptr, size int) []byte {
	if at == 0 || size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(at)), size) //nolint:gosec // bounds: see statement
}

// pointer converts an address outside the Go heap. A plain conversion of a uintptr is
// what go vet forbids, because the garbage collector may move what it points to; here
// it points to memory that Go does not manage.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address)) //nolint:gosec // not Go memory
}
