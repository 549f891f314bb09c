package sqlite

import (
	"fmt"
	"syscall"

	"modernc.org/libc"
	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/store"
)

// connection speaks to SQLite itself, below its driver for database/sql: every
// recorded action and every public check passes here, and the driver's pooling,
// locking, naming of columns and copying would cost more than SQLite does. It
// serves one goroutine at a time. Its statements are never cancelled: an
// interrupted one would cost the connection its state.
type connection struct {
	tls        *libc.TLS
	db         uintptr
	out        uintptr // where SQLite puts an address that it returns
	statements map[string]*statement
}

const addressSize = 8

// connect opens a file and sets its pragmas, which are the connection's own.
func connect(path string, pragmas ...string) (*connection, error) {
	c := &connection{tls: libc.NewTLS(), statements: make(map[string]*statement)}
	if err := c.open(path); err != nil {
		return nil, c.failed(err)
	}
	for _, pragma := range append(commonPragmas, pragmas...) {
		if err := c.exec("PRAGMA " + pragma); err != nil {
			return nil, c.failed(err)
		}
	}
	return c, nil
}

// failed closes what could not be opened. Why it could not says more than what
// closing it came to.
func (c *connection) failed(err error) error {
	_ = c.close()
	return err
}

func (c *connection) open(path string) error {
	if c.out = libc.Xmalloc(c.tls, addressSize); c.out == 0 {
		return errNoMemory
	}
	name, err := libc.CString(path)
	if err != nil {
		return errNoMemory
	}
	defer libc.Xfree(c.tls, name)
	// Without SQLite's own lock on the connection: it would be taken several times
	// for each column that is read.
	const flags = sqlitelib.SQLITE_OPEN_READWRITE | sqlitelib.SQLITE_OPEN_CREATE | sqlitelib.SQLITE_OPEN_NOMUTEX
	rc := sqlitelib.Xsqlite3_open_v2(c.tls, name, c.out, flags, 0)
	c.db = c.returned()
	if err := c.check(rc); err != nil {
		return err
	}
	if err := c.check(sqlitelib.Xsqlite3_extended_result_codes(c.tls, c.db, 1)); err != nil {
		return err
	}
	return c.keepPlans()
}

// keepPlans lets SQLite plan a statement once, whatever its parameters are. It would
// otherwise prepare every statement with a parameter as its LIMIT anew for each use.
func (c *connection) keepPlans() error {
	const slot = 8 // bytes of one variadic argument
	arguments := libc.Xmalloc(c.tls, 2*slot)
	if arguments == 0 {
		return errNoMemory
	}
	defer libc.Xfree(c.tls, arguments)
	return c.check(sqlitelib.Xsqlite3_db_config(c.tls, c.db, sqlitelib.SQLITE_DBCONFIG_ENABLE_QPSG, libc.VaList(arguments, int32(1), uintptr(0))))
}

// returned is the address that the last call has put into out.
func (c *connection) returned() uintptr { return *(*uintptr)(pointer(c.out)) }

// statement prepares a query once.
func (c *connection) statement(query string) (*statement, error) {
	if prepared, ok := c.statements[query]; ok {
		return prepared, nil
	}
	text, err := libc.CString(query)
	if err != nil {
		return nil, errNoMemory
	}
	defer libc.Xfree(c.tls, text)
	rc := sqlitelib.Xsqlite3_prepare_v3(c.tls, c.db, text, int32(len(query)), sqlitelib.SQLITE_PREPARE_PERSISTENT, c.out, 0) //nolint:gosec // queries are written in the code
	if err := c.check(rc); err != nil {
		return nil, err
	}
	prepared := &statement{connection: c, handle: c.returned()}
	c.statements[query] = prepared
	return prepared, nil
}

// takeFrames is how many pages were written to the log since it was last asked.
func (c *connection) takeFrames() int64 {
	const reset = 1
	rc := sqlitelib.Xsqlite3_db_status(c.tls, c.db, sqlitelib.SQLITE_DBSTATUS_CACHE_WRITE, c.out, c.out+addressSize/2, reset)
	if rc != sqlitelib.SQLITE_OK {
		return 0
	}
	return int64(*(*int32)(pointer(c.out)))
}

func (c *connection) exec(query string, args ...any) error {
	return c.query(query, args, func(row) error { return nil })
}

// change is exec for a statement about a record that must be there; ErrNotFound
// when it is not.
func (c *connection) change(query string, args ...any) error {
	if err := c.exec(query, args...); err != nil {
		return err
	}
	if sqlitelib.Xsqlite3_changes64(c.tls, c.db) != 1 {
		return store.ErrNotFound
	}
	return nil
}

func (c *connection) query(query string, args []any, scan func(row) error) error {
	s, err := c.statement(query)
	if err != nil {
		return err
	}
	if err := s.bind(args); err != nil {
		return err
	}
	defer s.reset()
	for {
		switch rc := sqlitelib.Xsqlite3_step(c.tls, s.handle); rc {
		case sqlitelib.SQLITE_ROW:
			if err := scan(row{s, 0}); err != nil {
				return err
			}
		case sqlitelib.SQLITE_DONE:
			return nil
		default:
			return c.check(rc)
		}
	}
}

func (c *connection) close() error {
	for _, s := range c.statements {
		s.close()
	}
	err := c.check(sqlitelib.Xsqlite3_close_v2(c.tls, c.db))
	libc.Xfree(c.tls, c.out)
	c.tls.Close()
	return err
}

// failure is an error of SQLite's.
type failure struct {
	code   int32 // the extended one
	text   string
	system syscall.Errno // of the call that failed; 0 where none did
}

func (f *failure) Error() string {
	if f.system != 0 {
		return fmt.Sprintf("SQLite: %s (%d): %s", f.text, f.code, f.system)
	}
	return fmt.Sprintf("SQLite: %s (%d)", f.text, f.code)
}

var (
	errNoMemory = &failure{code: sqlitelib.SQLITE_NOMEM, text: "out of memory"}
	errTooBig   = &failure{code: sqlitelib.SQLITE_TOOBIG, text: "string or blob too big"}
)

func (c *connection) check(rc int32) error {
	if rc == sqlitelib.SQLITE_OK {
		return nil
	}
	failed := &failure{code: rc}
	text := sqlitelib.Xsqlite3_errstr(c.tls, rc)
	if c.db != 0 {
		text = sqlitelib.Xsqlite3_errmsg(c.tls, c.db)
		switch rc & 0xff { // of other failures it may be the number of an earlier one
		case sqlitelib.SQLITE_IOERR, sqlitelib.SQLITE_CANTOPEN, sqlitelib.SQLITE_FULL:
			failed.system = syscall.Errno(sqlitelib.Xsqlite3_system_errno(c.tls, c.db)) //nolint:gosec // errors have small numbers
		}
	}
	failed.text = libc.GoString(text)
	return failed
}
