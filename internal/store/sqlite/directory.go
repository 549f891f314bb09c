package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *store.Changes) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.insertOrg(org); err != nil {
			return err
		}
		if err := tx.putHead(head); err != nil || with == nil {
			return err
		}
		tx.loaded, tx.changes = new(store.Loaded), with
		return tx.apply(with)
	})
}

// Organization implements store.Directory.
func (s *Store) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	return readOne(ctx, s, "SELECT "+orgColumns+" FROM organizations WHERE id = ?", []any{id.UUID[:]}, s.scanKnownOrg)
}

// OrganizationBySlug implements store.Directory.
func (s *Store) OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error) {
	return readOne(ctx, s, "SELECT "+orgColumns+" FROM organizations WHERE slug = ?", []any{slug}, scanOrg)
}

// Organizations implements store.Directory.
func (s *Store) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	return readAll(ctx, s, "SELECT "+orgColumns+" FROM organizations ORDER BY slug", nil, scanOrg)
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return readOne(ctx, s, "SELECT "+keyColumns+" FROM api_keys WHERE id = ?", []any{id.UUID[:]}, scanKey)
}

// keyByHashQuery looks once into the index of secrets and once into that of previous
// ones, whether or not there is such a key.
const keyByHashQuery = "SELECT " + keyColumns + " FROM api_keys WHERE hash = ? OR previous_hash = ?"

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return readOne(ctx, s, keyByHashQuery, []any{hash[:], hash[:]}, scanKey)
}

// KeysBySignInAs implements store.Directory.
func (s *Store) KeysBySignInAs(ctx context.Context, identity string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error) {
	query := "SELECT " + keyColumns + " FROM api_keys WHERE sign_in_as = ? AND sign_in_as <> '' AND revoked_at IS NULL " +
		"AND (expires_at IS NULL OR expires_at > ?) ORDER BY id LIMIT ?"
	return readAll(ctx, s, query, []any{identity, int64(now), int64(limit)}, scanKey)
}

// KeysBySlackMember implements store.Directory.
func (s *Store) KeysBySlackMember(ctx context.Context, org ledger.OrgID, member string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error) {
	query := "SELECT " + keyColumns + " FROM api_keys WHERE org_id = ? AND slack_member = ? AND slack_member <> '' AND revoked_at IS NULL " +
		"AND (expires_at IS NULL OR expires_at > ?) ORDER BY id LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], member, int64(now), int64(limit)}, scanKey)
}

// Keys implements store.Directory.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	query := "SELECT " + keyColumns + " FROM api_keys WHERE org_id = ? AND id " + above(after.UUID) + " ? ORDER BY id LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], after.UUID[:], int64(limit)}, scanKey)
}

// TouchKeys implements store.Directory.
func (s *Store) TouchKeys(ctx context.Context, used map[ledger.KeyID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range used {
			err := tx.exec("UPDATE api_keys SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)",
				int64(at), id.UUID[:], int64(at))
			if err != nil {
				return err
			}
			s.cache.keys.Drop(id)
		}
		return nil
	})
}

func (tx *transaction) insertKey(key *ledger.KeyRecord) error {
	previous, previousExpires := previousOf(key)
	return tx.exec("INSERT INTO api_keys ("+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		key.ID.UUID[:], key.Org.UUID[:], key.Name, string(key.Role), key.Hash[:], key.Hint, int64(key.CreatedAt), momentOrNull(key.RevokedAt),
		string(ledger.EncodeAgents(key.Agents)), key.Owner, momentOrNull(key.ExpiresAt), flag(key.ExpiryLogged), momentOrNull(key.LastUsedAt),
		previous, previousExpires, orEmpty(key.MAC), key.Act, key.SignInAs, key.SlackMember)
}

// updateKey writes the fields of a key that change, except LastUsedAt.
func (tx *transaction) updateKey(key *ledger.KeyRecord) error {
	previous, previousExpires := previousOf(key)
	return tx.change(`UPDATE api_keys SET hash = ?, hint = ?, previous_hash = ?, previous_expires_at = ?, expiry_logged = ?, revoked_at = ?, sign_in_as = ?,
		slack_member = ?, mac = ?, act = ?
		WHERE id = ? AND org_id = ?`,
		key.Hash[:], key.Hint, previous, previousExpires, flag(key.ExpiryLogged), momentOrNull(key.RevokedAt), key.SignInAs,
		key.SlackMember, orEmpty(key.MAC), key.Act, key.ID.UUID[:], key.Org.UUID[:])
}

