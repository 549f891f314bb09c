// Package postgres stores the ledger in PostgreSQL. Several processes may use one database at the
// same time. Rows are locked where the port promises an order, and a transaction costs a small,
// fixed number of round trips however much it writes.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
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
	orgs      *cache.Cache[ledger.OrgID, cachedOrganization]
	tokens    *group[tokenAt, *store.ActiveToken]
	named     *group[ledger.ReceiptID, *store.NamedReceipt]
	placed    *group[ledger.ReceiptID, *store.PlacedReceipt]
	lastReset atomic.Int64 // time of the pool's last reset, in nanoseconds since 1970
	// pending counts the commits without a timely answer.
	pending atomic.Int64
	// silence is how long a watcher may receive nothing before it pings the server.
	silence time.Duration
}

var _ store.Store = (*Store)(nil)

// Open connects to the database at the URL and makes sure that it accepts writes. It does not
// change the schema; see Migrate and CheckSchema. If the URL has several hosts, the primary is
// used.
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
		chains: cache.New[ledger.ChainID, *store.ChainRecord](maxChainCache),
		orgs:   cache.New[ledger.OrgID, cachedOrganization](maxOrgCache),

		silence: maxSilence,
	}
	s.tokens = &group[tokenAt, *store.ActiveToken]{what: "token", read: s.readTokens}
	s.named = &group[ledger.ReceiptID, *store.NamedReceipt]{what: "receipt", read: s.readNamed}
	s.placed = &group[ledger.ReceiptID, *store.PlacedReceipt]{what: "receipt", read: s.readPlaces}
	if err := s.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

const (
	// readTimeout bounds every read including the wait for a connection, and in a scan the wait for
	// each row. Without it, a read from a frozen server or over a broken network would never end.
	readTimeout = 5 * time.Second
	// acquireTimeout bounds the wait for a free connection if the caller sets no limit, so that an
	// overloaded store fails instead of queueing requests.
	acquireTimeout = 5 * time.Second
	// resetPause is the minimum time between two resets of the pool.
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
		// There were idle connections, and the server did not answer on one of them.
		err = s.resetIfGone(fmt.Errorf("%w: %w", errGone, err))
	}
	return nil, err
}

// resetIfGone returns err. If err shows that the server is unreachable or read-only, that applies
// to all connections, so it resets the pool: the next caller must not wait for another dead
// connection.
func (s *Store) resetIfGone(err error) error {
	if errors.Is(err, store.ErrReadOnly) || errors.Is(err, errGone) {
		s.reset()
	}
	return err
}

// reset closes all connections, so that new ones are opened.
func (s *Store) reset() {
	now, last := time.Now().UnixNano(), s.lastReset.Load()
	if now-last >= int64(resetPause) && s.lastReset.CompareAndSwap(last, now) {
		s.pool.Reset()
	}
}

// Ping implements store.Store. A server that has become a standby fails: it would answer reads with
// old data and refuse every write.
func (s *Store) Ping(ctx context.Context) error {
	var readOnly bool
	err := s.queryRow(ctx, "ping", "select current_setting('transaction_read_only')::bool", nil, &readOnly)
	if err != nil {
		return err
	}
	if readOnly {
		return fmt.Errorf("%w: %w: the server does not accept writes", store.ErrUnavailable, store.ErrReadOnly)
	}
	return nil
}

// probeSQL writes a message to the write-ahead log that nobody reads. It is committed, synced and
// sent to the standby like a row, and needs no table.
const probeSQL = "select pg_logical_emit_message(true, 'countersign', '')"

// Probe implements store.Store. A read-only server would accept this write, so it also calls Ping.
// If the user may not write such a message, only Ping is checked.
func (s *Store) Probe(ctx context.Context) error {
	if err := s.Ping(ctx); err != nil {
		return err
	}
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, probeSQL)
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Code == codeNotPermitted {
			return errNothingToWrite
		}
		return explain("probe", err)
	})
}

// Backup implements store.Store. It is not supported.
func (*Store) Backup(context.Context, string) error {
	return fmt.Errorf("%w: back a PostgreSQL database up with pg_dump or pg_basebackup", errors.ErrUnsupported)
}

// Close implements store.Store. It waits until all connections are released.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// queryRow reads one row. If there is none, the error is ErrNotFound.
func (s *Store) queryRow(ctx context.Context, what, sql string, args []any, targets ...any) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return s.resetIfGone(scanRow(what, conn.QueryRow(ctx, sql, args...), targets...))
}

// query calls visit for every row of the result and returns its errors unchanged. The time spent in
// visit does not count towards the timeout.
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
	var own error // error of visit
	err = eachRow(ctx, conn.Conn(), what, sql, args, func(r *row) error {
		patience.Stop()
		defer patience.Reset(readTimeout)
		own = visit(r)
		return own
	})
	if err != nil && own == nil && errors.Is(context.Cause(ctx), errGone) {
		err = unavailable(what, errGone)
	}
	return s.resetIfGone(err)
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

// one reads a single record.
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

// above returns the comparison with the last id of the page before. A list begins with the smallest
// id there is: the service gives it to no row, but whoever writes to the database can.
func above(after uuid.UUID) string {
	if after == uuid.Nil {
		return ">="
	}
	return ">"
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
	return found, s.resetIfGone(err)
}

// collect is list on a given connection.
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
