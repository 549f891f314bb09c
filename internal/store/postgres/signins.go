package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	return s.change(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `insert into sign_ins (hash, key_id, expires_at, session) values ($1, $2, $3, false)`,
			link.Hash[:], bytesOf(link.Key), int64(link.ExpiresAt))
		return explain("create sign-in", err)
	})
}

// OpenSession implements store.SignIns. Of two uses of a link at once, the second
// waits for the first one's row to go, and finds none.
func (s *Store) OpenSession(ctx context.Context, link, session [32]byte, now, expires ledger.Time) (*store.SignIn, error) {
	const sql = `with used as (
			delete from sign_ins where hash = $1 and not session and expires_at > $3 returning key_id
		)
		insert into sign_ins (hash, key_id, expires_at, session) select $2, key_id, $4, true from used returning key_id`
	opened := &store.SignIn{Hash: session, ExpiresAt: expires}
	err := s.change(ctx, func(conn *pgx.Conn) error {
		row := conn.QueryRow(ctx, sql, link[:], session[:], int64(now), int64(expires))
		if err := scanRow("open session", row, target(&opened.Key)); err != nil {
			return err
		}
		return forgetExpired(ctx, conn, now)
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// forgetExpired keeps the table small. It steps around rows that somebody else
// is forgetting.
func forgetExpired(ctx context.Context, conn *pgx.Conn, now ledger.Time) error {
	_, err := conn.Exec(ctx, `delete from sign_ins where hash in (
		select hash from sign_ins where expires_at <= $1 order by expires_at limit 100 for update skip locked)`, int64(now))
	return explain("forget expired sign-ins", err)
}

// Session implements store.SignIns.
func (s *Store) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	found := &store.SignIn{Hash: session}
	err := s.queryRow(ctx, "session", `select key_id, expires_at from sign_ins where hash = $1 and session and expires_at > $2`,
		[]any{session[:], int64(now)}, target(&found.Key), (*int64)(&found.ExpiresAt))
	if err != nil {
		return nil, err
	}
	return found, nil
}

// CloseSession implements store.SignIns.
func (s *Store) CloseSession(ctx context.Context, session [32]byte) error {
	return s.change(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `delete from sign_ins where hash = $1 and session`, session[:])
		return explain("close session", err)
	})
}
