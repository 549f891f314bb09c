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

// Row locks give the order that the port promises, and each statement must see
// what was committed before its locks were granted: hence read committed,
// whatever the database's default is.
const beginSQL = "begin isolation level read committed"

const (
	rollbackTimeout = 5 * time.Second
	// stepTimeout bounds the part of a transaction before its commit. It is longer than
	// the server waits for locks.
	stepTimeout = 10 * time.Second
	// commitTimeout is how long a caller waits for the answer to a COMMIT. The commit
	// itself is never ended: see await.
	commitTimeout = 5 * time.Second
	// maxPending is how many commits may be without an answer before no transaction
	// is begun any more: each keeps a connection of the server's busy.
	maxPending = 16
)

var errPending = fmt.Errorf("%w: earlier commits are not confirmed yet", store.ErrUnavailable)

// errNothingToWrite makes inTransaction roll back and report success: what was
// only read needs no commit, which would wait for the disk.
var errNothingToWrite = errors.New("nothing to write")

// inTransaction runs work on one connection and commits what it did. Work must
// begin the transaction itself, which lets it send the beginning together with
// its first statements. An error of work is returned as it is and nothing is
// written.
func (s *Store) inTransaction(ctx context.Context, work func(context.Context, *pgx.Conn) error) error {
	if s.pending.Load() >= maxPending {
		return errPending
	}
	pooled, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	// The pool throws away a connection that is still inside a transaction, so a
	// panic in work also rolls back.
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
		return s.told(err)
	}
	late, err := commit(ctx, conn.PgConn())
	if late {
		conn, pooled = pooled.Hijack(), nil
		s.await(conn.PgConn())
	}
	return s.told(err)
}

// await keeps the connection of a COMMIT that was not answered in time until it is, or
// until the connection is lost. To close it would not end the commit, but hide it: the
// server would go on waiting for its standby, and a new connection for each caller that
// tries again would use up all that it has.
func (s *Store) await(conn *pgconn.PgConn) {
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

func begin(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, beginSQL)
	return explain("begin", err)
}

// change is inTransaction for the writes that are rare: one statement after
// another.
func (s *Store) change(ctx context.Context, work func(context.Context, *pgx.Conn) error) error {
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := begin(ctx, conn); err != nil {
			return err
		}
		if err := work(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, patientCommitSQL)
		return explain("prepare commit", err)
	})
}

func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx) // which rolls back too
	}
}

// patientCommitSQL is the last statement before a commit. A commit that waits
// for its standby must not be cut short by the statement timeout: the server
// would then report success for what the standby may never get.
const patientCommitSQL = "set local statement_timeout = 0"

// commit sends COMMIT and waits for the answer, whatever happens to the request
// that asked for it. It speaks the protocol itself because the driver, when a
// wait ends in an error, asks the server to cancel the statement, and a COMMIT
// must never be cancelled.
// It reports whether the answer is late, and may still come.
func commit(ctx context.Context, conn *pgconn.PgConn) (late bool, outcome error) {
	outcome = askCommit(conn)
	if errors.Is(outcome, store.ErrOutcomeUnknown) {
		if late = errors.Is(outcome, os.ErrDeadlineExceeded); !late {
			_ = conn.Conn().Close()
		}
		return late, outcome
	}
	// The outcome is settled; reading on only makes the connection usable again.
	// Where that fails, the pool throws it away.
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

// askCommit returns as soon as the fate of the transaction is known, or known
// to be unknown.
func askCommit(conn *pgconn.PgConn) error {
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
		settled, err := judge(message)
		if err != nil || settled {
			_ = wire.SetDeadline(time.Time{})
			return err
		}
	}
}

// judge reads one message of the answer to COMMIT.
func judge(message pgproto3.BackendMessage) (settled bool, err error) {
	switch message := message.(type) {
	case *pgproto3.NoticeResponse:
		// The server says success afterwards, for instance when the wait for the
		// standby was cut short and the standby may not have the transaction.
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

// rolledBack reports whether an answer to COMMIT means that nothing was written.
// A constraint or a conflict is found before anything is, and a session that was ended
// because it was idle has not come to its COMMIT; of all else, such as a
// shutdown that comes between, the answer cannot tell.
func rolledBack(refusal *pgconn.PgError) bool {
	return refusal.Code == codeIdleTooLong || refusal.SeverityUnlocalized == "ERROR" && (class(refusal) == "23" || class(refusal) == "40")
}

func unknown(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, cause)
}
