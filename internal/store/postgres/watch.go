package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
)

// The channel's name contains the oid of its table, because channels belong to the database and not
// to the schema. A transaction's signals are sent in order when it commits.
const (
	channelSQL = `'countersign_approvals_' || 'approvals'::regclass::oid`
	notifySQL  = `select pg_notify(` + channelSQL + `, n.id::text) from unnest($1::uuid[]) n(id)`
)

func sendSignals(rt *roundTrip, changed []uuid.UUID) {
	if len(changed) > 0 {
		rt.send(notifySQL, ids(changed, func(id uuid.UUID) uuid.UUID { return id }))
	}
}

const (
	// maxSilence is how long nothing may arrive before the connection is pinged: a peer that
	// vanished sends nothing either.
	maxSilence    = 5 * time.Second
	hangUpTimeout = 5 * time.Second

	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// Watch implements store.Signals. It uses its own connection, so that it does not take one from the
// pool.
func (s *Store) Watch(ctx context.Context, changed func(uuid.UUID), missed func()) error {
	pause := minPause
	for ctx.Err() == nil {
		s.watchOnce(ctx, changed, func() {
			pause = minPause
			missed()
		})
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)): //nolint:gosec // spreads the replicas; it need not be unpredictable
		}
		pause = min(2*pause, maxPause)
	}
	return nil
}

// watchOnce listens until the connection fails or ctx ends. The cause of a failure does not matter
// here, because reads and writes report it.
func (s *Store) watchOnce(ctx context.Context, changed func(uuid.UUID), listening func()) {
	conn, err := s.listen(ctx)
	if err != nil {
		return
	}
	defer hangUp(ctx, conn)
	listening()
	for {
		payload, err := nextSignal(ctx, conn, s.silence)
		if err != nil {
			return
		}
		if id, err := ledger.ParseID(payload); err == nil {
			changed(id)
		}
	}
}

func (s *Store) listen(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*connectTimeout) // the URL may have several hosts
	defer cancel()
	config := s.pool.Config()
	if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	var channel string
	err = conn.QueryRow(ctx, "select "+channelSQL).Scan(&channel)
	if err == nil {
		_, err = conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize())
	}
	if err != nil {
		hangUp(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// nextSignal waits for a signal as long as the connection is alive.
func nextSignal(ctx context.Context, conn *pgx.Conn, silence time.Duration) (string, error) {
	for {
		patience, cancel := context.WithTimeout(ctx, silence)
		signal, err := conn.WaitForNotification(patience)
		cancel()
		if signal != nil {
			return signal.Payload, nil
		}
		if ctx.Err() != nil || conn.IsClosed() {
			return "", err
		}
		// Either only the timeout expired, or the ping fails.
		if err := ping(ctx, conn, silence); err != nil {
			return "", err
		}
	}
}

func ping(ctx context.Context, conn *pgx.Conn, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return conn.Ping(ctx)
}

// hangUp closes the connection cleanly even if ctx has ended.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
