package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/store"
)

// readers is a small pool of read-only connections. Each keeps its prepared
// statements: most reads are one lookup, which is cheaper than preparing it. The
// connection that was released last is used next, because its pages are still in the
// processor's caches.
type readers struct {
	path  string
	slots chan struct{} // holds one element for each connection in use

	mu     sync.Mutex // guards the fields below
	idle   []*connection
	closed bool
}

const (
	maxReaders = 16
	// readerCache is in KiB. It is small because each reader has one; the operating
	// system caches the file too.
	readerCache = "cache_size(-2000)"
)

func newReaders(path string) *readers {
	return &readers{path: path, slots: make(chan struct{}, maxReaders)}
}

// acquire waits until fewer than maxReaders connections are in use, or ctx ends.
func (r *readers) acquire(ctx context.Context) (*connection, error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	conn, err := r.take()
	if conn == nil && err == nil {
		conn, err = connect(r.path, "query_only(1)", readerCache)
	}
	if err != nil {
		<-r.slots
		return nil, classify(err)
	}
	return conn, nil
}

// take returns an idle connection, or nil when there is none.
func (r *readers) take() (*connection, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("%w: closed", store.ErrUnavailable)
	}
	last := len(r.idle) - 1
	if last < 0 {
		return nil, nil
	}
	conn := r.idle[last]
	r.idle = r.idle[:last]
	return conn, nil
}

// release gives a connection back. One whose transaction could not be ended is closed: it would
// read an old state of the file for ever.
func (r *readers) release(conn *connection) {
	if conn.ended() {
		r.mu.Lock()
		r.idle = append(r.idle, conn)
		r.mu.Unlock()
	} else {
		_ = conn.close() // it was only read with
	}
	<-r.slots
}

// close waits for the reads in progress.
func (r *readers) close() error {
	for range maxReaders {
		r.slots <- struct{}{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	var errs []error
	for _, conn := range r.idle {
		errs = append(errs, conn.close())
	}
	r.idle = nil
	for range maxReaders {
		<-r.slots
	}
	return errors.Join(errs...)
}

// read runs one query on a connection of the pool.
func (s *Store) read(ctx context.Context, query string, args []any, scan func(row) error) error {
	conn, err := s.readers.acquire(ctx)
	if err != nil {
		return err
	}
	defer s.readers.release(conn)
	return classify(conn.query(query, args, scan))
}

// readOne reads one record; ErrNotFound when there is none.
func readOne[T any](ctx context.Context, s *Store, query string, args []any, scan func(row) (T, error)) (found T, err error) {
	rows := 0
	err = s.read(ctx, query, args, func(r row) (err error) {
		rows++
		found, err = scan(r)
		return err
	})
	if err == nil && rows == 0 {
		err = store.ErrNotFound
	}
	return found, err
}

// above returns the comparison with the last id of the page before. A list begins with the smallest
// id there is: the service gives it to no row, but whoever writes to the database can.
func above(after uuid.UUID) string {
	if after == uuid.Nil {
		return ">="
	}
	return ">"
}

// readAll reads a list.
func readAll[T any](ctx context.Context, s *Store, query string, args []any, scan func(row) (T, error)) ([]T, error) {
	conn, err := s.readers.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer s.readers.release(conn)
	found, err := all(conn, query, args, scan)
	return found, classify(err)
}

// all is readAll on a given connection.
func all[T any](conn *connection, query string, args []any, scan func(row) (T, error)) ([]T, error) {
	var found []T
	err := conn.query(query, args, func(r row) error {
		one, err := scan(r)
		if err == nil {
			found = append(found, one)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// scanPragmas map the file into memory, as much of it as SQLite can, and keep a small
// page cache (KiB): a scan reads each page once.
var scanPragmas = []string{"query_only(1)", mapped, "cache_size(-512)"}

// An idle connection maps nothing (the sizes are in bytes), because mapped pages count
// as the server's memory.
const mapped, unmapped = "mmap_size(2147418112)", "mmap_size(0)"

// scanners are the connections for scans. Their number is not limited, so that a scan
// can start another one. One idle connection is kept: opening one reads the whole
// schema, which costs more than a scan of a small ledger.
type scanners struct {
	path string

	mu     sync.Mutex // guards the fields below
	idle   *connection
	closed bool
}

func (s *scanners) acquire() (*connection, error) {
	s.mu.Lock()
	conn := s.idle
	s.idle = nil
	s.mu.Unlock()
	if conn == nil {
		return connect(s.path, scanPragmas...)
	}
	if err := conn.exec("PRAGMA " + mapped); err != nil {
		return nil, errors.Join(err, conn.close())
	}
	return conn, nil
}

func (s *scanners) release(conn *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.idle != nil || conn.exec("PRAGMA "+unmapped) != nil {
		return conn.close()
	}
	s.idle = conn
	return nil
}

// close closes the idle connection. Scans in progress close theirs when they end.
func (s *scanners) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.idle == nil {
		return nil
	}
	conn := s.idle
	s.idle = nil
	return conn.close()
}

// maxSnapshot is how long a scan may keep one snapshot of the file. As long as a
// snapshot exists, the write-ahead log cannot be reused from its start, and grows.
const maxSnapshot = 250 * time.Millisecond

// errSnapshotExpired makes a scan continue with a new snapshot.
var errSnapshotExpired = errors.New("the snapshot of a scan expired")

// query is a statement with its parameters.
type query struct {
	text string
	args []any
}

// scan reads a large part of the store. It has a connection of its own, which maps the
// file instead of copying it page by page, so that it neither blocks the pool of readers
// nor waits for it when visit reads. After maxSnapshot it releases its snapshot and
// continues with the query that rest returns: the rows after those visited. A nil rest
// says that the scan is short. An error of visit is returned as it is.
func (s *Store) scan(ctx context.Context, all query, rest func() query, visit func(row) error) (err error) {
	conn, err := s.scanners.acquire()
	if err != nil {
		return classify(err)
	}
	defer func() {
		if closeErr := s.scanners.release(conn); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	for next := all; ; next = rest() {
		ends := time.Now().Add(s.maxSnapshot)
		err = conn.query(next.text, next.args, func(r row) error {
			if err := visit(r); err != nil {
				return callerError{err}
			}
			if rest != nil && !time.Now().Before(ends) {
				return errSnapshotExpired
			}
			return ctx.Err()
		})
		if !errors.Is(err, errSnapshotExpired) || ctx.Err() != nil {
			break
		}
	}
	var own callerError
	switch {
	case errors.As(err, &own):
		return own.error
	case ctx.Err() != nil && err != nil:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	return classify(err)
}
