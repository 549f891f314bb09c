package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"countersign/internal/store"
)

// Row locks provide the order that the port promises, and each statement must see everything that
// was committed before its locks were granted. This requires read committed, whatever the
// database's default is.
const beginSQL = "begin isolation level read committed"

const (
	rollbackTimeout = 5 * time.Second
	// stepTimeout bounds the part of a transaction before its commit. It is longer than the
	// server's lock_timeout.
	stepTimeout = 10 * time.Second
	// commitTimeout is how long a caller waits for the answer to a COMMIT. The commit itself is
	// never cancelled; see awaitAnswer.
	commitTimeout = 5 * time.Second
	// maxPending bounds the number of unanswered commits. Above it no new transaction starts,
	// because each of them occupies a connection of the server.
	maxPending = 16
)

var errPending = fmt.Errorf("%w: earlier commits are not confirmed yet", store.ErrUnavailable)

// errNothingToWrite makes inTransaction roll back and report success. A transaction that only read
// needs no commit, which would wait for the disk.
var errNothingToWrite = errors.New("nothing to write")

// inTransaction runs work on one connection and commits. work must begin the transaction itself, so
// that it can send BEGIN together with its first statements. If work fails, its error is returned
// unchanged and nothing is written.
func (s *Store) inTransaction(ctx context.Context, work func(context.Context, *pgx.Conn) error) error {
	if s.pending.Load() >= maxPending {
		return errPending
	}
	pooled, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	// The pool closes a connection that is still in a transaction, so a panic in work also rolls
	// back.
	defer func() {
		if pooled != nil {
			pooled.Release()
		}
	}()
	conn := pooled.Conn()
	steps, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := work(steps, conn); err != nil {
		rollback(ctx, conn)
		if errors.Is(err, errNothingToWrite) {
			return nil
		}
		return s.resetIfGone(err)
	}
	late, err := commit(ctx, conn.PgConn())
	if late {
		conn, pooled = pooled.Hijack(), nil
		s.awaitAnswer(conn.PgConn())
	}
	return s.resetIfGone(err)
}

// awaitAnswer holds on to the connection of an unanswered COMMIT until the answer comes or the
// connection is lost. Closing the connection would not end the commit: the server would keep
// waiting for its standby, and retries on new connections would use up all of the server's
// connections.
func (s *Store) awaitAnswer(conn *pgconn.PgConn) {
	s.pending.Add(1)
	go func() {
		defer s.pending.Add(-1)
		_ = conn.Conn().SetDeadline(time.Time{})
		for {
			message, err := conn.Frontend().Receive()
			if err != nil {
				break
			}
			if _, ready := message.(*pgproto3.ReadyForQuery); ready {
				break
			}
		}
		_ = conn.Conn().Close()
	}()
}

// change is inTransaction for rare writes, which run one statement after another.
func (s *Store) change(ctx context.Context, work func(context.Context, *pgx.Conn) error) error {
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, beginSQL); err != nil {
			return explain("begin", err)
		}
		if err := work(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, noTimeoutSQL)
		return explain("prepare commit", err)
	})
}

// runTransaction is inTransaction for statements that are known beforehand: they take one round trip
// plus the commit.
func (s *Store) runTransaction(ctx context.Context, what string, rt *roundTrip) error {
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		whole := new(roundTrip)
		whole.send(beginSQL)
		whole.statements = append(whole.statements, rt.statements...)
		whole.send(noTimeoutSQL)
		return explain(what, whole.run(ctx, conn))
	})
}

func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx) // this also rolls back
	}
}

// noTimeoutSQL is the last statement before a commit. The statement timeout must not interrupt a
// commit that waits for its standby: the server would then report success although the standby may
// never receive the transaction.
const noTimeoutSQL = "set local statement_timeout = 0"

// commit sends COMMIT and waits for the answer, even if the request is cancelled. It speaks the
// protocol itself, because the driver would ask the server to cancel the statement if the wait
// failed, and a COMMIT must never be cancelled. late reports that the answer may still come.
func commit(ctx context.Context, conn *pgconn.PgConn) (late bool, outcome error) {
	outcome = sendCommit(conn)
	if errors.Is(outcome, store.ErrOutcomeUnknown) {
		if late = errors.Is(outcome, os.ErrDeadlineExceeded); !late {
			_ = conn.Conn().Close()
		}
		return late, outcome
	}
	// The outcome is known. Reading on only makes the connection usable again; if it fails, the
	// pool closes the connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	for {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			break
		}
		if _, ready := message.(*pgproto3.ReadyForQuery); ready {
			break
		}
	}
	return false, outcome
}

// sendCommit returns as soon as the outcome of the transaction is known, or known to be unknown.
func sendCommit(conn *pgconn.PgConn) error {
	wire := conn.Conn()
	if err := wire.SetDeadline(time.Now().Add(commitTimeout)); err != nil {
		return unknown(err)
	}
	frontend := conn.Frontend()
	frontend.Send(&pgproto3.Query{String: "commit"})
	if err := frontend.Flush(); err != nil {
		return unknown(err)
	}
	for {
		message, err := frontend.Receive()
		if err != nil {
			return unknown(err)
		}
		settled, err := commitOutcome(message)
		if err != nil || settled {
			_ = wire.SetDeadline(time.Time{})
			return err
		}
	}
}

// commitOutcome interprets one message of the answer to COMMIT.
func commitOutcome(message pgproto3.BackendMessage) (settled bool, err error) {
	switch message := message.(type) {
	case *pgproto3.NoticeResponse:
		// The server reports success afterwards, for example if its wait for the standby was
		// interrupted and the standby may not have the transaction.
		return false, fmt.Errorf("%w: the server warned: %s (SQLSTATE %s)", store.ErrOutcomeUnknown, message.Message, message.Code)
	case *pgproto3.ErrorResponse:
		refusal := pgconn.ErrorResponseToPgError(message)
		if rolledBack(refusal) {
			return true, explain("commit", refusal)
		}
		return false, unknown(describe(refusal))
	case *pgproto3.CommandComplete:
		if string(message.CommandTag) != "COMMIT" {
			return true, fmt.Errorf("commit: %w: the server rolled back", store.ErrUnavailable)
		}
		return true, nil
	}
	return false, nil
}

// rolledBack reports whether an answer to COMMIT means that nothing was written. Constraints and
// conflicts are detected before the commit, and a session that was terminated because it was idle
// never received its COMMIT. Anything else, such as a shutdown, leaves the outcome unknown.
func rolledBack(refusal *pgconn.PgError) bool {
	return refusal.Code == codeIdleTooLong || refusal.SeverityUnlocalized == "ERROR" && (class(refusal) == "23" || class(refusal) == "40")
}

func unknown(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, cause)
}
