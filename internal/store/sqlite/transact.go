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
		if err := s.cache.validate(tx.connection); err != nil {
			return err
		}
		tx.cache = s.cache
		var err error
		if tx.loaded, err = tx.load(needs); err != nil {
			return err
		}
		if tx.changes, err = plan(tx.loaded); err != nil {
			return callerError{err}
		}
		if tx.ended() { // without a transaction, each write would be committed by itself
			return fmt.Errorf("%w: a read of the transaction failed", store.ErrUnavailable)
		}
		return tx.apply(tx.changes)
	})
}

// callerError marks an error of plan or visit, which is returned as it is and not
// classified.
type callerError struct{ error }

// transaction is one write transaction. It uses the writing connection and so holds
// Store.mu.
type transaction struct {
	*connection
	cache    *recordCache
	numbers  map[ledger.ChainID]int64              // row numbers; 0: no such chain
	statuses map[ledger.ChainID]ledger.ChainStatus // as loaded
	loaded   *store.Loaded
	changes  *store.Changes // nil for a write that changes no cached record
}

// writing runs body in one IMMEDIATE transaction and commits it. An error or a panic of
// body rolls back.
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
	defer tx.rollback()
	if err := body(tx); err != nil {
		var own callerError
		if errors.As(err, &own) {
			return own.error
		}
		return classify(err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	if err := tx.commit(); err != nil {
		s.cache.clear()
		return err
	}
	if tx.changes != nil {
		s.cache.update(tx)
		s.watchers.announce(tx.changes.Signals)
	}
	s.checkpoints.committed(tx.connection.takeFrames())
	return nil
}

// Epoch implements store.Reader. It asks SQLite between two write transactions, and does not wait for
// one. What a transaction has found out would not do: after some errors SQLite ends it by itself,
// and others can commit before its end is noticed.
func (s *Store) Epoch() int64 {
	if !s.mu.TryLock() {
		return 0
	}
	defer s.mu.Unlock()
	if s.writer == nil || s.cache.validate(s.writer) != nil {
		return 0
	}
	return s.cache.epoch
}

// commit returns ErrOutcomeUnknown for every failure but a refused lock: after a
// failed write or sync of the log, a crash may leave either outcome.
func (tx *transaction) commit() error {
	err := tx.exec("COMMIT")
	if err == nil {
		return nil
	}
	var failed *sqliteError
	if !errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
	}
	if failed.code&0xff == sqlitelib.SQLITE_BUSY {
		return classify(err)
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, failed.withCause(err))
}

// rollback ends a transaction that was not committed. SQLite has already rolled back by
// itself if a read or a write failed.
func (tx *transaction) rollback() {
	if !tx.ended() {
		_ = tx.exec("ROLLBACK") // if it fails, so does BEGIN of the next transaction
	}
}

// batches calls visit with slices of at most maxBatch elements, each padded to a
// power of two by repeating its last element, so that a few prepared statements serve
// lists of any length.
func batches[T any](elements []T, visit func(padded []T) error) error {
	const maxBatch = 256
	for len(elements) > 0 {
		n := min(len(elements), maxBatch)
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

// placeholders repeats one n times, separated by commas.
func placeholders(n int, one string) string {
	return strings.TrimSuffix(strings.Repeat(one+",", n), ",")
}
