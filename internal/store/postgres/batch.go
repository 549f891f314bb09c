package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// exchange is one round trip: statements that are sent together, and whose
// answers are read together.
type exchange struct {
	statements []statement
}

// statement has its parameters in binary form and shows its rows to each.
type statement struct {
	sql    string
	params [][]byte
	each   func(*row) error
	// affects is how many rows the statement must change, and what they are; a
	// statement that may change any number names none.
	affects int
	what    string
}

func (x *exchange) send(sql string, params ...[]byte) {
	x.statements = append(x.statements, statement{sql: sql, params: params})
}

// update sends a statement that must find all its rows.
func (x *exchange) update(count int, what, sql string, params ...[]byte) {
	x.statements = append(x.statements, statement{sql: sql, params: params, affects: count, what: what})
}

// ask sends a statement whose rows go to keep.
func ask[T any](x *exchange, sql string, read func(*row) T, keep func(T), params ...[]byte) {
	x.statements = append(x.statements, statement{sql: sql, params: params, each: func(r *row) error {
		record := read(r)
		if err := r.end(); err != nil {
			return err
		}
		keep(record)
		return nil
	}})
}

// askAlone makes a round trip for one statement, whose rows go to keep.
func askAlone[T any](ctx context.Context, s *Store, what, sql string, read func(*row) T, keep func(T), params ...[]byte) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	x := new(exchange)
	ask(x, sql, read, keep, params...)
	return s.told(explain(what, x.run(ctx, conn.Conn())))
}

// binaryForm is that of all parameters and of all columns.
var binaryForm = []int16{pgx.BinaryFormatCode}

// run makes the round trip. A connection that sees a statement for the first time
// prepares it before.
func (x *exchange) run(ctx context.Context, conn *pgx.Conn) error {
	prepared := make([]*pgconn.StatementDescription, len(x.statements))
	for i := range x.statements {
		var err error
		// Under its own text as the name, this looks in the connection's memory first.
		if prepared[i], err = conn.Prepare(ctx, x.statements[i].sql, x.statements[i].sql); err != nil {
			return err
		}
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	for i := range x.statements {
		pipeline.SendQueryStatement(prepared[i], x.statements[i].params, binaryForm, binaryForm)
	}
	err := pipeline.Sync()
	if err == nil {
		err = x.read(pipeline)
	}
	// Whatever was not read is read now, so that the connection stays usable.
	if closeErr := pipeline.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (x *exchange) read(pipeline *pgconn.Pipeline) error {
	for i := range x.statements {
		results, err := pipeline.GetResults()
		if err != nil {
			return err
		}
		answer, ok := results.(*pgconn.ResultReader)
		if !ok {
			return errUnexpectedForm
		}
		if err := x.statements[i].read(answer); err != nil {
			return err
		}
	}
	return nil
}

func (s *statement) read(answer *pgconn.ResultReader) error {
	for s.each != nil && answer.NextRow() {
		if err := s.each(&row{values: answer.Values()}); err != nil {
			return err
		}
	}
	tag, err := answer.Close()
	if err == nil && s.what != "" {
		err = expect(tag, s.affects, s.what)
	}
	return err
}
