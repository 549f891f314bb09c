package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/store"
)

// classify turns SQLite's errors into the port's. It is the one place that does, but for
// commits, whose outcome may be unknown.
func classify(err error) error {
	var failed *failure
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &failed):
		return err
	case failed.code == sqlitelib.SQLITE_CONSTRAINT_UNIQUE || failed.code == sqlitelib.SQLITE_CONSTRAINT_PRIMARYKEY:
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	case failed.unavailable():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, failed.named(err))
	}
	return err
}

// unavailable reports whether the failure is the file's, or the system's below it, and
// not one of what was asked. A file that is damaged cannot be read, which is all that a
// caller needs to know; the operator is told by the readiness and the log.
func (f *failure) unavailable() bool {
	switch f.code & 0xff {
	case sqlitelib.SQLITE_BUSY, sqlitelib.SQLITE_LOCKED, sqlitelib.SQLITE_FULL, sqlitelib.SQLITE_IOERR,
		sqlitelib.SQLITE_CANTOPEN, sqlitelib.SQLITE_READONLY, sqlitelib.SQLITE_INTERRUPT, sqlitelib.SQLITE_NOMEM,
		sqlitelib.SQLITE_PROTOCOL, sqlitelib.SQLITE_PERM, sqlitelib.SQLITE_AUTH, sqlitelib.SQLITE_CORRUPT, sqlitelib.SQLITE_NOTADB:
		return true
	}
	return false
}

// named adds what is wrong with the store, where the failure tells.
func (f *failure) named(err error) error {
	if fault := f.fault(); fault != nil {
		return fmt.Errorf("%w: %w", fault, err)
	}
	return err
}

func (f *failure) fault() error {
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
