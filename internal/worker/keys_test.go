package worker_test

import (
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
)

// The expiry of a key is recorded once, when it expires.
func TestExpiryOfKeysIsEntered(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		expires := ledger.TimeOf(w.clock.Now().Add(time.Hour))
		for _, name := range []string{"short", "revoked"} {
			key, err := w.service.CreateAPIKey(t.Context(), w.admin, &service.KeyRequest{Name: name, Role: ledger.RoleAgent, ExpiresAt: &expires})
			if err == nil && name == "revoked" {
				_, err = w.service.RevokeAPIKey(t.Context(), w.admin, key.Record.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		expiries := func() (count int) {
			t.Helper()
			acts, err := w.service.Acts(t.Context(), w.admin, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, stored := range acts {
				act, err := ledger.DecodeAct(stored.Body)
				if err != nil {
					t.Fatal(err)
				}
				if act.Action == "api_key.expire" {
					count++
				}
			}
			return count
		}
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		if n := expiries(); n != 0 {
			t.Errorf("%d expiries before there was one", n)
		}
		w.queue(2, 0)
		w.clock.Advance(time.Hour)
		w.run(worker)
		w.clock.Advance(time.Hour)
		w.run(worker)
		if n := expiries(); n != 1 {
			t.Errorf("%d expiries are entered, want 1", n)
		}
		w.queue(0, 0)
	})
}

// The last use of a key is written at most once a minute.
func TestUseOfKeysIsWrittenDown(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		if err := w.service.FlushKeyUse(t.Context()); err != nil {
			t.Fatal(err)
		}
		running := w.worker(w.service, nil, nil)
		running.Start()
		defer running.Stop(t.Context())
		lastUse := func() ledger.Time {
			keys, err := w.service.APIKeys(t.Context(), w.admin, ledger.KeyID{}, 100)
			if err != nil {
				t.Error(err)
				return 0
			}
			for _, key := range keys {
				if key.ID == w.agent.Key && key.LastUsedAt != nil {
					return *key.LastUsedAt
				}
			}
			return 0
		}
		before := lastUse()
		w.clock.Advance(30 * time.Second)
		w.ask()
		used := ledger.TimeOf(w.clock.Now())
		if at := lastUse(); at != before {
			t.Errorf("the use at %v is written within the minute, as %v", used, at)
		}
		w.clock.Advance(30 * time.Second)
		servicetest.Eventually(w.t, "the use is listed", func() bool { return lastUse() == used })
	})
}
