package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
)

// The channel carries the oid of its table, as channels belong to the database
// and not to the schema. A transaction's signals go out when it commits, in order.
const (
	channelSQL = `'countersign_approvals_' || 'approvals'::regclass::oid`
	notifySQL  = `select pg_notify(` + channelSQL + `, n.id::text) from unnest($1::uuid[]) n(id)`
)

func sendSignals(x *exchange, changed []uuid.UUID) {
	if len(changed) > 0 {
		x.send(notifySQL, ids(changed, func(id uuid.UUID) uuid.UUID { return id }))
	}
}

const (
	// longestSilence is how long nothing may come before the connection is asked
	// whether it is still alive: a peer that vanished says nothing either.
	longestSilence = 5 * time.Second
	hangUpTimeout  = 5 * time.Second

	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Watch implements store.Signals. It has a connection of its own beside the
// pool's, so that waiting takes none away from those who work.
func (s *Store) Watch(ctx context.Context, changed func(uuid.UUID), missed func()) error {
	pause := firstPause
	for ctx.Err() == nil {
		s.watchOnce(ctx, changed, func() {
			pause = firstPause
			missed()
		})
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)): //nolint:gosec // not all replicas at once; nobody gains by guessing it
		}
		pause = min(2*pause, lastPause)
	}
	return nil
}

// watchOnce listens until the connection fails, or ctx ends. Why it failed does
// not matter here: whoever writes or reads is told.
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
	ctx, cancel := context.WithTimeout(ctx, 3*connectTimeout) // there may be several hosts
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

// nextSignal waits for a signal for as long as the connection lives.
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
		// It was only the patience that ended, or else this says so.
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

// hangUp takes leave of the server although ctx may have ended.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
