package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	selectOrganizations = `select ` + organizationColumns + ` from organizations `
	selectKeys          = `select ` + keyColumns + ` from api_keys `
)

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *store.Changes) error {
	rt := new(roundTrip)
	if err := sendNewOrganization(rt, org, head); err != nil {
		return err
	}
	if err := sendChanges(rt, with); err != nil {
		return err
	}
	return s.runTransaction(ctx, "create organization", rt)
}

// Organization implements store.Directory.
func (s *Store) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	return one(ctx, s, "organization", selectOrganizations+`where id = $1`, []any{bytesOf(id.UUID)}, s.readKnownOrganization)
}

// OrganizationBySlug implements store.Directory.
func (s *Store) OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error) {
	return one(ctx, s, "organization", selectOrganizations+`where slug = $1`, []any{slug}, readOrganization)
}

// Organizations implements store.Directory.
func (s *Store) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	return list(ctx, s, "organizations", selectOrganizations+`order by slug`, nil, readOrganization)
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return one(ctx, s, "key", selectKeys+`where id = $1`, []any{bytesOf(id.UUID)}, readKey)
}

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return one(ctx, s, "key", selectKeys+`where hash = $1 or previous_hash = $1`, []any{hash[:]}, readKey)
}

// KeysBySignInAs implements store.Directory.
func (s *Store) KeysBySignInAs(ctx context.Context, identity string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error) {
	return list(ctx, s, "keys", selectKeys+`where sign_in_as = $1 and sign_in_as <> '' and revoked_at is null and (expires_at is null or expires_at > $2)
		order by id limit $3`, []any{identity, int64(now), limit}, readKey)
}

// KeysBySlackMember implements store.Directory.
func (s *Store) KeysBySlackMember(ctx context.Context, org ledger.OrgID, member string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error) {
	return list(ctx, s, "keys", selectKeys+`where org_id = $1 and slack_member = $2 and slack_member <> '' and revoked_at is null
		and (expires_at is null or expires_at > $3) order by id limit $4`, []any{bytesOf(org.UUID), member, int64(now), limit}, readKey)
}

// Keys implements store.Directory.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	return list(ctx, s, "keys", selectKeys+`where org_id = $1 and id `+above(after.UUID)+` $2 order by id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readKey)
}

const (
	insertKeysSQL = `insert into api_keys (` + keyColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bigint[], $8::bigint[],
			$9::text[], $10::text[], $11::bigint[], $12::boolean[], $13::bigint[], $14::bytea[], $15::bigint[], $16::bytea[], $17::bigint[], $18::text[], $19::text[])`
	// Rows are locked in order of id before they are written, so that two writers do not deadlock.
	// A rotation changes a unique column, which needs the strongest lock. Recording a use does not,
	// so it does not wait for a chain that is being opened.
	lockKeysSQL   = `select from api_keys where id = any($1::uuid[]) order by id for update`
	lockKeyUseSQL = `select from api_keys where id = any($1::uuid[]) order by id for no key update`
	updateKeysSQL = `update api_keys k set hash = n.hash, hint = n.hint, previous_hash = n.previous_hash,
			previous_expires_at = n.previous_expires_at, expiry_logged = n.expiry_logged, revoked_at = n.revoked_at, mac = n.mac, act = n.act,
			sign_in_as = n.sign_in_as, slack_member = n.slack_member
		from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::bytea[], $6::bigint[], $7::boolean[], $8::bigint[], $9::bytea[], $10::bigint[], $11::text[],
				$12::text[])
			n(id, org_id, hash, hint, previous_hash, previous_expires_at, expiry_logged, revoked_at, mac, act, sign_in_as, slack_member)
		where k.id = n.id and k.org_id = n.org_id`
	touchKeysSQL = `update api_keys k set last_used_at = n.at from unnest($1::uuid[], $2::bigint[]) n(id, at)
		where k.id = n.id and (k.last_used_at is null or k.last_used_at < n.at)`
	insertRotationsSQL = `insert into key_rotations (` + rotationColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[])`
	loadRotationsSQL = `select ` + rotationColumns + ` from unnest($1::uuid[], $2::text[]) n(org, key)
		join key_rotations on org_id = n.org and idempotency_key = n.key`
)

func keyUUID(id ledger.KeyID) uuid.UUID { return id.UUID }

func keyID(k *ledger.KeyRecord) uuid.UUID  { return k.ID.UUID }
func keyOrg(k *ledger.KeyRecord) uuid.UUID { return k.Org.UUID }

func keyAct(k *ledger.KeyRecord) int64 { return k.Act }

func keySignInAs(k *ledger.KeyRecord) string    { return k.SignInAs }
func keySlackMember(k *ledger.KeyRecord) string { return k.SlackMember }

func keyMAC(k *ledger.KeyRecord) []byte { return notNil(k.MAC) }

