package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sqlitedriver "modernc.org/sqlite"
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
	changes  *store.Changes // of chains, nil for other writes
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
	} else {
		s.recent.forget()
	}
	s.written = s.checkpoints.notice(s.written + tx.connection.takeWritten())
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
	var failure *sqlitedriver.Error
	if errors.As(err, &failure) && failure.Code()&0xff == sqlitelib.SQLITE_BUSY {
		return errors.Join(classify(err), rollbackErr)
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
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

func (tx *transaction) apply(c *store.Changes) error {
	for _, chain := range c.NewChains {
		if err := tx.insertChain(chain); err != nil {
			return err
		}
	}
	for _, event := range c.NewEvents {
		err := tx.exec("INSERT INTO events (chain_no, sequence, idempotency_key, body, payload) VALUES (?, ?, ?, ?, ?)",
			tx.numbers[event.Chain], event.Sequence, orNull(event.IdempotencyKey), event.Body, event.Payload)
		if err != nil {
			return err
		}
	}
	for _, a := range c.NewAddenda {
		err := tx.exec("INSERT INTO addenda (chain_no, position, sequence, body) VALUES (?, ?, ?, ?)",
			tx.numbers[a.Chain], a.Position, a.Sequence, a.Body)
		if err != nil {
			return err
		}
	}
	for _, r := range c.NewReceipts {
		err := tx.exec("INSERT INTO receipts (id, org_id, sequence, chain_id, previous_hash, body) VALUES (?, ?, ?, ?, ?, ?)",
			r.ID.UUID[:], r.Org.UUID[:], r.Sequence, r.Chain.UUID[:], orEmpty(r.PreviousHash), r.Body)
		if err != nil {
			return err
		}
	}
	for _, chain := range c.States {
		if err := tx.updateState(chain); err != nil {
			return err
		}
	}
	for _, head := range c.Heads {
		if err := tx.putHead(head); err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) insertChain(c *store.ChainRecord) error {
	var no int64
	err := tx.query(`INSERT INTO chains (id, org_id, opened_by, external_id, environment, idempotency_key, body)
		VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING no`,
		[]any{c.ID.UUID[:], c.Org.UUID[:], c.OpenedBy.UUID[:], orNull(c.ExternalID), c.Environment, orNull(c.IdempotencyKey), c.Body},
		func(r row) error { return r.Scan(&no) })
	if err != nil {
		return err
	}
	tx.numbers[c.ID] = no
	return tx.exec("INSERT INTO chain_states (chain_no, org_id, status, state, mac) VALUES (?, ?, ?, ?, ?)",
		no, c.Org.UUID[:], string(c.Status), c.State, c.MAC)
}

// updateState leaves a status alone that has not changed: SQLite would write its
// place in the index anew all the same, for every recorded action.
func (tx *transaction) updateState(c *store.ChainRecord) error {
	no := tx.numbers[c.ID]
	if tx.statuses[c.ID] == c.Status {
		return tx.exec("UPDATE chain_states SET state = ?, mac = ? WHERE chain_no = ?", c.State, c.MAC, no)
	}
	return tx.exec("UPDATE chain_states SET status = ?, state = ?, mac = ? WHERE chain_no = ?", string(c.Status), c.State, c.MAC, no)
}

func (tx *transaction) putHead(head *ledger.Head) error {
	var last []byte
	if head.Last != nil {
		last = head.Last[:]
	}
	return tx.exec(`INSERT INTO heads (org_id, count, last_hash, key_id, mac) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (org_id) DO UPDATE SET count = excluded.count, last_hash = excluded.last_hash, key_id = excluded.key_id, mac = excluded.mac`,
		head.Org.UUID[:], head.Count, orEmpty(last), head.KeyID, head.MAC)
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
