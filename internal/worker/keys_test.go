package worker_test

import (
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
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
		worker := w.worker(w.service, nil, nil)
		w.run(worker)
		if n := w.expiries(); n != 0 {
			t.Errorf("%d expiries before there was one", n)
		}
		w.queue(2, 0)
		w.clock.Advance(time.Hour)
		w.run(worker)
		w.clock.Advance(time.Hour)
		w.run(worker)
		if n := w.expiries(); n != 1 {
			t.Errorf("%d expiries are entered, want 1", n)
		}
		w.queue(0, 0)
	})
}

// expiries counts the expiries of keys in the audit log.
func (w *world) expiries() (count int) {
	w.t.Helper()
	acts, err := w.service.Acts(w.t.Context(), w.admin, 0, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, stored := range acts {
		act, err := ledger.DecodeAct(stored.Body)
		if err != nil {
			w.t.Fatal(err)
		}
		if act.Action == "api_key.expire" {
			count++
		}
	}
	return count
}

// The expiry of a key that was changed or deleted outside the service is reported as tampering, and
// entered once the key is restored.
func TestExpiryOfTamperedKeyIsEntered(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := newWorld(t, db.Open(t))
		expires := ledger.TimeOf(w.clock.Now().Add(time.Hour))
		_, err := w.service.CreateAPIKey(t.Context(), w.admin, &service.KeyRequest{Name: "short", Role: ledger.RoleAgent, ExpiresAt: &expires})
		if err != nil {
			t.Fatal(err)
		}
		direct := db.Direct(t)
		execute := func(statement string) {
			t.Helper()
			if _, err := direct.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		execute("CREATE TABLE kept AS SELECT * FROM api_keys WHERE name = 'short'")
		w.clock.Advance(time.Hour)
		worker := w.worker(w.service, nil, nil)
		for i, tampering := range [][2]string{
			{"UPDATE api_keys SET owner = 'him' WHERE name = 'short'", "UPDATE api_keys SET owner = '' WHERE name = 'short'"},
			{"DELETE FROM api_keys WHERE name = 'short'", "INSERT INTO api_keys SELECT * FROM kept"},
		} {
			execute(tampering[0])
			w.run(worker)
			w.clock.Advance(time.Minute)
			servicetest.Eventually(t, "the tampering is found", func() bool {
				findings, err := w.service.Operator().Findings(t.Context(), "acme")
				return err == nil && len(findings) == i+1
			})
			execute(tampering[1])
		}
		w.run(worker)
		if n := w.expiries(); n != 1 {
			t.Errorf("%d expiries are entered, want 1", n)
		}
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
