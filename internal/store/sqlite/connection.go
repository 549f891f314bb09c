package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	sqlitedriver "modernc.org/sqlite"

	"countersign/internal/store"
)

// connection is the one that writes. It speaks to the driver directly: every
// recorded action passes here, and the pooling, locking and conversions of
// database/sql would cost it more than SQLite itself does. Its statements are
// never cancelled: an interrupted one would cost the connection its state.
type connection struct {
	conn       driver.Conn
	statements map[string]driver.Stmt
	args       []driver.NamedValue
	bytes      int64 // bound to statements since takeWritten
}

func connect(dsn string) (*connection, error) {
	conn, err := new(sqlitedriver.Driver).Open(dsn)
	if err != nil {
		return nil, err
	}
	return &connection{conn: conn, statements: make(map[string]driver.Stmt)}, nil
}

// statement prepares a query once.
func (c *connection) statement(query string) (driver.Stmt, error) {
	if statement, ok := c.statements[query]; ok {
		return statement, nil
	}
	statement, err := c.conn.Prepare(query)
	if err != nil {
		return nil, err
	}
	c.statements[query] = statement
	return statement, nil
}

func (c *connection) named(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, arg := range args {
		if b, ok := arg.([]byte); ok {
			c.bytes += int64(len(b))
		}
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: arg})
	}
	return c.args
}

// takeWritten is about how much was written since it was last asked.
func (c *connection) takeWritten() int64 {
	written := c.bytes
	c.bytes = 0
	return written
}

func (c *connection) exec(query string, args ...any) error {
	_, err := c.execute(query, args)
	return err
}

// change is exec for a statement about a record that must be there; ErrNotFound
// when it is not.
func (c *connection) change(query string, args ...any) error {
	result, err := c.execute(query, args)
	if err != nil {
		return err
	}
	if count, err := result.RowsAffected(); err != nil || count == 1 {
		return err
	}
	return store.ErrNotFound
}

func (c *connection) execute(query string, args []any) (driver.Result, error) {
	statement, err := c.statement(query)
	if err != nil {
		return nil, err
	}
	return statement.(driver.StmtExecContext).ExecContext(context.Background(), c.named(args))
}

func (c *connection) query(query string, args []any, scan func(row) error) (err error) {
	statement, err := c.statement(query)
	if err != nil {
		return err
	}
	rows, err := statement.(driver.StmtQueryContext).QueryContext(context.Background(), c.named(args))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	values := make(driverRow, len(rows.Columns()))
	for {
		switch err := rows.Next(values); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := scan(values); err != nil {
			return err
		}
	}
}

func (c *connection) close() error {
	var errs []error
	for _, statement := range c.statements {
		errs = append(errs, statement.Close())
	}
	return errors.Join(append(errs, c.conn.Close())...)
}

// row is what the scan functions read from, on either path.
type row interface{ Scan(targets ...any) error }

// driverRow is a row of the writing connection.
type driverRow []driver.Value

// Scan takes the few types that the tables have. A nullable column is scanned
// into a pointer to a pointer.
func (r driverRow) Scan(targets ...any) error {
	for i, target := range targets {
		if !assign(target, r[i]) {
			return fmt.Errorf("column %d: %T does not fit %T", i, r[i], target)
		}
	}
	return nil
}

func assign(target any, value driver.Value) bool {
	switch target := target.(type) {
	case *int64:
		n, ok := value.(int64)
		*target = n
		return ok
	case *string:
		text, ok := value.(string)
		*target = text
		return ok
	case *[]byte:
		bytes, ok := value.([]byte)
		*target = bytes
		return ok || value == nil
	case **int64:
		n, ok := value.(int64)
		if ok {
			*target = &n
		}
		return ok || value == nil
	case **string:
		text, ok := value.(string)
		if ok {
			*target = &text
		}
		return ok || value == nil
	}
	return false
}
