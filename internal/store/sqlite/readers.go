package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"countersign/internal/store"
)

// readers is a small pool of connections that only read. Each keeps its prepared
// statements: most reads are one look-up, which costs less than preparing it. The
// connection used last is used next: its pages are the ones in the processor's
// caches, and a quiet service keeps few of them.
type readers struct {
	path   string
	places chan struct{} // one for each connection in use
	mu     sync.Mutex
	idle   []*connection
	closed bool
}

const (
	maxReaders = 16
	// readerCache is small: each reader has one and keeps it, and what it does not hold
	// the system does.
	readerCache = "cache_size(-2000)"
)

func newReaders(path string) *readers {
	return &readers{path: path, places: make(chan struct{}, maxReaders)}
}

func (r *readers) acquire(ctx context.Context) (*connection, error) {
	select {
	case r.places <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	conn, err := r.take()
	if conn == nil && err == nil {
		conn, err = connect(r.path, "query_only(1)", readerCache)
	}
	if err != nil {
		<-r.places
		return nil, classify(err)
	}
	return conn, nil
}

// take is nil when every connection made so far is in use.
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

func (r *readers) release(conn *connection) {
	r.mu.Lock()
	r.idle = append(r.idle, conn)
	r.mu.Unlock()
	<-r.places
}

// close waits for the reads under way.
func (r *readers) close() error {
	for range maxReaders {
		r.places <- struct{}{}
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
		<-r.places
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

// readOne is read for at most one record; ErrNotFound when there is none.
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

// readAll is read for a list.
func readAll[T any](ctx context.Context, s *Store, query string, args []any, scan func(row) (T, error)) ([]T, error) {
	var found []T
	err := s.read(ctx, query, args, func(r row) error {
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

// scanPragmas map as much of the file as SQLite can, and keep few pages of the
// rest: a scan comes to each page once.
var scanPragmas = []string{"query_only(1)", mapped, "cache_size(-512)"}

// A connection that is not in use maps nothing: the pages would count as the server's own.
const mapped, unmapped = "mmap_size(2147418112)", "mmap_size(0)"

// scanners are the connections of scans. There is no bound to those in use, so that a
// scan can start another. One idle connection is kept: opening one reads the whole
// schema, which costs more than the scan of a small ledger.
type scanners struct {
	path   string
	mu     sync.Mutex
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

// close leaves the scans under way to close their connections.
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

// scanTurn is how long a scan may keep its view of the file. While one is kept, the
// write-ahead log cannot start from its beginning again, and grows.
const scanTurn = 250 * time.Millisecond

// errTurnEnds ends a turn of a scan.
var errTurnEnds = errors.New("the turn of a scan ends")

// query is a statement with its parameters.
type query struct {
	text string
	args []any
}

// scanAlone is read for a scan of a large part of the store. It has a connection
// of its own, which maps the file instead of copying it page by page, so that it
// neither keeps the pool waiting nor waits for it while visit reads other things.
// After a turn it lets go of its view of the file, and goes on with what rest asks for:
// the rows behind those that were visited. With rest nil the scan is known to be short.
// An error of visit is returned as it is.
func (s *Store) scanAlone(ctx context.Context, all query, rest func() query, visit func(row) error) (err error) {
	conn, err := s.scanners.acquire()
	if err != nil {
		return classify(err)
	}
	defer func() {
		if closeErr := s.scanners.release(conn); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	for asked := all; ; asked = rest() {
		ends := time.Now().Add(s.scanTurn)
		err = conn.query(asked.text, asked.args, func(r row) error {
			if err := visit(r); err != nil {
				return planError{err}
			}
			if rest != nil && !time.Now().Before(ends) {
				return errTurnEnds
			}
			return ctx.Err()
		})
		if !errors.Is(err, errTurnEnds) || ctx.Err() != nil {
			break
		}
	}
	var own planError
	switch {
	case errors.As(err, &own):
		return own.error
	case ctx.Err() != nil && err != nil:
		return ctx.Err()
	}
	return classify(err)
}
