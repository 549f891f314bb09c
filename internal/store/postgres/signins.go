package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `insert into sign_ins (hash, key_id, org_id, expires_at, session, act, mac) values ($1, $2, $3, $4, false, $5, $6)`,
			link.Hash[:], bytesOf(link.Key), bytesOf(link.Org.UUID), int64(link.ExpiresAt), link.Act, filled(link.MAC))
		return explain("create sign-in", err)
	})
}

// OpenSession implements store.SignIns. Of two uses of a link at once, the second
// waits for the first one's row to go, and finds none.
func (s *Store) OpenSession(ctx context.Context, link [32]byte, session *store.SignIn, now ledger.Time) error {
	const sql = `with used as (
			delete from sign_ins where hash = $1 and not session and expires_at > $2 and key_id = $3 returning key_id
		)
		insert into sign_ins (hash, key_id, org_id, expires_at, session, act, mac) select $4, key_id, $7, $5, true, $8, $6 from used returning key_id`
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var key uuid.UUID
		row := conn.QueryRow(ctx, sql, link[:], int64(now), bytesOf(session.Key), session.Hash[:], int64(session.ExpiresAt), filled(session.MAC),
			bytesOf(session.Org.UUID), session.Act)
		if err := scanRow("open session", row, target(&key)); err != nil {
			return err
		}
		return forgetExpired(ctx, conn, now)
	})
}

// forgetExpired keeps the table small. It steps around rows that somebody else
// is forgetting.
func forgetExpired(ctx context.Context, conn *pgx.Conn, now ledger.Time) error {
	_, err := conn.Exec(ctx, `delete from sign_ins where hash in (
		select hash from sign_ins where expires_at <= $1 order by expires_at limit 100 for update skip locked)`, int64(now))
	return explain("forget expired sign-ins", err)
}

// SignInLink implements store.SignIns.
func (s *Store) SignInLink(ctx context.Context, link [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.signIn(ctx, "sign-in link", &store.SignIn{Hash: link}, now)
}

// Session implements store.SignIns.
func (s *Store) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.signIn(ctx, "session", &store.SignIn{Hash: session, Session: true}, now)
}

func (s *Store) signIn(ctx context.Context, what string, in *store.SignIn, now ledger.Time) (*store.SignIn, error) {
	err := s.queryRow(ctx, what, `select key_id, org_id, expires_at, act, mac from sign_ins where hash = $1 and session = $2 and expires_at > $3`,
		[]any{in.Hash[:], in.Session, int64(now)}, target(&in.Key), target(&in.Org.UUID), (*int64)(&in.ExpiresAt), &in.Act, &in.MAC)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// CloseSession implements store.SignIns.
func (s *Store) CloseSession(ctx context.Context, session [32]byte) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `delete from sign_ins where hash = $1 and session`, session[:])
		return explain("close session", err)
	})
}
