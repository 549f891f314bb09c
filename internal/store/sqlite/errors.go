package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/store"
)

// classify turns SQLite's errors into the port's. Only the errors of COMMIT, whose
// outcome may be unknown, are classified elsewhere: see transaction.commit.
func classify(err error) error {
	var failed *sqliteError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &failed):
		return err
	case failed.code == sqlitelib.SQLITE_CONSTRAINT_UNIQUE || failed.code == sqlitelib.SQLITE_CONSTRAINT_PRIMARYKEY:
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	case failed.unavailable():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, failed.withCause(err))
	}
	return err
}

// unavailable reports whether the file or the operating system failed, and not the
// statement. To a caller a damaged file is just unavailable; operators see the cause in
// the readiness check and the log.
func (f *sqliteError) unavailable() bool {
	switch f.code & 0xff {
	case sqlitelib.SQLITE_BUSY, sqlitelib.SQLITE_LOCKED, sqlitelib.SQLITE_FULL, sqlitelib.SQLITE_IOERR,
		sqlitelib.SQLITE_CANTOPEN, sqlitelib.SQLITE_READONLY, sqlitelib.SQLITE_INTERRUPT, sqlitelib.SQLITE_NOMEM,
		sqlitelib.SQLITE_PROTOCOL, sqlitelib.SQLITE_PERM, sqlitelib.SQLITE_AUTH, sqlitelib.SQLITE_CORRUPT, sqlitelib.SQLITE_NOTADB:
		return true
	}
	return false
}

// withCause wraps err with the cause that operators are told, where it is known.
func (f *sqliteError) withCause(err error) error {
	if cause := f.cause(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func (f *sqliteError) cause() error {
	switch {
	case f.code&0xff == sqlitelib.SQLITE_CORRUPT || f.code == sqlitelib.SQLITE_NOTADB:
		return store.ErrDamaged
	case f.code&0xff == sqlitelib.SQLITE_FULL || f.system == syscall.ENOSPC || f.system == syscall.EDQUOT:
		return store.ErrFull
	case f.code&0xff == sqlitelib.SQLITE_READONLY || f.system == syscall.EROFS:
		return store.ErrReadOnly
	case f.code&0xff == sqlitelib.SQLITE_IOERR:
		return store.ErrInputOutput
	}
	return nil
}