// previousOf returns the parameters for a key's previous secret: nulls without one.
func previousOf(key *ledger.KeyRecord) (hash, expires any) {
	if key.Previous == nil {
		return nil, nil
	}
	return key.Previous.Hash[:], int64(key.Previous.ExpiresAt)
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

func (tx *transaction) insertRotation(r *store.RotationRecord) error {
	return tx.exec("INSERT INTO key_rotations ("+rotationColumns+") VALUES (?, ?, ?, ?, ?, ?)",
		r.Org.UUID[:], r.IdempotencyKey, r.Key.UUID[:], r.Overlap.Milliseconds(), int64(r.RotatedAt), orEmpty(r.MAC))
}

func (tx *transaction) loadRotations(needs *store.Needs, loaded *store.Loaded) error {
	return loadEach(tx, needs.Rotations, loaded.Rotations, "SELECT "+rotationColumns+" FROM key_rotations WHERE org_id = ? AND idempotency_key = ?",
		func(ref *store.RotationRef) []any { return []any{ref.Org.UUID[:], ref.Key} }, scanRotation)
}

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.insertSignIn(linkKind, link) })
}

// The kinds of rows in sign_ins.
const (
	linkKind    = "link"
	sessionKind = "session"
)

func (tx *transaction) insertSignIn(kind string, in *store.SignIn) error {
	return tx.exec("INSERT INTO sign_ins (hash, kind, key_id, org_id, expires_at, sign_in_as, act, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		in.Hash[:], kind, in.Key[:], in.Org.UUID[:], int64(in.ExpiresAt), in.SignInAs, in.Act, orEmpty(in.MAC))
}

const forgetExpired = "DELETE FROM sign_ins WHERE expires_at <= ?"

// OpenSession implements store.SignIns.
func (s *Store) OpenSession(ctx context.Context, link [32]byte, session *store.SignIn, now ledger.Time) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec(forgetExpired, int64(now)); err != nil {
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

// CreateSession implements store.SignIns.
func (s *Store) CreateSession(ctx context.Context, session *store.SignIn, now ledger.Time) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec(forgetExpired, int64(now)); err != nil {
			return err
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
	query := "SELECT key_id, org_id, expires_at, sign_in_as, act, mac FROM sign_ins WHERE hash = ? AND kind = ? AND expires_at > ?"
	return readOne(ctx, s, query, []any{in.Hash[:], kind, int64(now)}, func(r row) (*store.SignIn, error) {
		return in, r.Scan(&in.Key, &in.Org.UUID, (*int64)(&in.ExpiresAt), &in.SignInAs, &in.Act, &in.MAC)
	})
}

// CloseSession implements store.SignIns.
func (s *Store) CloseSession(ctx context.Context, session [32]byte) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("DELETE FROM sign_ins WHERE hash = ? AND kind = 'session'", session[:])
	})
}

// KeyChecks implements store.KeyChecks.
func (s *Store) KeyChecks(ctx context.Context) (map[string][32]byte, error) {
	checks := make(map[string][32]byte)
	err := s.read(ctx, "SELECT key_id, fingerprint FROM master_keys", nil, func(rows row) error {
		var id string
		var fingerprint [32]byte
		if err := rows.Scan(&id, &fingerprint); err != nil {
			return err
		}
		checks[id] = fingerprint
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
			var kept [32]byte
			if err := rows.Scan(&kept); err != nil {
				return err
			}
			if kept != fingerprint {
				return fmt.Errorf("master key %s: %w", keyID, store.ErrExists)
			}
			return nil
		})
	})
}

const ledgerColumns = "id, parent_id, created_at, mac"

// Ledger implements store.Identity.
func (s *Store) Ledger(ctx context.Context) (*store.LedgerRecord, error) {
	return readOne(ctx, s, "SELECT "+ledgerColumns+" FROM ledger_identity", nil, func(r row) (*store.LedgerRecord, error) {
		l := new(store.LedgerRecord)
		return l, r.Scan(&l.ID, &l.Parent, (*int64)(&l.CreatedAt), &l.MAC)
	})
}

// PutLedger implements store.Identity.
func (s *Store) PutLedger(ctx context.Context, l *store.LedgerRecord, replaces uuid.UUID) error {
	return s.writing(ctx, func(tx *transaction) error {
		err := tx.change("INSERT INTO ledger_identity (no, "+ledgerColumns+`) VALUES (1, ?, ?, ?, ?)
			ON CONFLICT (no) DO UPDATE SET id = excluded.id, parent_id = excluded.parent_id, created_at = excluded.created_at, mac = excluded.mac
			WHERE id = ?`, l.ID[:], l.Parent[:], int64(l.CreatedAt), orEmpty(l.MAC), replaces[:])
		if errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("ledger: %w", store.ErrExists)
		}
		return err
	})
}
