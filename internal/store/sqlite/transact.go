package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Transact implements store.Writer.
func (s *Store) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := s.recent.begin(tx); err != nil {
			return err
		}
		tx.recent = s.recent
		var err error
		if tx.loaded, err = tx.load(needs); err != nil {
			return err
		}
		if tx.changes, err = plan(tx.loaded); err != nil {
			return planError{err}
		}
		return tx.apply(tx.changes)
	})
}

// planError carries an error of the caller's past classify, untouched.
type planError struct{ error }

// transaction is one unit of work on the writing connection.
type transaction struct {
	*connection
	recent  *recentRecords
	numbers map[ledger.ChainID]int64
	// statuses are those that the chains were loaded with.
	statuses map[ledger.ChainID]ledger.ChainStatus
	loaded   *store.Loaded
	changes  *store.Changes // nil for writes that are not of a plan's making
}

// writing runs body in one IMMEDIATE transaction and commits it.
func (s *Store) writing(ctx context.Context, body func(*transaction) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	if s.writer == nil {
		return fmt.Errorf("%w: closed", store.ErrUnavailable)
	}
	tx := &transaction{
		connection: s.writer, numbers: make(map[ledger.ChainID]int64),
		statuses: make(map[ledger.ChainID]ledger.ChainStatus),
	}
	if err := tx.exec("BEGIN IMMEDIATE"); err != nil {
		return classify(err)
	}
	if err := body(tx); err != nil {
		if rollbackErr := tx.exec("ROLLBACK"); rollbackErr != nil {
			return errors.Join(classify(err), rollbackErr)
		}
		var own planError
		if errors.As(err, &own) {
			return own.error
		}
		return classify(err)
	}
	if err := tx.commit(); err != nil {
		s.recent.forget()
		return err
	}
	if tx.changes != nil {
		s.recent.committed(tx)
		s.watchers.announce(tx.changes.Signals)
	}
	s.checkpoints.notice(tx.connection.takeFrames())
	return nil
}

// commit reports an unknown outcome for every failure but a refused lock: after
// a failed write or sync of the log nobody can say what a crash would leave.
func (tx *transaction) commit() error {
	err := tx.exec("COMMIT")
	if err == nil {
		return nil
	}
	rollbackErr := tx.exec("ROLLBACK")
	var failed *failure
	if !errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
	}
	if failed.code&0xff == sqlitelib.SQLITE_BUSY {
		return errors.Join(classify(err), rollbackErr)
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, failed.named(err))
}

// lists yields slices of at most maxList elements, each padded to a power of two
// by repeating its last element, so that a handful of prepared statements serves
// lists of any length.
func lists[T any](elements []T, visit func(padded []T) error) error {
	const maxList = 256
	for len(elements) > 0 {
		n := min(len(elements), maxList)
		size := 1
		for size < n {
			size *= 2
		}
		padded := make([]T, size)
		copy(padded, elements[:n])
		for i := n; i < size; i++ {
			padded[i] = elements[n-1]
		}
		if err := visit(padded); err != nil {
			return err
		}
		elements = elements[n:]
	}
	return nil
}

func marks(n int, one string) string {
	return strings.TrimSuffix(strings.Repeat(one+",", n), ",")
}
