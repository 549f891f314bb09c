package service_test

import (
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// idOf returns an id as the database stores it.
func (s *scene) idOf(id [16]byte, text string) any {
	if s.dialect.mark(1) == "?" {
		return id[:]
	}
	return text
}

// Deleting or restoring an approval of a chain does not turn the others into permission: polls per
// chain and lists of the chain's approvals are refused until the row is restored. The same applies
// to the chains that the client's chain continues.
func TestHiddenApprovalsPermitNothing(t *testing.T) {
	ends := map[string]struct {
		end  func(g *governed, id ledger.ApprovalID)
		want ledger.ApprovalStatus
	}{
		"pending": {func(*governed, ledger.ApprovalID) {}, ledger.ApprovalPending},
		"denied":  {func(g *governed, id ledger.ApprovalID) { done(g.t, g.decide(g.who.member, id, false)) }, ledger.ApprovalDenied},
		"denied in a chain before": {func(g *governed, id ledger.ApprovalID) {
			done(g.t, g.decide(g.who.member, id, false))
			g.clock.Advance(73 * time.Hour)
			g.passRound(g.Service)
			g.record(g.view(id).Chain, step(g.t, "late", ""))
		}, ledger.ApprovalDenied},
	}
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		direct := g.scene()
		g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
		other, admin := g.open("other"), direct.keyRow(g.who.admin)
		for range 2 {
			g.record(other, step(t, "look", "")) // an approval needs an event where it is
		}
		hides := map[string]func(s *scene, was, open row, other any) error{
			"deleted":            func(s *scene, was, _ row, _ any) error { return s.remove(&was) },
			"in another chain":   func(s *scene, was, _ row, other any) error { return s.set(&was, "chain_id", other) },
			"of another opener":  func(s *scene, was, _ row, _ any) error { return s.set(&was, "opened_by", admin.value("id")) },
			"with another state": func(s *scene, was, _ row, _ any) error { return s.set(&was, "status", "approved") },
			"rolled back":        func(s *scene, was, open row, _ any) error { return s.replace(was, open) },
		}
		for name, end := range ends {
			chain := g.open("run")
			g.approve(g.ask(chain))
			hidden := g.ask(chain)
			find := func() row {
				for _, r := range direct.rowsOf("approvals") {
					if sameValue(r.value("id"), direct.idOf(hidden.UUID, hidden.String())) {
						return r
					}
				}
				t.Fatal("the approval is not there")
				return row{}
			}
			open := find()
			end.end(g, hidden)
			was := find()
			for how, hide := range hides {
				if how == "rolled back" && end.want == ledger.ApprovalPending {
					continue // it is the same row
				}
				what := name + ", " + how
				done(t, hide(direct, was, open, direct.idOf(other.UUID, other.String())))
				for _, caller := range []*service.Caller{g.who.agent, g.who.member} {
					_, err := g.ChainApprovals(t.Context(), caller, chain)
					checkCode(t, what, err, fault.CodeEvidenceTampered)
				}
				if how == "deleted" || how == "in another chain" || how == "rolled back" {
					_, err := g.Approvals(t.Context(), g.who.member, service.ApprovalFilter{Chain: &chain, Limit: 9})
					checkCode(t, what+", listed", err, fault.CodeEvidenceTampered)
				}
				g.auditFinds(what, ledger.CheckChain, ledger.CheckApprovals)
				if how != "deleted" {
					now := find()
					done(t, direct.remove(&now))
				}
				done(t, direct.insert(&was))
				if got := must[*service.ChainApprovals](t)(g.ChainApprovals(t.Context(), g.who.agent, chain)); got.Standing != end.want {
					t.Errorf("%s, and as it was again: %s, want %s", what, got.Standing, end.want)
				}
			}
		}
	})
}

// A chain whose columns differ from its body is not used, because it is found by its columns. A
// repeated opening does not return it, and a list marks it, whether or not the server has it in
// memory. A server that has not records nothing in it.
//
//countersign:race
func TestChainsAreNotFoundByForgedColumns(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		direct := g.scene()
		opening := chainNamed(t, "run")
		chain := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, opening, "first")).ID
		g.record(chain, step(t, "one", ""))
		for table, columns := range map[string]map[string]any{
			"chains":       {"idempotency_key": "second", "external_id": "forged", "environment": "staging"},
			"chain_states": {"status": "paused"},
		} {
			for column, forged := range columns {
				was := direct.last(table)
				done(t, direct.set(&was, column, forged))
				for _, s := range []*service.Service{g.Service, g.replica()} {
					_, err := s.Chain(t.Context(), g.who.member, chain)
					checkCode(t, column+", read", err, fault.CodeEvidenceTampered)
					if s != g.Service { // what is fixed about a chain may be in memory, as it was written
						_, err = s.RecordEvent(t.Context(), g.who.agent, chain, step(t, "two", ""))
						checkCode(t, column+", recorded", err, fault.CodeEvidenceTampered)
					}
					listed := must[[]*service.ChainView](t)(s.Chains(t.Context(), g.who.member, service.ChainFilter{Limit: 9}))
					if len(listed) != 1 || !listed[0].Tampered {
						t.Errorf("%s: the list shows %+v, want one chain that is marked", column, listed)
					}
					key := "first"
					if column == "idempotency_key" {
						key = "second"
					}
					_, err = s.OpenChain(t.Context(), g.who.agent, opening, key)
					checkCode(t, column+", opened again", err, fault.CodeEvidenceTampered)
				}
				now := direct.last(table)
				done(t, direct.set(&now, column, was.value(column)))
			}
		}
		g.record(chain, step(t, "two", ""))
		checkIntact(t, g.Service, g.who.slug, 0)
	})
}
