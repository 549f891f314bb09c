package sqlite

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, key *ledger.KeyRecord) error {
	settings, err := org.Settings.Encode()
	if err != nil {
		return err
	}
	return s.writing(ctx, func(tx *transaction) error {
		err := tx.exec("INSERT INTO organizations ("+orgColumns+") VALUES (?, ?, ?, ?, ?)",
			org.ID.UUID[:], org.Slug, org.Name, settings, int64(org.CreatedAt))
		if err != nil {
			return err
		}
		if err := tx.putHead(head); err != nil {
			return err
		}
		if key == nil {
			return nil
		}
		return tx.insertKey(key)
	})
}

// Organization implements store.Directory.
func (s *Store) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	return readOne(ctx, s, "SELECT "+orgColumns+" FROM organizations WHERE id = ?", []any{id.UUID[:]}, scanOrg)
}

// OrganizationBySlug implements store.Directory.
func (s *Store) OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error) {
	return readOne(ctx, s, "SELECT "+orgColumns+" FROM organizations WHERE slug = ?", []any{slug}, scanOrg)
}

// Organizations implements store.Directory.
func (s *Store) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	return readAll(ctx, s, "SELECT "+orgColumns+" FROM organizations ORDER BY slug", nil, scanOrg)
}

// UpdateOrganization implements store.Directory.
func (s *Store) UpdateOrganization(ctx context.Context, id ledger.OrgID, change func(*ledger.Organization) error) (*ledger.Organization, error) {
	var updated *ledger.Organization
	err := s.writing(ctx, func(tx *transaction) error {
		err := tx.query("SELECT "+orgColumns+" FROM organizations WHERE id = ?", []any{id.UUID[:]}, func(rows row) (err error) {
			updated, err = scanOrg(rows)
			return err
		})
		if err != nil {
			return err
		}
		if updated == nil {
			return store.ErrNotFound
		}
		if err := change(updated); err != nil {
			return planError{err}
		}
		settings, err := updated.Settings.Encode()
		if err != nil {
			return err
		}
		return tx.exec("UPDATE organizations SET name = ?, settings = ? WHERE id = ?", updated.Name, settings, id.UUID[:])
	})
	if err != nil {
		return nil, err
	}
	return updated, nil
}

func (tx *transaction) insertKey(key *ledger.KeyRecord) error {
	return tx.exec("INSERT INTO api_keys ("+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
		key.ID.UUID[:], key.Org.UUID[:], key.Name, string(key.Role), key.Hash[:], key.Hint, int64(key.CreatedAt))
}

// CreateKey implements store.Directory.
func (s *Store) CreateKey(ctx context.Context, key *ledger.KeyRecord) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.insertKey(key) })
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return readOne(ctx, s, "SELECT "+keyColumns+" FROM api_keys WHERE id = ?", []any{id.UUID[:]}, scanKey)
}

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return readOne(ctx, s, "SELECT "+keyColumns+" FROM api_keys WHERE hash = ?", []any{hash[:]}, scanKey)
}

// Keys implements store.Directory.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	query := "SELECT " + keyColumns + " FROM api_keys WHERE org_id = ? AND id > ? ORDER BY id LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], after.UUID[:], int64(limit)}, scanKey)
}

// RevokeKey implements store.Directory.
func (s *Store) RevokeKey(ctx context.Context, org ledger.OrgID, id ledger.KeyID, at ledger.Time) (*ledger.KeyRecord, error) {
	var revoked *ledger.KeyRecord
	err := s.writing(ctx, func(tx *transaction) error {
		query := "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE org_id = ? AND id = ? RETURNING " + keyColumns
		err := tx.query(query, []any{int64(at), org.UUID[:], id.UUID[:]}, func(rows row) (err error) {
			revoked, err = scanKey(rows)
			return err
		})
		if err == nil && revoked == nil {
			return store.ErrNotFound
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return revoked, nil
}

// KeyChecks implements store.KeyChecks.
func (s *Store) KeyChecks(ctx context.Context) (map[string][32]byte, error) {
	checks := make(map[string][32]byte)
	err := s.read(ctx, "SELECT key_id, fingerprint FROM master_keys", nil, func(rows row) error {
		var id string
		var fingerprint []byte
		if err := rows.Scan(&id, &fingerprint); err != nil {
			return err
		}
		checks[id] = [32]byte(fingerprint)
		return nil
	})
	return checks, err
}

// AddKeyCheck implements store.KeyChecks.
func (s *Store) AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec("INSERT INTO master_keys (key_id, fingerprint) VALUES (?, ?) ON CONFLICT DO NOTHING", keyID, fingerprint[:]); err != nil {
			return err
		}
		return tx.query("SELECT fingerprint FROM master_keys WHERE key_id = ?", []any{keyID}, func(rows row) error {
			var kept []byte
			if err := rows.Scan(&kept); err != nil {
				return err
			}
			if [32]byte(kept) != fingerprint {
				return fmt.Errorf("master key %s: %w", keyID, store.ErrExists)
			}
			return nil
		})
	})
}

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
			var key []byte
			if err := rows.Scan(&key); err != nil {
				return err
			}
			opened = &store.SignIn{Hash: session, Key: uuid.UUID(key), ExpiresAt: expires}
			return nil
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
		var key []byte
		err := r.Scan(&key, (*int64)(&in.ExpiresAt))
		in.Key = idOf(key)
		return in, err
	})
}

// CloseSession implements store.SignIns.
func (s *Store) CloseSession(ctx context.Context, session [32]byte) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("DELETE FROM sign_ins WHERE hash = ? AND kind = 'session'", session[:])
	})
}
