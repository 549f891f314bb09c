package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// roundTrip is a set of statements that are sent together and whose results are read together.
type roundTrip struct {
	statements []statement
}

// statement has its parameters in binary form. each is called for every row of the result.
type statement struct {
	sql    string
	params [][]byte
	each   func(*row) error
	// affects is the number of rows that the statement must change, and what describes them. what
	// is empty if any number is fine.
	affects int
	what    string
}

func (rt *roundTrip) send(sql string, params ...[]byte) {
	rt.statements = append(rt.statements, statement{sql: sql, params: params})
}

// update sends a statement that must change exactly count rows.
func (rt *roundTrip) update(count int, what, sql string, params ...[]byte) {
	rt.statements = append(rt.statements, statement{sql: sql, params: params, affects: count, what: what})
}

// fetch sends a statement and passes its rows to keep.
func fetch[T any](rt *roundTrip, sql string, read func(*row) T, keep func(T), params ...[]byte) {
	rt.statements = append(rt.statements, statement{sql: sql, params: params, each: func(r *row) error {
		record := read(r)
		if err := r.end(); err != nil {
			return err
		}
		keep(record)
		return nil
	}})
}

// fetchNow makes a round trip for one statement and passes its rows to keep.
func fetchNow[T any](ctx context.Context, s *Store, what, sql string, read func(*row) T, keep func(T), params ...[]byte) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	rt := new(roundTrip)
	fetch(rt, sql, read, keep, params...)
	return s.resetIfGone(explain(what, rt.run(ctx, conn.Conn())))
}

// binaryForm is the format of all parameters and columns.
var binaryForm = []int16{pgx.BinaryFormatCode}

// run makes the round trip. It first prepares the statements that the connection has not seen yet.
func (rt *roundTrip) run(ctx context.Context, conn *pgx.Conn) error {
	prepared := make([]*pgconn.StatementDescription, len(rt.statements))
	for i := range rt.statements {
		var err error
		// With the statement's text as its name, Prepare first looks in the connection's cache.
		if prepared[i], err = conn.Prepare(ctx, rt.statements[i].sql, rt.statements[i].sql); err != nil {
			return err
		}
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	for i := range rt.statements {
		pipeline.SendQueryStatement(prepared[i], rt.statements[i].params, binaryForm, binaryForm)
	}
	err := pipeline.Sync()
	if err == nil {
		err = rt.read(pipeline)
	}
	// Close reads the remaining results, so that the connection stays usable.
	if closeErr := pipeline.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (rt *roundTrip) read(pipeline *pgconn.Pipeline) error {
	for i := range rt.statements {
		results, err := pipeline.GetResults()
		if err != nil {
			return err
		}
		answer, ok := results.(*pgconn.ResultReader)
		if !ok {
			return errUnexpectedForm
		}
		if err := rt.statements[i].read(answer); err != nil {
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