func previousHash(k *ledger.KeyRecord) []byte {
	if k.Previous == nil {
		return nil
	}
	return k.Previous.Hash[:]
}

func previousExpiry(k *ledger.KeyRecord) *ledger.Time {
	if k.Previous == nil {
		return nil
	}
	return &k.Previous.ExpiresAt
}

func sendKeys(rt *roundTrip, keys, changed []*ledger.KeyRecord) {
	if len(keys) > 0 {
		rt.send(insertKeysSQL, ids(keys, keyID), ids(keys, keyOrg),
			texts(keys, func(k *ledger.KeyRecord) string { return k.Name }),
			texts(keys, func(k *ledger.KeyRecord) string { return string(k.Role) }),
			blobs(keys, func(k *ledger.KeyRecord) []byte { return k.Hash[:] }),
			texts(keys, func(k *ledger.KeyRecord) string { return k.Hint }),
			ints(keys, func(k *ledger.KeyRecord) int64 { return int64(k.CreatedAt) }),
			intsOrNull(keys, func(k *ledger.KeyRecord) *ledger.Time { return k.RevokedAt }),
			texts(keys, func(k *ledger.KeyRecord) string { return string(ledger.EncodeAgents(k.Agents)) }),
			texts(keys, func(k *ledger.KeyRecord) string { return k.Owner }),
			intsOrNull(keys, func(k *ledger.KeyRecord) *ledger.Time { return k.ExpiresAt }),
			bools(keys, func(k *ledger.KeyRecord) bool { return k.ExpiryLogged }),
			intsOrNull(keys, func(k *ledger.KeyRecord) *ledger.Time { return k.LastUsedAt }),
			blobs(keys, previousHash), intsOrNull(keys, previousExpiry), blobs(keys, keyMAC), ints(keys, keyAct),
			texts(keys, keySignInAs), texts(keys, keySlackMember))
	}
	if len(changed) > 0 {
		rt.send(lockKeysSQL, ids(changed, keyID))
		rt.update(len(changed), "keys", updateKeysSQL, ids(changed, keyID), ids(changed, keyOrg),
			blobs(changed, func(k *ledger.KeyRecord) []byte { return k.Hash[:] }),
			texts(changed, func(k *ledger.KeyRecord) string { return k.Hint }),
			blobs(changed, previousHash), intsOrNull(changed, previousExpiry),
			bools(changed, func(k *ledger.KeyRecord) bool { return k.ExpiryLogged }),
			intsOrNull(changed, func(k *ledger.KeyRecord) *ledger.Time { return k.RevokedAt }), blobs(changed, keyMAC), ints(changed, keyAct),
			texts(changed, keySignInAs), texts(changed, keySlackMember))
	}
}

// sendRotations inserts in order of key, for the same reason as sendChains.
func sendRotations(rt *roundTrip, rotations []*store.RotationRecord) {
	if len(rotations) == 0 {
		return
	}
	rotations = slices.SortedFunc(slices.Values(rotations), func(a, b *store.RotationRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.IdempotencyKey, b.IdempotencyKey))
	})
	rt.send(insertRotationsSQL,
		ids(rotations, func(r *store.RotationRecord) uuid.UUID { return r.Org.UUID }),
		ids(rotations, func(r *store.RotationRecord) uuid.UUID { return r.Key.UUID }),
		ints(rotations, func(r *store.RotationRecord) int64 { return r.Overlap.Milliseconds() }),
		ints(rotations, func(r *store.RotationRecord) int64 { return int64(r.RotatedAt) }),
		texts(rotations, func(r *store.RotationRecord) string { return r.IdempotencyKey }),
		blobs(rotations, func(r *store.RotationRecord) []byte { return notNil(r.MAC) }))
}

func loadRotations(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	loaded.Rotations = make(map[store.RotationRef]*store.RotationRecord)
	if rotations := distinct(needs.Rotations); len(rotations) > 0 {
		fetch(rt, loadRotationsSQL, readRotation,
			func(r *store.RotationRecord) {
				loaded.Rotations[store.RotationRef{Org: r.Org, Key: r.IdempotencyKey}] = r
			},
			ids(rotations, func(r store.RotationRef) uuid.UUID { return r.Org.UUID }),
			texts(rotations, func(r store.RotationRef) string { return r.Key }))
	}
}

// TouchKeys implements store.Directory.
func (s *Store) TouchKeys(ctx context.Context, used map[ledger.KeyID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	keys := slices.Collect(maps.Keys(used))
	wanted := ids(keys, keyUUID)
	rt := new(roundTrip)
	rt.send(lockKeyUseSQL, wanted)
	rt.send(touchKeysSQL, wanted, ints(keys, func(id ledger.KeyID) int64 { return int64(used[id]) }))
	return s.runTransaction(ctx, "touch keys", rt)
}

const insertSignInSQL = `insert into sign_ins (hash, key_id, org_id, expires_at, session, sign_in_as, act, mac) values ($1, $2, $3, $4, $5, $6, $7, $8)`

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insertSignInSQL,
			link.Hash[:], bytesOf(link.Key), bytesOf(link.Org.UUID), int64(link.ExpiresAt), false, link.SignInAs, link.Act, notNil(link.MAC))
		return explain("create sign-in", err)
	})
}

