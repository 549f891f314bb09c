package service_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// newestWith returns the last row of a table whose body contains a text.
func (s *scene) newestWith(table, text string) row {
	s.t.Helper()
	rows := s.rowsOf(table)
	for i := range rows {
		r := rows[len(rows)-1-i]
		if body, ok := r.value("body").([]byte); ok && strings.Contains(string(body), text) {
			return r
		}
	}
	s.t.Fatalf("no row of %s says %q", table, text)
	return row{}
}

// Entries about an event count only if the chain's digest covers all of them: there is no outcome
// of a denied or undecided action, a forged outcome answers no report, and deleting an outcome
// does not permit a second one. That is true whether or not the server has the chain in memory.
//
//countersign:race
func TestForgedEntriesDecideNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		direct := g.scene()
		approved := g.open("approved")
		g.approve(g.ask(approved))
		pattern := direct.newestWith("addenda", `"approved"`)
		reported := g.open("reported")
		first := g.record(reported, step(t, "one", "")).Event
		report := func(s *service.Service, chain ledger.ChainID, id ledger.EventID, result ledger.Result) error {
			_, err := s.ReportOutcome(t.Context(), g.who.agent, chain, id, &ledger.Entry{Result: result})
			return err
		}
		done(t, report(g.Service, reported, first.ID, ledger.Failed))
		outcome := direct.newestWith("addenda", `"outcome"`)
		column := "chain_no"
		if db.Kind == "postgres" {
			column = "chain_id"
		}
		// copied is an addendum of another chain, rewritten for an event.
		copied := func(from row, event *ledger.Event, position int64) row {
			entry := must[*ledger.Entry](t)(ledger.DecodeEntry(from.value("body").([]byte)))
			entry.Event, entry.Sequence, entry.Position = event.ID, event.Sequence, position
			if event.Approval != (ledger.ApprovalID{}) {
				entry.Approval = event.Approval
			}
			in := direct.newestWith("events", event.ID.String())
			return from.with(map[string]any{column: in.value(column), "position": position, "sequence": event.Sequence, "body": entry.Encode()})
		}
		refused := func(what string, chain ledger.ChainID, id ledger.EventID, results ...ledger.Result) {
			t.Helper()
			for _, s := range []*service.Service{g.Service, g.replica()} {
				for _, result := range results {
					checkCode(t, what, report(s, chain, id, result), fault.CodeEvidenceTampered)
				}
			}
			g.auditFinds(what, ledger.CheckChain)
		}
		for _, position := range []int64{3, 77} {
			chain := g.open("undecided")
			g.record(chain, step(t, "one", ""))
			event := g.record(chain, payment(t, gatedAmount, "")).Event
			checkCode(t, "undecided", report(g.Service, chain, event.ID, ledger.Succeeded), fault.CodeOutcomeConflict)
			forged := copied(pattern, event, position)
			done(t, direct.insert(&forged))
			refused("a forged approval of an undecided action", chain, event.ID, ledger.Succeeded)
			done(t, direct.remove(&forged))
			checkCode(t, "undecided again", report(g.Service, chain, event.ID, ledger.Succeeded), fault.CodeOutcomeConflict)
		}

		denied := g.open("denied")
		asked := g.record(denied, payment(t, gatedAmount, "")).Event
		done(t, g.decide(g.who.member, asked.Approval, false))
		was := direct.newestWith("addenda", asked.ID.String())
		body := bytes.Replace(was.value("body").([]byte), []byte(`"denied"`), []byte(`"approved"`), 1)
		done(t, direct.set(&was, "body", body))
		refused("a denial that was turned", denied, asked.ID, ledger.Succeeded)
		now := was.with(map[string]any{"body": body})
		done(t, direct.replace(now, was))
		checkCode(t, "denied again", report(g.Service, denied, asked.ID, ledger.Succeeded), fault.CodeOutcomeConflict)

		quiet := g.open("quiet")
		silent := g.record(quiet, step(t, "one", "")).Event
		for _, position := range []int64{2, 99} {
			forged := copied(outcome, silent, position)
			done(t, direct.insert(&forged))
			refused("a forged outcome", quiet, silent.ID, ledger.Failed, ledger.Succeeded)
			done(t, direct.remove(&forged))
		}
		done(t, report(g.Service, quiet, silent.ID, ledger.Succeeded))

		done(t, direct.remove(&outcome))
		refused("a hidden outcome", reported, first.ID, ledger.Succeeded, ledger.Failed)
		done(t, direct.insert(&outcome))
		done(t, report(g.Service, reported, first.ID, ledger.Failed))
		checkCode(t, "another outcome", report(g.replica(), reported, first.ID, ledger.Succeeded), fault.CodeOutcomeConflict)
		checkIntact(t, g.Service, g.who.slug, 0)
	})
}

// A decided approval that is restored to open, without the entry about its end, cannot be decided
// again while another approval of its chain is open.
//
//countersign:race
func TestAnApprovalRolledBackBesideOneThatWaits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		direct := g.scene()
		chain := g.open("two")
		denied := g.record(chain, payment(t, gatedAmount, "")).Event
		pending := direct.newestWith("approvals", denied.Approval.String())
		done(t, g.decide(g.who.member, denied.Approval, false))
		waits := g.record(chain, payment(t, gatedAmount, "")).Event
		entry := direct.newestWith("addenda", denied.ID.String())
		decided, other := direct.newestWith("approvals", denied.Approval.String()), direct.newestWith("approvals", waits.Approval.String())
		done(t, direct.remove(&entry))
		done(t, direct.replace(decided, pending))
		for _, hidden := range []bool{false, true} {
			if hidden {
				done(t, direct.remove(&other))
			}
			for _, s := range []*service.Service{g.Service, g.replica()} {
				_, err := s.DecideApproval(t.Context(), g.who.admin, denied.Approval, &ledger.Verdict{Approve: true})
				checkCode(t, "another verdict", err, fault.CodeEvidenceTampered)
				_, err = s.CancelApproval(t.Context(), g.who.agent, denied.Approval, "")
				checkCode(t, "given up", err, fault.CodeEvidenceTampered)
				_, err = s.AdvanceApproval(t.Context(), denied.Approval)
				checkCode(t, "its time", err, fault.CodeEvidenceTampered)
			}
		}
		done(t, direct.insert(&other))
		done(t, direct.replace(direct.newestWith("approvals", denied.Approval.String()), decided))
		done(t, direct.insert(&entry))
		g.approve(waits.Approval)
		checkIntact(t, g.Service, g.who.slug, 0)
	})
}

// Deleting a late outcome from the newest chain does not permit a second one.
//
//countersign:race
func TestHiddenLateOutcomesAllowNoOther(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		direct := g.scene()
		chain := g.open("late")
		event := g.record(chain, step(t, "one", "")).Event
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		report := func(s *service.Service, result ledger.Result) error {
			_, err := s.ReportOutcome(t.Context(), g.who.agent, chain, event.ID, &ledger.Entry{Result: result})
			return err
		}
		done(t, report(g.Service, ledger.Failed))
		marker := direct.newestWith("events", ledger.ActionTypeLateOutcome)
		done(t, direct.remove(&marker))
		for _, s := range []*service.Service{g.Service, g.replica()} {
			checkCode(t, "another outcome", report(s, ledger.Succeeded), fault.CodeEvidenceTampered)
		}
		done(t, direct.insert(&marker))
		done(t, report(g.Service, ledger.Failed))
		checkCode(t, "another outcome", report(g.replica(), ledger.Succeeded), fault.CodeOutcomeConflict)
	})
}
