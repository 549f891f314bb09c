package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.insertSignIn("link", link) })
}

func (tx *transaction) insertSignIn(kind string, in *store.SignIn) error {
	return tx.exec("INSERT INTO sign_ins (hash, kind, key_id, expires_at) VALUES (?, ?, ?, ?)",
		in.Hash[:], kind, in.Key[:], int64(in.ExpiresAt))
}

// OpenSession implements store.SignIns.
func (s *Store) OpenSession(ctx context.Context, link, session [32]byte, now, expires ledger.Time) (*store.SignIn, error) {
	var opened *store.SignIn
	err := s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec("DELETE FROM sign_ins WHERE expires_at <= ?", int64(now)); err != nil {
			return err
		}
		query := "DELETE FROM sign_ins WHERE hash = ? AND kind = 'link' RETURNING key_id"
		err := tx.query(query, []any{link[:]}, func(rows row) error {
			opened = &store.SignIn{Hash: session, ExpiresAt: expires}
			return rows.Scan(&opened.Key)
		})
		if err != nil {
			return err
		}
		if opened == nil {
			return store.ErrNotFound
		}
		return tx.insertSignIn("session", opened)
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// Session implements store.SignIns.
func (s *Store) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	query := "SELECT key_id, expires_at FROM sign_ins WHERE hash = ? AND kind = 'session' AND expires_at > ?"
	return readOne(ctx, s, query, []any{session[:], int64(now)}, func(r row) (*store.SignIn, error) {
		in := &store.SignIn{Hash: session}
		return in, r.Scan(&in.Key, (*int64)(&in.ExpiresAt))
	})
}

// CloseSession implements store.SignIns.
func (s *Store) CloseSession(ctx context.Context, session [32]byte) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("DELETE FROM sign_ins WHERE hash = ? AND kind = 'session'", session[:])
	})
}
