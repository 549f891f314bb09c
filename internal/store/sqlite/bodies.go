package sqlite

import (
	"context"
	"fmt"
	"unsafe"

	"modernc.org/libc"
	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// ScanBodies implements store.Reader. It calls SQLite itself, below the driver:
// the driver copies every value it hands out, and at the speed at which receipts
// are hashed the copying is most of the work. Here the bytes are lent from
// SQLite's own memory for the length of a visit.
func (s *Store) ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error {
	span, err := s.spanOf(ctx, org, from, to)
	if err != nil {
		return err
	}
	scan, err := openBodyScan(s.path, org, span)
	if err != nil {
		return err
	}
	defer scan.close()
	for {
		body, err := scan.next()
		if err != nil || body == nil {
			return err
		}
		if err := visit(body); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
	}
}

// bodyScan is one query on a connection of its own.
type bodyScan struct {
	tls       *libc.TLS
	db        uintptr
	statement uintptr
	held      []uintptr // memory of SQLite's side to be freed
}

// span is where a range of receipts lies: by sequence, and by row.
type span struct {
	from, to    int64
	first, last int64 // rows
	dense       bool  // most rows between them are of the range
}

// spanOf looks at the index alone. Receipts are appended in order of their
// sequence, so those of one organization lie in the table in that order too, and
// where few others lie between them the table is read straight through: faster by
// a descent of its tree for each receipt. Rows that someone has put into another
// order come out in that order, and the walk over them says so.
func (s *Store) spanOf(ctx context.Context, org ledger.OrgID, from, to int64) (*span, error) {
	found := &span{from: from, to: to}
	query := "SELECT coalesce(min(no), 0), coalesce(max(no), 0), count(*) FROM receipts WHERE org_id = ? AND sequence BETWEEN ? AND ?"
	err := s.read(ctx, query, []any{org.UUID[:], from, to}, func(rows row) error {
		var count int64
		err := rows.Scan(&found.first, &found.last, &count)
		found.dense = found.last-found.first < 2*count
		return err
	})
	return found, err
}

const (
	indexedQuery = "SELECT body FROM receipts WHERE org_id = ?1 AND sequence BETWEEN ?2 AND ?3 ORDER BY sequence"
	// The plus signs keep the planner from the index of sequences.
	denseQuery = "SELECT body FROM receipts WHERE no BETWEEN ?4 AND ?5 AND +org_id = ?1 AND +sequence BETWEEN ?2 AND ?3 ORDER BY no"
)

func (s *span) query() string {
	if s.dense {
		return denseQuery
	}
	return indexedQuery
}

func openBodyScan(path string, org ledger.OrgID, span *span) (*bodyScan, error) {
	s := &bodyScan{tls: libc.NewTLS()}
	if err := s.open(path, org, span); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *bodyScan) open(path string, org ledger.OrgID, span *span) error {
	out := s.tls.Alloc(int(unsafe.Sizeof(uintptr(0))))
	defer s.tls.Free(int(unsafe.Sizeof(uintptr(0))))
	file, err := s.text(path)
	if err != nil {
		return err
	}
	rc := sqlitelib.Xsqlite3_open_v2(s.tls, file, out, sqlitelib.SQLITE_OPEN_READWRITE, 0)
	s.db = *(*uintptr)(pointer(out))
	if err := s.check(rc); err != nil {
		return err
	}
	for _, pragma := range []string{"PRAGMA busy_timeout = 10000", "PRAGMA query_only = 1", "PRAGMA mmap_size = 1073741824"} {
		statement, err := s.text(pragma)
		if err != nil {
			return err
		}
		if err := s.check(sqlitelib.Xsqlite3_exec(s.tls, s.db, statement, 0, 0, 0)); err != nil {
			return err
		}
	}
	query, err := s.text(span.query())
	if err != nil {
		return err
	}
	if err := s.check(sqlitelib.Xsqlite3_prepare_v2(s.tls, s.db, query, -1, out, 0)); err != nil {
		return err
	}
	s.statement = *(*uintptr)(pointer(out))
	id, err := s.text(string(org.UUID[:]))
	if err != nil {
		return err
	}
	if err := s.check(sqlitelib.Xsqlite3_bind_blob(s.tls, s.statement, 1, id, int32(len(org.UUID)), 0)); err != nil {
		return err
	}
	bound := []int64{span.from, span.to}
	if span.dense {
		bound = append(bound, span.first, span.last)
	}
	for i, value := range bound {
		if err := s.check(sqlitelib.Xsqlite3_bind_int64(s.tls, s.statement, int32(i+2), value)); err != nil {
			return err
		}
	}
	return nil
}

// text copies a string to SQLite's side, where it stays until close.
func (s *bodyScan) text(value string) (uintptr, error) {
	p, err := libc.CString(value)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	s.held = append(s.held, p)
	return p, nil
}

// next returns the next body, nil after the last.
func (s *bodyScan) next() ([]byte, error) {
	switch rc := sqlitelib.Xsqlite3_step(s.tls, s.statement); rc {
	case sqlitelib.SQLITE_ROW:
		at := sqlitelib.Xsqlite3_column_blob(s.tls, s.statement, 0)
		size := sqlitelib.Xsqlite3_column_bytes(s.tls, s.statement, 0)
		if at == 0 {
			return []byte{}, nil
		}
		return unsafe.Slice((*byte)(pointer(at)), size), nil
	case sqlitelib.SQLITE_DONE:
		return nil, nil
	default:
		return nil, s.check(rc)
	}
}

func (s *bodyScan) check(rc int32) error {
	if rc == sqlitelib.SQLITE_OK {
		return nil
	}
	return fmt.Errorf("%w: scan receipts: SQLite result %d", store.ErrUnavailable, rc)
}

func (s *bodyScan) close() {
	sqlitelib.Xsqlite3_finalize(s.tls, s.statement)
	sqlitelib.Xsqlite3_close_v2(s.tls, s.db)
	for _, p := range s.held {
		libc.Xfree(s.tls, p)
	}
	s.tls.Close()
}

// pointer reads an address of SQLite's side, which the garbage collector does
// not move or free, as a pointer.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