// OpenSession implements store.SignIns. If a link is used twice at the same time, the second use
// waits until the first has deleted the row and then finds none.
func (s *Store) OpenSession(ctx context.Context, link [32]byte, session *store.SignIn, now ledger.Time) error {
	const sql = `with used as (
			delete from sign_ins where hash = $1 and not session and expires_at > $2 and key_id = $3 returning key_id
		)
		insert into sign_ins (hash, key_id, org_id, expires_at, session, sign_in_as, act, mac) select $4, key_id, $7, $5, true, $9, $8, $6 from used returning key_id`
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var key uuid.UUID
		row := conn.QueryRow(ctx, sql, link[:], int64(now), bytesOf(session.Key), session.Hash[:], int64(session.ExpiresAt), notNil(session.MAC),
			bytesOf(session.Org.UUID), session.Act, session.SignInAs)
		if err := scanRow("open session", row, target(&key)); err != nil {
			return err
		}
		return forgetExpired(ctx, conn, now)
	})
}

// CreateSession implements store.SignIns.
func (s *Store) CreateSession(ctx context.Context, session *store.SignIn, now ledger.Time) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insertSignInSQL, session.Hash[:], bytesOf(session.Key), bytesOf(session.Org.UUID), int64(session.ExpiresAt), true,
			session.SignInAs, session.Act, notNil(session.MAC))
		if err != nil {
			return explain("create session", err)
		}
		return forgetExpired(ctx, conn, now)
	})
}

// forgetExpired deletes some expired rows. It skips rows that another transaction is deleting.
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
	err := s.queryRow(ctx, what, `select key_id, org_id, expires_at, sign_in_as, act, mac from sign_ins where hash = $1 and session = $2 and expires_at > $3`,
		[]any{in.Hash[:], in.Session, int64(now)}, target(&in.Key), target(&in.Org.UUID), (*int64)(&in.ExpiresAt), &in.SignInAs, &in.Act, &in.MAC)
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

// KeyChecks implements store.KeyChecks.
func (s *Store) KeyChecks(ctx context.Context) (map[string][32]byte, error) {
	checks := make(map[string][32]byte)
	err := s.query(ctx, "key checks", `select key_id, fingerprint from master_keys`, nil, func(r *row) error {
		checks[r.text()] = r.hash()
		return r.end()
	})
	if err != nil {
		return nil, err
	}
	return checks, nil
}

// AddKeyCheck implements store.KeyChecks. The update changes nothing. It makes the statement return
// the existing row, even if another process inserts it at the same time.
func (s *Store) AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error {
	const what = "add key check"
	const sql = `insert into master_keys as m (key_id, fingerprint) values ($1, $2)
		on conflict (key_id) do update set key_id = m.key_id returning m.fingerprint`
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var kept []byte
		if err := scanRow(what, conn.QueryRow(ctx, sql, keyID, fingerprint[:]), &kept); err != nil {
			return err
		}
		if [32]byte(kept) != fingerprint {
			return fmt.Errorf("%s: %w with another fingerprint", what, store.ErrExists)
		}
		return nil
	})
}

const (
	ledgerColumns = `id, parent_id, created_at, mac`
	putLedgerSQL  = `insert into ledger_identity as l (no, ` + ledgerColumns + `) values (1, $1, $2, $3, $4)
		on conflict (no) do update set id = excluded.id, parent_id = excluded.parent_id, created_at = excluded.created_at, mac = excluded.mac
		where l.id = $5`
)

// Ledger implements store.Identity.
func (s *Store) Ledger(ctx context.Context) (*store.LedgerRecord, error) {
	return one(ctx, s, "ledger", `select `+ledgerColumns+` from ledger_identity`, nil, func(r *row) *store.LedgerRecord {
		return &store.LedgerRecord{ID: r.id(), Parent: r.id(), CreatedAt: r.time(), MAC: r.bytes()}
	})
}

// PutLedger implements store.Identity.
func (s *Store) PutLedger(ctx context.Context, l *store.LedgerRecord, replaces uuid.UUID) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		put, err := conn.Exec(ctx, putLedgerSQL, bytesOf(l.ID), bytesOf(l.Parent), int64(l.CreatedAt), notNil(l.MAC), bytesOf(replaces))
		if err == nil && put.RowsAffected() == 0 {
			return fmt.Errorf("ledger: %w", store.ErrExists)
		}
		return explain("put ledger", err)
	})
}
