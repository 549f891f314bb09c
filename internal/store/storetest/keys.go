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
	{name: "a key with the smallest id is listed", run: listsSmallestKey},
	{name: "a key is revoked, and others are not", run: revokesKey},
	{name: "a revocation is seen by the next transaction", run: revocationIsSeen},
	{name: "one key, revoked concurrently", run: oneRevocation, concurrent: true},
}

func findsKeys(t *testing.T, w *world) {
	m := w.join(t)
	for _, role := range []ledger.Role{ledger.RoleAgent, ledger.RoleMember, ledger.RoleAdmin} {
		key := w.newKey(m.org.ID)
		key.Role, key.Name = role, "clé de "+string(role)
		w.mustAddKey(t, key)
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
	at := w.now()
	stranger.RevokedAt = &at
	wantError(t, "revoke", attempt(t.Context(), w, &store.Changes{Keys: []*ledger.KeyRecord{stranger}}), store.ErrNotFound)
}

func collidingKey(t *testing.T, w *world) {
	m := w.join(t)
	sameID, sameHash := w.newKey(m.org.ID), w.newKey(m.org.ID)
	sameID.ID, sameHash.Hash = m.key.ID, m.key.Hash
	wantError(t, "same id", w.addKey(t.Context(), w, sameID), store.ErrExists)
	wantError(t, "same hash", w.addKey(t.Context(), w, sameHash), store.ErrExists)
	assertEqual(t, "the first", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), m.key)
}

func listsKeys(t *testing.T, w *world) {
	m := w.join(t)
	w.join(t)
	want := []*ledger.KeyRecord{m.key}
	for range 6 {
		key := w.newKey(m.org.ID)
		w.mustAddKey(t, key)
		want = append(want, key)
	}
	want[2] = must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, want[2], w.now()))
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

func revokesKey(t *testing.T, w *world) {
	m := w.join(t)
	other := w.newKey(m.org.ID)
	w.mustAddKey(t, other)
	at := w.now()
	revoked := must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, m.key, at))
	m.key.RevokedAt = &at
	assertEqual(t, "returned", revoked, m.key)
	assertEqual(t, "by hash", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), m.key.Hash)), m.key)
	assertEqual(t, "by id", must[*ledger.KeyRecord](t)(w.open(t).Key(t.Context(), m.key.ID)), m.key)
	assertEqual(t, "other", must[*ledger.KeyRecord](t)(w.Key(t.Context(), other.ID)), other)
}

// revocationIsSeen loads the key first, through the handle that revokes and another one, to test
// stores with a cache.
func revocationIsSeen(t *testing.T, w *world) {
	m := w.join(t)
	handles := []store.Store{w.Store, w.open(t)}
	active := func(s store.Store) (active bool) {
		err := s.Transact(t.Context(), &store.Needs{Keys: []ledger.KeyID{m.key.ID}}, func(loaded *store.Loaded) (*store.Changes, error) {
			active = loaded.Keys[m.key.ID].Active(w.now())
			return &store.Changes{}, nil
		})
		if err != nil {
			t.Fatalf("transact: %v", err)
		}
		return active
	}
	for i, s := range handles {
		if !active(s) {
			t.Errorf("handle %d: the key is revoked before it was", i)
		}
	}
	must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, m.key, w.now()))
	for i, s := range handles {
		if active(s) {
			t.Errorf("handle %d: the revoked key is still active", i)
		}
	}
}

// oneRevocation relies on the audit log's lock, like the service.
func oneRevocation(t *testing.T, w *world) {
	const workers = 9
	m := w.join(t)
	var seen [workers]ledger.Time
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		key, err := w.revoke(ctx, s, m.key, w.now())
		if err == nil && key.RevokedAt != nil {
			seen[worker] = *key.RevokedAt
		}
		return err
	})
	for _, at := range seen {
		if at == 0 || at != seen[0] {
			t.Fatalf("the revokers got different times: %v", seen)
		}
	}
}

// listsSmallestKey stores an id that the service never makes: somebody who writes to the database
// can, and the audit must see it.
func listsSmallestKey(t *testing.T, w *world) {
	m := w.join(t)
	smallest := w.newKey(m.org.ID)
	smallest.ID = ledger.KeyID{}
	w.mustAddKey(t, smallest)
	assertEqual(t, "keys", must[[]*ledger.KeyRecord](t)(w.Keys(t.Context(), m.org.ID, ledger.KeyID{}, 10)), []*ledger.KeyRecord{smallest, m.key})
	assertEqual(t, "after it", must[[]*ledger.KeyRecord](t)(w.Keys(t.Context(), m.org.ID, m.key.ID, 10)), nil)
}
