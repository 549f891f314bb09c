package service_test

import (
	"bytes"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// An event that is edited while its chain is summarised and put back afterwards
// leaves a digest that holds and a summary that does not.
func TestAuditFindsASummaryOfOtherEvents(t *testing.T) {
	t.Parallel()
	db := newSQLite(t)
	ring, _ := newRing(t)
	first := serve(t, service.Config{Store: db.open(t), Keys: ring})
	who := newTenant(t, first, "acme")
	chain := must[*service.ChainView](t)(first.OpenChain(t.Context(), who.agent, chainNamed(t, "run"), ""))
	must[*service.Recorded](t)(first.RecordEvent(t.Context(), who.agent, chain.ID, step(t, "wire_money", "")))

	scene := &scene{t: t, service: first, dialect: sqliteDialect, direct: direct(t, "sqlite", db.address)}
	genuine := scene.last("events")
	body := genuine.value("body").([]byte)
	if err := scene.update("events SET body = ?", bytes.Replace(body, []byte("wire_money"), []byte("read_docs"), 1)); err != nil {
		t.Fatal(err)
	}
	// Another replica has nothing in memory and summarises what is stored.
	second := serve(t, service.Config{Store: db.open(t), Keys: ring})
	must[*service.Completed](t)(second.CompleteChain(t.Context(), who.agent, chain.ID, &ledger.Completion{}))
	if err := scene.update("events SET body = ?", body); err != nil {
		t.Fatal(err)
	}
	report, err := second.Operator().Audit(t.Context(), "acme", service.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Status != service.AuditBroken || report.Break.Check != ledger.CheckEventsDigest || report.Break.Sequence != 1 {
		t.Errorf("audit: %s, %v", report.Status, report.Break)
	}
}

// What is in memory vouches for the record that it was authenticated with and
// for no other.
func TestAForgedChainIsRefusedBesideACachedState(t *testing.T) {
	t.Parallel()
	db := newSQLite(t)
	ring, _ := newRing(t)
	s := serve(t, service.Config{Store: db.open(t), Keys: ring})
	who := newTenant(t, s, "acme")
	chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "run"), ""))
	must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain.ID, step(t, "one", "")))
	scene := &scene{t: t, service: s, dialect: sqliteDialect, direct: direct(t, "sqlite", db.address)}
	record := scene.last("chains")
	other := newKey(t, s, "acme", ledger.RoleAgent)
	forged := bytes.ReplaceAll(record.value("body").([]byte), []byte(who.agent.Key.String()), []byte(other.Record.ID.String()))
	if err := scene.update("chains SET body = ?, opened_by = ?", forged, other.Record.ID.UUID[:]); err != nil {
		t.Fatal(err)
	}
	_, err := s.RecordEvent(t.Context(), authenticate(t, s, other), chain.ID, step(t, "two", ""))
	if code := codeOf(err); code != ledger.CodeEvidenceTampered && code != ledger.CodeNotFound {
		t.Errorf("another agent's record: %v", err)
	}
	fresh := serve(t, service.Config{Store: db.open(t), Keys: ring})
	_, err = fresh.RecordEvent(t.Context(), authenticate(t, fresh, other), chain.ID, step(t, "two", ""))
	checkCode(t, "another agent's record on a fresh replica", err, ledger.CodeEvidenceTampered)
}
