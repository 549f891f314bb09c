package service_test

import (
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// A verdict with the hash of another payload decides nothing.
func TestAVerdictOnAnotherPayload(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		id := g.ask(g.open("bound"))
		seen := g.view(id).PayloadSHA256
		_, err := g.DecideApproval(t.Context(), g.who.member, id, &ledger.Verdict{Approve: true, PayloadSHA256: ledger.PayloadHash([]byte("{}"))})
		checkCode(t, "the hash of another payload", err, fault.CodePayloadMismatch)
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		_, err = g.DecideApproval(t.Context(), g.who.member, id, &ledger.Verdict{Approve: true, PayloadSHA256: seen})
		checkCode(t, "the hash that was seen", err, "")
		checkStatus(t, g.view(id), ledger.ApprovalApproved)
	})
}

// A payload that is edited in the database is neither shown nor decided nor released.
//
//countersign:race
func TestAPayloadEditedWhileItWaits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("edited")
		id := g.ask(chain)
		s := g.scene()
		event := s.last("events")
		genuine := event.value("payload")
		for name, payload := range map[string]any{"another payload": []byte(`{"amount_usd":1}`), "no payload": nil} {
			if err := s.update("events SET payload = ?", payload); err != nil {
				t.Fatal(err)
			}
			for _, replica := range []*service.Service{g.Service, g.replica()} {
				_, err := replica.Approval(t.Context(), g.who.member, id, 0)
				checkCode(t, name+" read", err, fault.CodeEvidenceTampered)
				for _, approve := range []bool{true, false} {
					_, err = replica.DecideApproval(t.Context(), g.who.member, id, &ledger.Verdict{Approve: approve})
					checkCode(t, name+" decided", err, fault.CodeEvidenceTampered)
				}
			}
			if err := s.update("events SET payload = ?", genuine); err != nil {
				t.Fatal(err)
			}
			checkStatus(t, g.view(id), ledger.ApprovalPending)
		}
		g.approve(id)
		if err := s.update("events SET payload = ?", []byte(`{"amount_usd":1}`)); err != nil {
			t.Fatal(err)
		}
		_, err := g.Approval(t.Context(), g.who.agent, id, 0)
		checkCode(t, "a release of another payload", err, fault.CodeEvidenceTampered)
	})
}

// An approval's row from before the decision is authentic, but cannot be decided a second time
// when it is restored: neither by a person, nor by its deadline, nor by completing the chain.
//
//countersign:race
func TestAnApprovalRolledBack(t *testing.T) {
	t.Parallel()
	for name, approve := range map[string]bool{"approved": true, "denied": false} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				g := govern(t, db)
				chain := g.open(name)
				id := g.ask(chain)
				s := g.scene()
				pending := s.last("approvals")
				checkCode(t, "decide", g.decide(g.who.member, id, approve), "")
				if err := s.replace(s.last("approvals"), pending); err != nil {
					t.Fatal(err)
				}
				for _, replica := range []*service.Service{g.Service, g.replica()} {
					for _, second := range []bool{true, false} {
						_, err := replica.DecideApproval(t.Context(), g.who.admin, id, &ledger.Verdict{Approve: second})
						checkCode(t, "another verdict", err, fault.CodeEvidenceTampered)
					}
					_, err := replica.AdvanceApproval(t.Context(), id)
					checkCode(t, "its time", err, fault.CodeEvidenceTampered)
					checkCode(t, "completion", complete(t.Context(), replica, g.who.agent, chain), fault.CodeEvidenceTampered)
				}
				if s.audit("acme") == nil {
					t.Error("the audit finds nothing")
				}
			})
		})
	}
}

// A restored approval cannot be decided again even if the entry about its end is deleted from the
// chain.
func TestAnApprovalRolledBackWithoutItsEntry(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("entry")
		id := g.ask(chain)
		s := g.scene()
		pending := s.last("approvals")
		checkCode(t, "deny", g.decide(g.who.member, id, false), "")
		entry := s.last("addenda")
		if err := firstError(s.remove(&entry), s.replace(s.last("approvals"), pending)); err != nil {
			t.Fatal(err)
		}
		checkCode(t, "approve what was denied", g.decide(g.who.admin, id, true), fault.CodeEvidenceTampered)
		checkCode(t, "complete", complete(t.Context(), g.Service, g.who.agent, chain), fault.CodeEvidenceTampered)
		if s.audit("acme") == nil {
			t.Error("the audit finds nothing")
		}
	})
}

// Neither the content nor the organization of an approval can be changed.
func TestEditedApprovalsAreNotUsed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("edits")
		id := g.ask(chain)
		colleague := newKey(t, g.Service, "acme", ledger.RoleAgent)
		s := g.scene()
		genuine := s.last("approvals")
		body := genuine.value("body").([]byte)
		for column, other := range map[string]any{
			"body": append([]byte(" "), body...), "mac": make([]byte, 40), "status": "approved", "requested_at": int64(1), "sequence": int64(9),
			"opened_by": otherID(genuine.value("opened_by")),
		} {
			if column == "opened_by" {
				other = colleague.Record.ID.UUID[:]
				if db.Kind == "postgres" {
					other = colleague.Record.ID.String()
				}
			}
			err := s.set(&genuine, column, other)
			if err != nil && isConstraint(err) {
				continue // the database itself refuses it
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = g.Approval(t.Context(), g.who.member, id, 0)
			checkCode(t, column+" edited: read", err, fault.CodeEvidenceTampered)
			checkCode(t, column+" edited: approve", g.decide(g.who.member, id, true), fault.CodeEvidenceTampered)
			checkCode(t, column+" edited: complete", complete(t.Context(), g.Service, g.who.agent, chain), fault.CodeEvidenceTampered)
			if _, err := g.Approval(t.Context(), servicetest.Authenticate(t, g.Service, colleague), id, 0); err == nil {
				t.Errorf("%s edited: another agent reads it", column)
			}
			if err := s.replace(s.last("approvals"), genuine); err != nil {
				t.Fatal(err)
			}
		}
		g.approve(id)
	})
}
