package sqlite

import "context"

// The store's queries, for tests of their plans.
var ApprovalsQuery = approvalsQuery

const (
	HeadAnchorsQuery = headAnchorsQuery
	KeyByHashQuery   = keyByHashQuery
	ScanRest         = scanRest
)

// IdleReaders returns the number of open reading connections that are not in use.
func (s *Store) IdleReaders() int {
	s.readers.mu.Lock()
	defer s.readers.mu.Unlock()
	return len(s.readers.idle)
}

// LeaveOpen gives a reading connection back with its transaction open.
func (s *Store) LeaveOpen(ctx context.Context) error {
	conn, err := s.readers.acquire(ctx)
	if err != nil {
		return err
	}
	defer s.readers.release(conn)
	if err := conn.exec("BEGIN"); err != nil {
		return err
	}
	return conn.exec("SELECT count(*) FROM organizations")
}

// Explain returns the steps of SQLite's plan for a query.
func (s *Store) Explain(ctx context.Context, query string, args ...any) ([]string, error) {
	return readAll(ctx, s, "EXPLAIN QUERY PLAN "+query, args, func(r row) (step string, err error) {
		err = r.skip(3).Scan(&step)
		return step, err
	})
}

// PageSize returns the size of the file's pages and of the frames that the checkpoints count, in bytes.
func (s *Store) PageSize(ctx context.Context) (page, frame int64, err error) {
	err = s.read(ctx, "PRAGMA page_size", nil, func(r row) error { return r.Scan(&page) })
	return page, s.checkpoints.frameSize, err
}

// MaxLog is the limit of the write-ahead log's file, in bytes.
const MaxLog = maxLog

// ScanInShortTurns makes scans renew their snapshot after each row.
func (s *Store) ScanInShortTurns() { s.maxSnapshot = 0 }
