package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.insertSignIn(linkKind, link) })
}

// The kinds of rows.
const (
	linkKind    = "link"
	sessionKind = "session"
)

func (tx *transaction) insertSignIn(kind string, in *store.SignIn) error {
	return tx.exec("INSERT INTO sign_ins (hash, kind, key_id, org_id, expires_at, act, mac) VALUES (?, ?, ?, ?, ?, ?, ?)",
		in.Hash[:], kind, in.Key[:], in.Org.UUID[:], int64(in.ExpiresAt), in.Act, blob(in.MAC))
}

// OpenSession implements store.SignIns.
func (s *Store) OpenSession(ctx context.Context, link [32]byte, session *store.SignIn, now ledger.Time) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec("DELETE FROM sign_ins WHERE expires_at <= ?", int64(now)); err != nil {
			return err
		}
		used := false
		query := "DELETE FROM sign_ins WHERE hash = ? AND kind = 'link' AND key_id = ? RETURNING key_id"
		err := tx.query(query, []any{link[:], session.Key[:]}, func(row) error {
			used = true
			return nil
		})
		if err != nil {
			return err
		}
		if !used {
			return store.ErrNotFound
		}
		return tx.insertSignIn(sessionKind, session)
	})
}

// SignInLink implements store.SignIns.
func (s *Store) SignInLink(ctx context.Context, link [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.signIn(ctx, linkKind, &store.SignIn{Hash: link}, now)
}

// Session implements store.SignIns.
func (s *Store) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.signIn(ctx, sessionKind, &store.SignIn{Hash: session, Session: true}, now)
}

func (s *Store) signIn(ctx context.Context, kind string, in *store.SignIn, now ledger.Time) (*store.SignIn, error) {
	query := "SELECT key_id, org_id, expires_at, act, mac FROM sign_ins WHERE hash = ? AND kind = ? AND expires_at > ?"
	return readOne(ctx, s, query, []any{in.Hash[:], kind, int64(now)}, func(r row) (*store.SignIn, error) {
		return in, r.Scan(&in.Key, &in.Org.UUID, (*int64)(&in.ExpiresAt), &in.Act, &in.MAC)
	})
}

// CloseSession implements store.SignIns.
func (s *Store) CloseSession(ctx context.Context, session [32]byte) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("DELETE FROM sign_ins WHERE hash = ? AND kind = 'session'", session[:])
	})
}
