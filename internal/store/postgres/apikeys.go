package postgres

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	insertKeysSQL = `insert into api_keys (` + keyColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bigint[], $8::bigint[],
			$9::text[], $10::text[], $11::bigint[], $12::boolean[], $13::bigint[], $14::bytea[], $15::bigint[], $16::bytea[], $17::bigint[])`
	// Rows are locked in order of id before they are written: in different orders
	// two writers would wait for each other. A rotation changes a unique column,
	// which needs the strongest lock; a use does not, and waits for no chain that is
	// being opened.
	lockKeysSQL   = `select from api_keys where id = any($1::uuid[]) order by id for update`
	lockKeyUseSQL = `select from api_keys where id = any($1::uuid[]) order by id for no key update`
	updateKeysSQL = `update api_keys k set hash = n.hash, hint = n.hint, previous_hash = n.previous_hash,
			previous_expires_at = n.previous_expires_at, expiry_logged = n.expiry_logged, revoked_at = n.revoked_at, mac = n.mac, act = n.act
		from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::bytea[], $6::bigint[], $7::boolean[], $8::bigint[], $9::bytea[], $10::bigint[])
			n(id, org_id, hash, hint, previous_hash, previous_expires_at, expiry_logged, revoked_at, mac, act)
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

func keyMAC(k *ledger.KeyRecord) []byte { return filled(k.MAC) }

// filled is bytes for a column that takes no null.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

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

func sendKeys(x *exchange, keys, changed []*ledger.KeyRecord) {
	if len(keys) > 0 {
		x.send(insertKeysSQL, ids(keys, keyID), ids(keys, keyOrg),
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
			blobs(keys, previousHash), intsOrNull(keys, previousExpiry), blobs(keys, keyMAC), ints(keys, keyAct))
	}
	if len(changed) > 0 {
		x.send(lockKeysSQL, ids(changed, keyID))
		x.update(len(changed), "keys", updateKeysSQL, ids(changed, keyID), ids(changed, keyOrg),
			blobs(changed, func(k *ledger.KeyRecord) []byte { return k.Hash[:] }),
			texts(changed, func(k *ledger.KeyRecord) string { return k.Hint }),
			blobs(changed, previousHash), intsOrNull(changed, previousExpiry),
			bools(changed, func(k *ledger.KeyRecord) bool { return k.ExpiryLogged }),
			intsOrNull(changed, func(k *ledger.KeyRecord) *ledger.Time { return k.RevokedAt }), blobs(changed, keyMAC), ints(changed, keyAct))
	}
}

// sendRotations inserts in order of key, as sendChains does and for the same reason.
func sendRotations(x *exchange, rotations []*store.RotationRecord) {
	if len(rotations) == 0 {
		return
	}
	rotations = slices.SortedFunc(slices.Values(rotations), func(a, b *store.RotationRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.IdempotencyKey, b.IdempotencyKey))
	})
	x.send(insertRotationsSQL,
		ids(rotations, func(r *store.RotationRecord) uuid.UUID { return r.Org.UUID }),
		ids(rotations, func(r *store.RotationRecord) uuid.UUID { return r.Key.UUID }),
		ints(rotations, func(r *store.RotationRecord) int64 { return int64(r.Overlap) }),
		ints(rotations, func(r *store.RotationRecord) int64 { return int64(r.RotatedAt) }),
		texts(rotations, func(r *store.RotationRecord) string { return r.IdempotencyKey }),
		blobs(rotations, func(r *store.RotationRecord) []byte { return filled(r.MAC) }))
}

func askRotations(x *exchange, needs *store.Needs, loaded *store.Loaded) {
	loaded.Rotations = make(map[store.RotationRef]*store.RotationRecord)
	if rotations := distinct(needs.Rotations); len(rotations) > 0 {
		ask(x, loadRotationsSQL, readRotation,
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
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(lockKeyUseSQL, wanted)
		x.send(touchKeysSQL, wanted, ints(keys, func(id ledger.KeyID) int64 { return int64(used[id]) }))
		x.send(patientCommitSQL)
		return explain("touch keys", x.run(ctx, conn))
	})
}
