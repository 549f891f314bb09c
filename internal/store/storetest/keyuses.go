package storetest

import (
	"context"
	"math/rand/v2"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var keyUseCases = []testCase{
	{name: "the last use of keys is remembered", run: touchesKeys},
	{name: "an earlier use changes nothing", run: earlierKeyUse},
	{name: "the use of an unknown key is left out", run: unknownKeyUse},
	{name: "the use of no key is no error", run: noKeyUse},
	{name: "a change of a key leaves its last use alone", run: changeKeepsUse},
	{name: "the latest use of many replicas is remembered", run: latestKeyUse, concurrent: true},
}

func touchesKeys(t *testing.T, w *world) {
	m := w.join(t)
	other := w.newKey(m.org.ID)
	w.mustAddKey(t, other)
	// This puts the key in the cache of the handle that writes the use, if it has one.
	w.look(t, &store.Needs{Keys: []ledger.KeyID{m.key.ID}}, func(*store.Loaded) {})
	at := w.now()
	w.useKey(t, m.key.ID, at)
	m.key.LastUsedAt = &at
	assertEqual(t, "by id", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), m.key)
	assertEqual(t, "by hash", must[*ledger.KeyRecord](t)(w.open(t).KeyByHash(t.Context(), m.key.Hash)), m.key)
	assertEqual(t, "the other", must[*ledger.KeyRecord](t)(w.Key(t.Context(), other.ID)), other)
	w.look(t, &store.Needs{Keys: []ledger.KeyID{m.key.ID}}, func(loaded *store.Loaded) { assertEqual(t, "loaded", loaded.Keys[m.key.ID], m.key) })
}

func (w *world) useKey(t *testing.T, id ledger.KeyID, at ledger.Time) {
	t.Helper()
	if err := w.TouchKeys(t.Context(), map[ledger.KeyID]ledger.Time{id: at}); err != nil {
		t.Fatalf("touch: %v", err)
	}
}

func earlierKeyUse(t *testing.T, w *world) {
	m := w.join(t)
	earlier, later := w.now(), w.now()
	w.useKey(t, m.key.ID, later)
	w.useKey(t, m.key.ID, earlier)
	if got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)).LastUsedAt; got == nil || *got != later {
		t.Errorf("the last use is %v, want %v", got, later)
	}
}

func unknownKeyUse(t *testing.T, w *world) {
	m := w.join(t)
	at := w.now()
	err := w.TouchKeys(t.Context(), map[ledger.KeyID]ledger.Time{w.newKey(m.org.ID).ID: at, m.key.ID: at})
	if err != nil {
		t.Fatalf("touch: %v", err)
	}
	if got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)).LastUsedAt; got == nil || *got != at {
		t.Errorf("the last use of the known key is %v, want %v", got, at)
	}
}

func noKeyUse(t *testing.T, w *world) {
	if err := w.TouchKeys(t.Context(), nil); err != nil {
		t.Errorf("touch: %v", err)
	}
}

// changeKeepsUse changes a key with a record that was read before the use.
func changeKeepsUse(t *testing.T, w *world) {
	m := w.join(t)
	at := w.now()
	w.useKey(t, m.key.ID, at)
	stale := *m.key
	stale.Hash = w.secret()
	w.write(t, &store.Changes{Keys: []*ledger.KeyRecord{&stale}})
	stale.LastUsedAt = &at
	assertEqual(t, "the key", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), &stale)
}

func latestKeyUse(t *testing.T, w *world) {
	const workers, each, width = 9, 6, 5
	m := w.join(t)
	ids := make([]ledger.KeyID, width)
	for i := range ids {
		key := w.newKey(m.org.ID)
		w.mustAddKey(t, key)
		ids[i] = key.ID
	}
	base := w.now()
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for _, i := range rand.New(rand.NewPCG(7, uint64(worker))).Perm(each) {
			used := make(map[ledger.KeyID]ledger.Time)
			for _, id := range ids {
				used[id] = base + ledger.Time(i*workers+worker)
			}
			if err := s.TouchKeys(ctx, used); err != nil {
				return err
			}
		}
		return nil
	})
	latest := base + workers*each - 1
	for _, id := range ids {
		if got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), id)).LastUsedAt; got == nil || *got != latest {
			t.Errorf("the last use is %v, want %v", got, latest)
		}
	}
}
