package sqlite

// What the store asks of SQLite, for tests of how SQLite answers it.
var ApprovalsQuery = approvalsQuery

const (
	HeadAnchorsQuery = headAnchorsQuery
	KeyByHashQuery   = keyByHashQuery
)

// IdleReaders is how many connections for reading are open and not in use.
func (s *Store) IdleReaders() int {
	s.readers.mu.Lock()
	defer s.readers.mu.Unlock()
	return len(s.readers.idle)
}
