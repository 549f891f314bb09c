package sqlite

import (
	"fmt"
	"syscall"

	"modernc.org/libc"
	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/store"
)

// connection calls SQLite directly, below the driver for database/sql. Every recorded
// action and every public verification uses it, and the driver's pooling, locking,
// column names and copies would cost more than SQLite itself. Only migrations use the
// driver.
//
// SQLite here is C translated to Go (modernc.org/sqlite/lib). It manages its own
// memory, outside the Go heap, and takes and returns addresses as uintptr. The garbage
// collector neither moves nor frees that memory, so an address stays valid until SQLite
// or this file frees it. Reading and writing there needs package unsafe, which only two
// functions use: pointer, and memory (see statement.go for the bounds).
//
// A connection serves one goroutine at a time: the pool, or Store.mu for the writer,
// sees to that. Only the copying of a backup is interrupted: elsewhere an interrupted
// statement could roll back the transaction.
type connection struct {
	tls        *libc.TLS
	db         uintptr               // the sqlite3 object; 0 before it is open
	out        uintptr               // addressSize bytes for values that SQLite returns through a pointer
	statements map[string]*statement // by their text, kept until close
}

const addressSize = 8 // bytes

// connect opens a file and sets the common pragmas and the given ones.
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

// failed closes a connection that could not be opened, and returns why. The error of
// closing it adds nothing.
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
	// NOMUTEX: SQLite would otherwise lock the connection several times for each column
	// that is read, and only one goroutine uses it.
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

// keepPlans makes the plan of a statement independent of its parameters. SQLite would
// otherwise prepare each statement with a parameter in its LIMIT again for every use.
func (c *connection) keepPlans() error {
	const slot = 8 // bytes of one variadic argument
	arguments := libc.Xmalloc(c.tls, 2*slot)
	if arguments == 0 {
		return errNoMemory
	}
	defer libc.Xfree(c.tls, arguments)
	return c.check(sqlitelib.Xsqlite3_db_config(c.tls, c.db, sqlitelib.SQLITE_DBCONFIG_ENABLE_QPSG, libc.VaList(arguments, int32(1), uintptr(0))))
}

// returned reads the address that the last call has written to out.
func (c *connection) returned() uintptr { return *(*uintptr)(pointer(c.out)) }

// statement returns the prepared statement for a query, and prepares it on first use.
func (c *connection) statement(query string) (*statement, error) {
	if prepared, ok := c.statements[query]; ok {
		return prepared, nil
	}
	text, err := libc.CString(query)
	if err != nil {
		return nil, errNoMemory
	}
	defer libc.Xfree(c.tls, text)
	rc := sqlitelib.Xsqlite3_prepare_v3(c.tls, c.db, text, int32(len(query)), sqlitelib.SQLITE_PREPARE_PERSISTENT, c.out, 0) //nolint:gosec // the length of a constant query
	if err := c.check(rc); err != nil {
		return nil, err
	}
	prepared := &statement{connection: c, handle: c.returned()}
	c.statements[query] = prepared
	return prepared, nil
}

// takeFrames returns how many pages were written to the log since the last call. SQLite
// writes two 32-bit numbers to out: the count and its maximum.
func (c *connection) takeFrames() int64 {
	const reset = 1
	rc := sqlitelib.Xsqlite3_db_status(c.tls, c.db, sqlitelib.SQLITE_DBSTATUS_CACHE_WRITE, c.out, c.out+addressSize/2, reset)
	if rc != sqlitelib.SQLITE_OK {
		return 0
	}
	return int64(*(*int32)(pointer(c.out)))
}

// exec runs a statement and ignores its rows.
func (c *connection) exec(query string, args ...any) error {
	return c.query(query, args, func(row) error { return nil })
}

// change runs a statement that must change exactly one row; ErrNotFound when it does
// not.
func (c *connection) change(query string, args ...any) error {
	if err := c.exec(query, args...); err != nil {
		return err
	}
	if sqlitelib.Xsqlite3_changes64(c.tls, c.db) != 1 {
		return store.ErrNotFound
	}
	return nil
}

// ended reports whether no transaction is open.
func (c *connection) ended() bool { return sqlitelib.Xsqlite3_get_autocommit(c.tls, c.db) != 0 }

// query runs a statement and calls scan for each row. The row is valid only during the
// call. scan must not run the same text again: the statement is in use.
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

// interrupt makes the statement fail that is running. Unlike the other methods, any goroutine may
// call it while the connection is open.
func (c *connection) interrupt() {
	tls := libc.NewTLS()
	defer tls.Close()
	sqlitelib.Xsqlite3_interrupt(tls, c.db)
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

// sqliteError is an error that SQLite returned.
type sqliteError struct {
	code   int32 // extended result code
	text   string
	system syscall.Errno // of the system call that failed; 0 for none
}

func (f *sqliteError) Error() string {
	if f.system != 0 {
		return fmt.Sprintf("SQLite: %s (%d): %s", f.text, f.code, f.system)
	}
	return fmt.Sprintf("SQLite: %s (%d)", f.text, f.code)
}

var (
	errNoMemory = &sqliteError{code: sqlitelib.SQLITE_NOMEM, text: "out of memory"}
	errTooBig   = &sqliteError{code: sqlitelib.SQLITE_TOOBIG, text: "the parameters of a statement are too large"}
)

// check turns a result code into an error; nil for SQLITE_OK.
func (c *connection) check(rc int32) error {
	if rc == sqlitelib.SQLITE_OK {
		return nil
	}
	failed := &sqliteError{code: rc}
	text := sqlitelib.Xsqlite3_errstr(c.tls, rc)
	if c.db != 0 {
		text = sqlitelib.Xsqlite3_errmsg(c.tls, c.db)
		switch rc & 0xff { // after other failures, errno may be an earlier one
		case sqlitelib.SQLITE_IOERR, sqlitelib.SQLITE_CANTOPEN, sqlitelib.SQLITE_FULL:
			failed.system = syscall.Errno(sqlitelib.Xsqlite3_system_errno(c.tls, c.db)) //nolint:gosec // errno is small
		}
	}
	failed.text = libc.GoString(text)
	return failed
}
