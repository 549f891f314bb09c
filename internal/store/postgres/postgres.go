// Package postgres keeps the ledger in PostgreSQL. Several processes may serve
// one database at the same time: rows are locked where the port promises order,
// and a transaction costs a fixed few round trips however much it writes.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Store is a connection pool to one database.
type Store struct {
	pool      *pgxpool.Pool
	chains    *cache.Cache[ledger.ChainID, *store.ChainRecord]
	orgs      *cache.Cache[ledger.OrgID, knownOrganization]
	tokens    *group[heldToken, *store.ActiveToken]
	named     *group[ledger.ReceiptID, *store.NamedReceipt]
	placed    *group[ledger.ReceiptID, *store.PlacedReceipt]
	lastReset atomic.Int64 // of the pool, in nanoseconds since 1970
	// pending counts the commits that were not answered in time.
	pending atomic.Int64
	// silence is how long a watcher hears nothing before it makes sure.
	silence time.Duration
}

var _ store.Store = (*Store)(nil)

// Open connects to the database that the URL names and makes sure that it takes
// writes. It changes nothing there: see Migrate and CheckSchema. With several
// hosts in the URL, the one that is the primary is used.
func Open(ctx context.Context, url string) (*Store, error) {
	config, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, explain("open database", err)
	}
	s := &Store{
		pool:   pool,
		chains: cache.New[ledger.ChainID, *store.ChainRecord](chainsInUse),
		orgs:   cache.New[ledger.OrgID, knownOrganization](organizationsInUse),

		silence: longestSilence,
	}
	s.tokens = &group[heldToken, *store.ActiveToken]{what: "token", read: s.readTokens}
	s.named = &group[ledger.ReceiptID, *store.NamedReceipt]{what: "receipt", read: s.readNamed}
	s.placed = &group[ledger.ReceiptID, *store.PlacedReceipt]{what: "receipt", read: s.readPlaces}
	if err := s.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

const (
	// readTimeout bounds every read, with the wait for a connection, and of a scan the
	// wait for each row: a server that is frozen, or a network that is gone, does not
	// end a read by itself.
	readTimeout = 5 * time.Second
	// acquireTimeout bounds the wait for a free connection where the caller sets no
	// bound: a store that cannot keep up says so instead of hoarding requests.
	acquireTimeout = 5 * time.Second
	// resetPause is how often at most the pool is emptied.
	resetPause = 2 * time.Second
)

func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err == nil {
		return conn, nil
	}
	err = unavailable("connect", err)
	if errors.Is(err, context.DeadlineExceeded) && s.pool.Stat().IdleConns() > 0 {
		// There were connections to be had, and the server did not answer on one of them.
		err = s.told(fmt.Errorf("%w: %w", errGone, err))
	}
	return nil, err
}

// told looks at an error on its way out. One that shows that the server is gone, or takes
// no writes any more, is true of all connections to it: the next caller must not find that
// out by waiting for another one.
func (s *Store) told(err error) error {
	if errors.Is(err, store.ErrReadOnly) || errors.Is(err, errGone) {
		s.reset()
	}
	return err
}

// reset has every connection made anew.
func (s *Store) reset() {
	now, last := time.Now().UnixNano(), s.lastReset.Load()
	if now-last >= int64(resetPause) && s.lastReset.CompareAndSwap(last, now) {
		s.pool.Reset()
	}
}

// Ping implements store.Store. A server that has become a standby cannot serve:
// it would answer reads from the past and refuse every write.
func (s *Store) Ping(ctx context.Context) error {
	var readOnly bool
	err := s.queryRow(ctx, "ping", "select current_setting('transaction_read_only')::bool", nil, &readOnly)
	if err != nil {
		return err
	}
	if readOnly {
		return fmt.Errorf("%w: %w: the server takes no writes", store.ErrUnavailable, store.ErrReadOnly)
	}
	return nil
}

// probeSQL writes a record to the server's log that nobody reads: it is committed,
// synced and sent to the standby as a row would be, and needs no table that somebody
// could write to.
const probeSQL = "select pg_logical_emit_message(true, 'countersign', '')"

// Probe implements store.Store. A server that takes no writes is told by Ping: it would
// take this one. Where this user may not write such a record, Ping is all there is.
func (s *Store) Probe(ctx context.Context) error {
	if err := s.Ping(ctx); err != nil {
		return err
	}
	err := s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := begin(ctx, conn); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, probeSQL); err != nil {
			var refusal *pgconn.PgError
			if errors.As(err, &refusal) && refusal.Code == codeNotPermitted {
				return errNothingToWrite
			}
			return explain("probe", err)
		}
		_, err := conn.Exec(ctx, patientCommitSQL)
		return explain("probe", err)
	})
	return err
}

// Backup implements store.Store: it is not supported.
func (*Store) Backup(context.Context, string) error {
	return fmt.Errorf("%w: back a PostgreSQL database up with pg_dump or pg_basebackup", errors.ErrUnsupported)
}

// Close implements store.Store. It waits until the connections in use are given
// back.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// queryRow reads one row; none is ErrNotFound.
func (s *Store) queryRow(ctx context.Context, what, sql string, args []any, targets ...any) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return s.told(scanRow(what, conn.QueryRow(ctx, sql, args...), targets...))
}

// query shows the rows that a statement returns to visit, whose error is
// returned as it is. What visit takes does not count as waiting for the server.
func (s *Store) query(ctx context.Context, what, sql string, args []any, visit func(*row) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	patience := time.AfterFunc(readTimeout, func() { cancel(errGone) })
	defer patience.Stop()
	var own error // of visit
	err = eachRow(ctx, conn.Conn(), what, sql, args, func(r *row) error {
		patience.Stop()
		defer patience.Reset(readTimeout)
		own = visit(r)
		return own
	})
	if err != nil && own == nil && errors.Is(context.Cause(ctx), errGone) {
		err = unavailable(what, errGone)
	}
	return s.told(err)
}

func scanRow(what string, row pgx.Row, targets ...any) error {
	err := row.Scan(targets...)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s: %w", what, store.ErrNotFound)
	}
	return explain(what, err)
}

func eachRow(ctx context.Context, conn *pgx.Conn, what, sql string, args []any, visit func(*row) error) error {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return explain(what, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := visit(&row{values: rows.RawValues()}); err != nil {
			return err
		}
	}
	return explain(what, rows.Err())
}

// one reads the only record, list reads them all.
func one[T any](ctx context.Context, s *Store, what, sql string, args []any, read func(*row) T) (T, error) {
	found, err := list(ctx, s, what, sql, args, read)
	return only(what, found, err)
}

func only[T any](what string, found []T, err error) (T, error) {
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s: %w", what, store.ErrNotFound)
	}
	if err != nil {
		var none T
		return none, err
	}
	return found[0], nil
}

func list[T any](ctx context.Context, s *Store, what, sql string, args []any, read func(*row) T) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	found, err := collect(ctx, conn.Conn(), what, sql, args, read)
	return found, s.told(err)
}

// collect is list on a connection that is at hand.
func collect[T any](ctx context.Context, conn *pgx.Conn, what, sql string, args []any, read func(*row) T) ([]T, error) {
	var found []T
	err := eachRow(ctx, conn, what, sql, args, func(r *row) error {
		found = append(found, read(r))
		return r.end()
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}
