package sqlite

import (
	"fmt"
	"unsafe"

	"github.com/google/uuid"
	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlitelib "modernc.org/sqlite/lib"
)

// statement is a prepared query. What its parameters say lies on SQLite's side, in
// one piece of memory that is used again and again.
type statement struct {
	*connection
	handle uintptr
	params uintptr
	room   int // bytes at params
}

// keptRoom is how much a statement keeps between two uses: a rare large record
// does not stay in memory.
const keptRoom = 64 << 10

// maxParameters bounds what one statement is given, in bytes. SQLite counts them
// in 32 bits and reads on to the next zero byte where the count is negative.
const maxParameters = 1 << 30

// bind gives the parameters their values: []byte, string, int64 or nil.
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

func (s *statement) reserve(size int) error {
	if size > maxParameters {
		return errTooBig
	}
	if size = max(size, 1); size <= s.room {
		return nil
	}
	s.release()
	room := max(size, 256)
	if s.params = libc.Xmalloc(s.tls, types.Size_t(room)); s.params == 0 {
		return errNoMemory
	}
	s.room = room
	return nil
}

func (s *statement) release() {
	libc.Xfree(s.tls, s.params)
	s.params, s.room = 0, 0
}

// bindOne copies a value to where at points, and says how much it took there. SQLite
// reads it from there while the statement runs.
func (s *statement) bindOne(index int32, arg any, at uintptr) (used int, err error) {
	const static = 0 // SQLite neither frees nor copies it
	switch value := arg.(type) {
	case nil:
		return 0, s.check(sqlitelib.Xsqlite3_bind_null(s.tls, s.handle, index))
	case int64:
		return 0, s.check(sqlitelib.Xsqlite3_bind_int64(s.tls, s.handle, index, value))
	case string:
		used = copy(lent(at, len(value)), value)
		return used, s.check(sqlitelib.Xsqlite3_bind_text(s.tls, s.handle, index, at, int32(used), static)) //nolint:gosec // at most maxParameters
	case []byte:
		if value == nil {
			return 0, s.check(sqlitelib.Xsqlite3_bind_null(s.tls, s.handle, index))
		}
		used = copy(lent(at, len(value)), value)
		return used, s.check(sqlitelib.Xsqlite3_bind_blob(s.tls, s.handle, index, at, int32(used), static)) //nolint:gosec // at most maxParameters
	}
	return 0, fmt.Errorf("parameter %d: %T is no type of a column", index, arg)
}

// reset makes the statement ready for its next use. What its last step came to is
// known already.
func (s *statement) reset() {
	sqlitelib.Xsqlite3_reset(s.tls, s.handle)
	if s.room > keptRoom {
		sqlitelib.Xsqlite3_clear_bindings(s.tls, s.handle)
		s.release()
	}
}

func (s *statement) close() {
	sqlitelib.Xsqlite3_finalize(s.tls, s.handle)
	s.release()
}

// row is the row at which a statement stands, from one of its columns on.
type row struct {
	*statement
	from int
}

// Scan takes the few types that the tables have. A nullable column is scanned
// into a pointer to a pointer, or into bytes, which are nil then. Bytes that are
// no id, or no hash, become the zero one: see idOf.
func (r row) Scan(targets ...any) error {
	for i, target := range targets {
		if !r.assign(int32(r.from+i), target) { //nolint:gosec // a query has few columns
			return fmt.Errorf("column %d does not fit %T", r.from+i, target)
		}
	}
	return nil
}

// skip leaves columns out.
func (r row) skip(columns int) row { return row{r.statement, r.from + columns} }

// null reports whether the first column is.
func (r row) null() bool {
	return sqlitelib.Xsqlite3_column_type(r.tls, r.handle, int32(r.from)) == sqlitelib.SQLITE_NULL //nolint:gosec // a query has few columns
}

func (r row) assign(column int32, target any) bool {
	kind := sqlitelib.Xsqlite3_column_type(r.tls, r.handle, column)
	null := kind == sqlitelib.SQLITE_NULL
	switch target := target.(type) {
	case *int64:
		*target = sqlitelib.Xsqlite3_column_int64(r.tls, r.handle, column)
		return kind == sqlitelib.SQLITE_INTEGER
	case *string:
		*target = string(r.lend(column))
		return kind == sqlitelib.SQLITE_TEXT
	case *[]byte:
		if *target = nil; !null {
			lent := r.lend(column)
			*target = append(make([]byte, 0, len(lent)), lent...)
		}
		return null || kind == sqlitelib.SQLITE_BLOB
	case *uuid.UUID:
		*target = idOf(r.lend(column))
		return null || kind == sqlitelib.SQLITE_BLOB
	case *[32]byte:
		*target = hashOf(r.lend(column))
		return null || kind == sqlitelib.SQLITE_BLOB
	case **int64:
		if *target = nil; !null {
			value := sqlitelib.Xsqlite3_column_int64(r.tls, r.handle, column)
			*target = &value
		}
		return null || kind == sqlitelib.SQLITE_INTEGER
	case **string:
		if *target = nil; !null {
			value := string(r.lend(column))
			*target = &value
		}
		return null || kind == sqlitelib.SQLITE_TEXT
	}
	return false
}

// lend shows a column's bytes, which are valid until the statement's next step.
func (r row) lend(column int32) []byte {
	at := sqlitelib.Xsqlite3_column_blob(r.tls, r.handle, column)
	return lent(at, int(sqlitelib.Xsqlite3_column_bytes(r.tls, r.handle, column)))
}

// lent is a piece of memory of SQLite's side.
func lent(at uintptr, size int) []byte {
	if at == 0 || size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(at)), size) //nolint:gosec // SQLite says how much is there
}

// pointer reads an address of SQLite's side, which the garbage collector does
// not move or free, as a pointer.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address)) //nolint:gosec // of memory that Go does not manage
}
