package postgres

import (
	"context"
	"errors"
	"fmt"
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
	// commitTimeout is generous: a standby may be slow, and giving up turns a
	// commit that would have been confirmed into an unknown one.
	commitTimeout = 60 * time.Second
)

// errNothingToWrite makes inTransaction roll back and report success: what was
// only read needs no commit, which would wait for the disk.
var errNothingToWrite = errors.New("nothing to write")

// inTransaction runs work on one connection and commits what it did. Work must
// begin the transaction itself, which lets it send the beginning together with
// its first statements. An error of work is returned as it is and nothing is
// written.
func (s *Store) inTransaction(ctx context.Context, work func(*pgx.Conn) error) error {
	pooled, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	// The pool throws away a connection that is still inside a transaction, so a
	// panic in work also rolls back.
	defer pooled.Release()
	conn := pooled.Conn()
	if err := work(conn); err != nil {
		rollback(ctx, conn)
		if errors.Is(err, errNothingToWrite) {
			return nil
		}
		return err
	}
	return commit(ctx, conn.PgConn())
}

func begin(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, beginSQL)
	return explain("begin", err)
}

// change is inTransaction for the writes that are rare: one statement after
// another.
func (s *Store) change(ctx context.Context, work func(*pgx.Conn) error) error {
	return s.inTransaction(ctx, func(conn *pgx.Conn) error {
		if err := begin(ctx, conn); err != nil {
			return err
		}
		if err := work(conn); err != nil {
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
func commit(ctx context.Context, conn *pgconn.PgConn) error {
	outcome := askCommit(conn)
	if errors.Is(outcome, store.ErrOutcomeUnknown) {
		_ = conn.Conn().Close()
		return outcome
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
	return outcome
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
// A constraint or a conflict is found before anything is; of all else, such as a
// shutdown that comes between, the answer cannot tell.
func rolledBack(refusal *pgconn.PgError) bool {
	return refusal.SeverityUnlocalized == "ERROR" && (class(refusal) == "23" || class(refusal) == "40")
}

func unknown(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, cause)
}
