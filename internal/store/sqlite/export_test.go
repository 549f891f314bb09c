package sqlite

import "context"

// What the store asks of SQLite, for tests of how SQLite answers it.
var ApprovalsQuery = approvalsQuery

const (
	HeadAnchorsQuery = headAnchorsQuery
	KeyByHashQuery   = keyByHashQuery
	ScanRest         = scanRest
)

// IdleReaders is how many connections for reading are open and not in use.
func (s *Store) IdleReaders() int {
	s.readers.mu.Lock()
	defer s.readers.mu.Unlock()
	return len(s.readers.idle)
}

// Explain is the plan that a connection of the store makes for a query, step by step.
func (s *Store) Explain(ctx context.Context, query string, args ...any) ([]string, error) {
	return readAll(ctx, s, "EXPLAIN QUERY PLAN "+query, args, func(r row) (step string, err error) {
		err = r.skip(3).Scan(&step)
		return step, err
	})
}

// MaxLog is how large the file of the write-ahead log may get, in bytes.
const MaxLog = maxLog

// ScanInShortTurns makes scans let go of their view after each row.
func (s *Store) ScanInShortTurns() { s.scanTurn = 0 }
