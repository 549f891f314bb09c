package service_test

import (
	"bytes"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// openScene returns a store with one open chain of one event, and direct access to it. replica
// starts a service on the same store with nothing in memory.
func openScene(t *testing.T, action string) (replica func() *service.Service, s *scene, who *tenant, chain ledger.ChainID) {
	t.Helper()
	db := testdb.SQLite(t)
	ring, _ := servicetest.NewRing(t)
	replica = func() *service.Service { return serve(t, service.Config{Store: db.Open(t), Keys: ring}) }
	s = &scene{t: t, service: replica(), dialect: sqliteDialect, direct: db.Direct(t)}
	who = newTenant(t, s.service, "acme")
	opened := must[*service.ChainView](t)(s.service.OpenChain(t.Context(), who.agent, chainNamed(t, "run"), ""))
	must[*service.Recorded](t)(s.service.RecordEvent(t.Context(), who.agent, opened.ID, step(t, action, "")))
	return replica, s, who, opened.ID
}

// A chain is not sealed while one of its events differs from what was recorded, neither by a
// replica that reads them for the first time nor by the one that recorded them and has their
// summary in memory. Once the event is restored, both seal it.
func TestNoReceiptOfEditedEvents(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(s *scene, genuine row) error{
		"its facts": func(s *scene, genuine row) error {
			body := bytes.Replace(genuine.value("body").([]byte), []byte("wire_money"), []byte("read_docs"), 1)
			return s.exec("UPDATE events SET body = ? WHERE sequence = 2", body)
		},
		"its authenticator": func(s *scene, _ row) error {
			return s.exec("UPDATE events SET mac = zeroblob(32) WHERE sequence = 2")
		},
		"its idempotency key": func(s *scene, _ row) error {
			return s.exec("UPDATE events SET idempotency_key = 'another' WHERE sequence = 2")
		},
		"its sequence": func(s *scene, _ row) error { return s.exec("UPDATE events SET sequence = 3 WHERE sequence = 2") },
		"another event in its place": func(s *scene, _ row) error {
			return s.exec("UPDATE events SET (body, mac) = (SELECT body, mac FROM events WHERE sequence = 1) WHERE sequence = 2")
		},
		"deleted": func(s *scene, _ row) error { return s.exec("DELETE FROM events WHERE sequence = 2") },
	} {
		for _, replicaIs := range []string{"warm", "cold"} {
			t.Run(name+"/"+replicaIs, func(t *testing.T) {
				t.Parallel()
				replica, scene, who, chain := openScene(t, "read_docs")
				must[*service.Recorded](t)(scene.service.RecordEvent(t.Context(), who.agent, chain, step(t, "wire_money", "")))
				genuine := scene.last("events")
				if err := edit(scene, genuine); err != nil {
					t.Fatal(err)
				}
				sealing := scene.service
				if replicaIs == "cold" {
					sealing = replica()
				}
				_, err := sealing.CompleteChain(t.Context(), who.agent, chain, &ledger.Completion{})
				checkCode(t, "completing the chain", err, fault.CodeEvidenceTampered)
				if err := scene.exec("DELETE FROM events WHERE sequence > 1"); err != nil {
					t.Fatal(err)
				}
				if err := scene.insert(&genuine); err != nil {
					t.Fatal(err)
				}
				must[*service.Completed](t)(sealing.CompleteChain(t.Context(), who.agent, chain, &ledger.Completion{}))
				checkIntact(t, sealing, "acme", 1)
			})
		}
	}
}

// A repeated request is answered from the record of the first, which must be authentic: an edit
// cannot turn a denial into permission.
func TestNoAnswerFromAnEditedEvent(t *testing.T) {
	t.Parallel()
	replica, scene, who, chain := openScene(t, "one")
	action := step(t, "wire_money", "again")
	first := must[*service.Recorded](t)(scene.service.RecordEvent(t.Context(), who.agent, chain, action))
	if first.Event.Decision.Outcome != ledger.RequireApproval {
		t.Fatalf("a payment without an amount is decided %s", first.Event.Decision.Outcome)
	}
	second := scene.last("events")
	body := second.value("body").([]byte)
	edited := bytes.Replace(body, []byte(`"policy_decision":"require_approval"`), []byte(`"policy_decision":"allow"`), 1)
	if err := scene.exec("UPDATE events SET body = ? WHERE sequence = 2", edited); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*service.Service{"the same": scene.service, "another": replica()} {
		_, err := s.RecordEvent(t.Context(), who.agent, chain, action)
		checkCode(t, name+" replica", err, fault.CodeEvidenceTampered)
	}
}

// What an authentic chain refers to exists. If it is gone, the answer is tampering, not that there
// never was such a thing.
func TestWhatAChainRefersToIsMissed(t *testing.T) {
	t.Parallel()
	replica, scene, who, chain := openScene(t, "read_docs")
	resume := func(s *service.Service) error {
		_, err := s.ResumeChain(t.Context(), who.admin, chain)
		return err
	}
	event := scene.last("events")
	done(t, scene.exec("DELETE FROM events"))
	for name, s := range map[string]*service.Service{"the same": scene.service, "another": replica()} {
		checkCode(t, name+" replica resumes a chain without its last event", resume(s), fault.CodeEvidenceTampered)
	}
	done(t, scene.insert(&event))
	_, err := scene.service.ReceiptOfChain(t.Context(), who.agent, chain)
	checkCode(t, "the receipt of an open chain", err, fault.CodeNotFound)
	must[*service.Completed](t)(scene.service.CompleteChain(t.Context(), who.agent, chain, &ledger.Completion{}))
	done(t, scene.exec("DELETE FROM receipts"))
	for name, s := range map[string]*service.Service{"the same": scene.service, "another": replica()} {
		_, err := s.ReceiptOfChain(t.Context(), who.agent, chain)
		checkCode(t, name+" replica reads the receipt of a sealed chain", err, fault.CodeEvidenceTampered)
		_, err = s.CompleteChain(t.Context(), who.agent, chain, &ledger.Completion{})
		checkCode(t, name+" replica completes the chain again", err, fault.CodeEvidenceTampered)
	}
}

// A cached state applies only to the record that it was authenticated with.
func TestAForgedChainIsRefusedBesideACachedState(t *testing.T) {
	t.Parallel()
	replica, scene, who, chain := openScene(t, "one")
	s := scene.service
	record := scene.last("chains")
	other := newKey(t, s, "acme", ledger.RoleAgent)
	forged := bytes.ReplaceAll(record.value("body").([]byte), []byte(who.agent.Key.String()), []byte(other.Record.ID.String()))
	if err := scene.update("chains SET body = ?, opened_by = ?", forged, other.Record.ID.UUID[:]); err != nil {
		t.Fatal(err)
	}
	_, err := s.RecordEvent(t.Context(), servicetest.Authenticate(t, s, other), chain, step(t, "two", ""))
	if code := codeOf(err); code != fault.CodeEvidenceTampered && code != fault.CodeNotFound {
		t.Errorf("another agent's record: %v", err)
	}
	fresh := replica()
	_, err = fresh.RecordEvent(t.Context(), servicetest.Authenticate(t, fresh, other), chain, step(t, "two", ""))
	checkCode(t, "another agent's record on a fresh replica", err, fault.CodeEvidenceTampered)
}
