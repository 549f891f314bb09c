package sqlite

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/store"
)

// readers is a small pool of connections that only read. Each keeps its prepared
// statements: most reads are one look-up, which costs less than preparing it.
type readers struct {
	path  string
	slots chan *connection // nil stands for a connection not yet made
}

const maxReaders = 16

func newReaders(path string) *readers {
	r := &readers{path: path, slots: make(chan *connection, maxReaders)}
	for range maxReaders {
		r.slots <- nil
	}
	return r
}

func (r *readers) acquire(ctx context.Context) (*connection, error) {
	select {
	case conn, open := <-r.slots:
		switch {
		case !open:
			return nil, fmt.Errorf("%w: closed", store.ErrUnavailable)
		case conn != nil:
			return conn, nil
		}
		conn, err := connect(r.path, "query_only(1)")
		if err != nil {
			r.slots <- nil
			return nil, classify(err)
		}
		return conn, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
}

// close waits for the reads under way.
func (r *readers) close() error {
	var errs []error
	for range maxReaders {
		if conn := <-r.slots; conn != nil {
			errs = append(errs, conn.close())
		}
	}
	close(r.slots)
	return errors.Join(errs...)
}

// read runs one query on a connection of the pool.
func (s *Store) read(ctx context.Context, query string, args []any, scan func(row) error) error {
	conn, err := s.readers.acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { s.readers.slots <- conn }()
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
var scanPragmas = []string{"query_only(1)", "mmap_size(2147418112)", "cache_size(-512)"}

// scanAlone is read for a scan of a large part of the store. It has a connection
// of its own, which maps the file instead of copying it page by page, so that it
// neither keeps the pool waiting nor waits for it while visit reads other things.
// An error of visit is returned as it is.
func (s *Store) scanAlone(ctx context.Context, query string, args []any, visit func(row) error) (err error) {
	conn, err := connect(s.path, scanPragmas...)
	if err != nil {
		return classify(err)
	}
	defer func() {
		if closeErr := conn.close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	err = conn.query(query, args, func(r row) error {
		if err := visit(r); err != nil {
			return planError{err}
		}
		return ctx.Err()
	})
	var own planError
	if errors.As(err, &own) {
		return own.error
	}
	return classify(err)
}
