package storetest

import (
	"context"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var keyCases = []testCase{
	{name: "a key is found by id and by hash", run: findsKeys},
	{name: "an unknown key is not found", run: unknownKey},
	{name: "a key that collides is refused", run: collidingKey},
	{name: "keys are listed by id, page by page", run: listsKeys},
	{name: "the first revocation stands", run: firstRevocationStands},
	{name: "another organization's key is not revoked", run: revokesOwnKeysOnly},
	{name: "one key revoked by many at once", run: oneRevocation},
}

func findsKeys(t *testing.T, w *world) {
	m := w.join(t)
	for _, role := range []ledger.Role{ledger.RoleAgent, ledger.RoleMember, ledger.RoleAdmin} {
		key := w.newKey(m.org.ID)
		key.Role, key.Name = role, "clé de "+string(role)
		if err := w.CreateKey(t.Context(), key); err != nil {
			t.Fatalf("create key: %v", err)
		}
		assertEqual(t, "by id", must[*ledger.KeyRecord](t)(w.Key(t.Context(), key.ID)), key)
		assertEqual(t, "by hash", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), key.Hash)), key)
	}
}

func unknownKey(t *testing.T, w *world) {
	m := w.join(t)
	stranger := w.newKey(m.org.ID)
	_, err := w.Key(t.Context(), stranger.ID)
	wantError(t, "by id", err, store.ErrNotFound)
	_, err = w.KeyByHash(t.Context(), stranger.Hash)
	wantError(t, "by hash", err, store.ErrNotFound)
	_, err = w.RevokeKey(t.Context(), m.org.ID, stranger.ID, w.now())
	wantError(t, "revoke", err, store.ErrNotFound)
}

func collidingKey(t *testing.T, w *world) {
	m := w.join(t)
	sameID, sameHash := w.newKey(m.org.ID), w.newKey(m.org.ID)
	sameID.ID, sameHash.Hash = m.key.ID, m.key.Hash
	wantError(t, "same id", w.CreateKey(t.Context(), sameID), store.ErrExists)
	wantError(t, "same hash", w.CreateKey(t.Context(), sameHash), store.ErrExists)
	assertEqual(t, "the first", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), m.key)
}

func listsKeys(t *testing.T, w *world) {
	m := w.join(t)
	w.join(t)
	want := []*ledger.KeyRecord{m.key}
	for range 6 {
		key := w.newKey(m.org.ID)
		if err := w.CreateKey(t.Context(), key); err != nil {
			t.Fatalf("create key: %v", err)
		}
		want = append(want, key)
	}
	want[2] = must[*ledger.KeyRecord](t)(w.RevokeKey(t.Context(), m.org.ID, want[2].ID, w.now()))
	var got []*ledger.KeyRecord
	var after ledger.KeyID
	for {
		page := must[[]*ledger.KeyRecord](t)(w.Keys(t.Context(), m.org.ID, after, 3))
		got = append(got, page...)
		if len(page) < 3 || len(got) > len(want) {
			break
		}
		after = page[len(page)-1].ID
	}
	assertEqual(t, "keys", got, want)
}

func firstRevocationStands(t *testing.T, w *world) {
	m := w.join(t)
	first, second := w.now(), w.now()
	for _, at := range []ledger.Time{first, second, first - 1000} {
		key := must[*ledger.KeyRecord](t)(w.RevokeKey(t.Context(), m.org.ID, m.key.ID, at))
		if key.RevokedAt == nil || *key.RevokedAt != first {
			t.Errorf("revoked at %v, want %v", key.RevokedAt, first)
		}
	}
	m.key.RevokedAt = &first
	assertEqual(t, "key", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), m.key.Hash)), m.key)
}

func revokesOwnKeysOnly(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	_, err := w.RevokeKey(t.Context(), other.org.ID, m.key.ID, w.now())
	wantError(t, "revoke", err, store.ErrNotFound)
	assertEqual(t, "key", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), m.key)
}

func oneRevocation(t *testing.T, w *world) {
	const workers = 9
	m := w.join(t)
	var seen [workers]ledger.Time
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		key, err := s.RevokeKey(ctx, m.org.ID, m.key.ID, w.now())
		if err == nil && key.RevokedAt != nil {
			seen[worker] = *key.RevokedAt
		}
		return err
	})
	for _, at := range seen {
		if at == 0 || at != seen[0] {
			t.Fatalf("the revokers were told different moments: %v", seen)
		}
	}
}
