package service_test

import (
	"path/filepath"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// An audit without a memory outside the store cannot find some changes, because what is left was
// true once: an older state of everything, an open chain that was deleted or rolled back as a
// whole, and an audit log without its last act if the organization, which names that act, is
// rolled back with it. The process that appended the act finds it. If one of these is ever found
// without a memory, its case belongs to the other tests.
//
//countersign:race
func TestWhatAnAuditCannotFind(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	ring, _ := servicetest.NewRing(t)
	opened := db.Open(t)
	s := serve(t, service.Config{Store: opened, Keys: ring})
	who := newTenant(t, s, "acme")
	sealOne(t, s, who, "first")
	older := filepath.Join(t.TempDir(), "older.db")
	if err := opened.Backup(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	sealOne(t, s, who, "second")
	checkIntact(t, s, "acme", 2)

	t.Run("the whole store rolled back to an older one", func(t *testing.T) {
		restored := serve(t, service.Config{Store: testdb.SQLiteFile(older).Open(t), Keys: ring})
		checkIntact(t, restored, "acme", 1)
	})

	stranger := func() *service.Service { return serve(t, service.Config{Store: db.Open(t), Keys: ring}) }
	scene := &scene{t: t, service: s, dialect: sqliteDialect, direct: db.Direct(t)}
	open := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "open"), ""))
	must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, open.ID, step(t, "one", "")))
	before := scene.last("chain_states")
	must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, open.ID, step(t, "two", "")))

	t.Run("an open chain rolled back to what it was an event ago", func(t *testing.T) {
		state, event := scene.last("chain_states"), scene.last("events")
		if err := firstError(scene.remove(&event), scene.replace(state, before)); err != nil {
			t.Fatal(err)
		}
		checkIntact(t, s, "acme", 2)
	})
	t.Run("the last act cut, the log's end and the organization rolled back", func(t *testing.T) {
		end, org := scene.last("act_logs"), scene.last("organizations")
		key := newKey(t, s, "acme", ledger.RoleAgent)
		act := scene.last("acts")
		done(t, scene.exec("DELETE FROM api_keys WHERE id = ?", key.Record.ID.UUID[:])) // it names the act that goes
		if err := firstError(scene.remove(&act), scene.replace(scene.last("act_logs"), end)); err != nil {
			t.Fatal(err)
		}
		// An organization that was left as it is names an act that is gone.
		report := must[*verify.AuditReport](t)(s.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Status == verify.AuditIntact {
			t.Error("an audit log without its last act is found intact")
		}
		done(t, scene.replace(scene.last("organizations"), org))
		report = must[*verify.AuditReport](t)(s.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Break == nil || report.Break.Check != ledger.CheckRollback {
			t.Errorf("the process that entered the act finds %+v", report.Break)
		}
		checkIntact(t, stranger(), "acme", 2)
	})
	t.Run("an open chain removed whole", func(t *testing.T) {
		event, state, chain := scene.last("events"), scene.last("chain_states"), scene.last("chains")
		if err := firstError(scene.remove(&event), scene.remove(&state), scene.remove(&chain)); err != nil {
			t.Fatal(err)
		}
		checkIntact(t, stranger(), "acme", 2)
	})
}

func (s *scene) last(table string) row {
	rows := s.rowsOf(table)
	return rows[len(rows)-1]
}

// A chain whose stored state was changed is refused as tampered, not used.
func TestTamperedStateIsNotUsed(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	ring, _ := servicetest.NewRing(t)
	s := serve(t, service.Config{Store: db.Open(t), Keys: ring})
	who := newTenant(t, s, "acme")
	chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "one"), ""))
	recorded := must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain.ID, step(t, "one", "")))
	scene := &scene{t: t, service: s, dialect: sqliteDialect, direct: db.Direct(t)}
	tampered := func(name string, use func() error) {
		t.Helper()
		checkCode(t, name, use(), fault.CodeEvidenceTampered)
	}
	head := scene.last("heads")
	if err := scene.set(&head, "count", int64(5)); err != nil {
		t.Fatal(err)
	}
	tampered("complete under a forged head", func() error { return complete(t.Context(), s, who.agent, chain.ID) })
	huge := scene.last("heads")
	if err := scene.set(&huge, "count", int64(1)<<60); err != nil {
		t.Fatal(err)
	}
	tampered("complete under a head beyond counting", func() error { return complete(t.Context(), s, who.agent, chain.ID) })
	state := scene.last("chain_states")
	if err := scene.set(&state, "mac", make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	tampered("record", func() error {
		_, err := s.RecordEvent(t.Context(), who.agent, chain.ID, step(t, "two", ""))
		return err
	})
	tampered("report", func() error {
		_, err := s.ReportOutcome(t.Context(), who.agent, chain.ID, recorded.Event.ID, &ledger.Entry{Result: ledger.Failed})
		return err
	})
	tampered("read", func() error { _, err := s.Chain(t.Context(), who.member, chain.ID); return err })
	if listed := must[[]*service.ChainView](t)(s.Chains(t.Context(), who.member, service.ChainFilter{Limit: 9})); len(listed) != 1 || !listed[0].Tampered || listed[0].State != nil {
		t.Errorf("the list shows %+v, want one chain that is marked", listed)
	}
	if events := must[[]*ledger.StoredEvent](t)(db.Open(t).Events(t.Context(), chain.ID, 0, 9)); len(events) != 1 {
		t.Errorf("%d events are stored, want the one from before", len(events))
	}
}
