package service_test

import (
	"strings"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// spentBudget returns an organization in which one agent has used up a budget in two chains, and
// another has used a little of it. The counters were copied between the two payments of the first
// agent.
func spentBudget(t *testing.T, r *remembering) (chain ledger.ChainID, then tables) {
	t.Helper()
	r.settings(budgets(`{"name":"agents","scope":"agent","window":"month","limit_usd":100,"decision":"deny"}`))
	chain = r.open("spending")
	r.record(r.open("other"), pay(t, "b", 1, ""))
	r.record(chain, pay(t, "a", 40, ""))
	then = r.direct.copyOf("budget_counters")
	r.record(r.open("more"), pay(t, "a", 60, ""))
	if d := r.record(chain, pay(t, "a", 0.01, "")).Event.Decision; d.Outcome != ledger.Deny || d.PolicyName != "budget:agents" {
		t.Fatalf("a payment above the budget is %s by %q", d.Outcome, d.PolicyName)
	}
	done(t, r.chains.Flush())
	return chain, then
}

// counterCrimes are the ways to tamper with a counter in the database.
var counterCrimes = map[string]func(s *scene, then tables){
	"rolled back": func(s *scene, then tables) { s.rollBack(then) },
	"deleted":     func(s *scene, _ tables) { s.rollBack(tables{"budget_counters": nil}) },
	"copied from another's": func(s *scene, _ tables) {
		now := s.copyOf("budget_counters")
		rows := now["budget_counters"]
		own, others := rows[0], rows[1]
		if own.value("value") != "a" && string(asBytes(own.value("value"))) != "a" {
			own, others = others, own
		}
		now["budget_counters"] = []row{others, others.with(map[string]any{"id": own.value("id"), "value": own.value("value")})}
		s.rollBack(now)
	},
	"edited": func(s *scene, _ tables) {
		now := s.copyOf("budget_counters")
		for i, r := range now["budget_counters"] {
			body := strings.Replace(string(asBytes(r.value("body"))), `"spent":"100"`, `"spent":"0"`, 1)
			now["budget_counters"][i] = r.with(map[string]any{"body": []byte(body)})
		}
		s.rollBack(now)
	},
}

func asBytes(value any) []byte {
	switch v := value.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

// What was spent of a budget stays spent, whatever is done to its counter: a server that knew the
// counter refuses the next payment, before and after a restart, and a finding and the audit name
// it. Other agents continue.
//
//countersign:race
func TestSpentBudgetsStaySpent(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for crime, commit := range counterCrimes {
			for name, live := range lives {
				t.Run(crime+", "+name, func(t *testing.T) {
					r := remember(t, db.Fresh(t))
					chain, then := spentBudget(t, r)
					commit(r.direct, then)
					live(r)
					_, err := r.RecordEvent(t.Context(), r.who.agent, chain, pay(t, "a", 5, ""))
					checkCode(t, "a payment", err, fault.CodeEvidenceTampered)
					r.record(chain, step(t, "look", "")) // takes nothing of the budget
					report := must[*verify.AuditReport](t)(r.Operator().Audit(t.Context(), r.who.slug, verify.AuditOptions{}))
					if report.Break == nil || report.Break.Check != ledger.CheckRollback && report.Break.Check != ledger.CheckBudgets {
						t.Errorf("the audit finds %+v", report.Break)
					}
					r.WaitForFindings()
					r.ForgetFindings()
					if open := must[int](t)(r.OpenFindings(t.Context())); open == 0 {
						t.Error("no finding is open")
					}
				})
			}
		}
	})
}

// A server that never knew a counter cannot tell an old one from a new one, but the events can:
// the audit and the self-check recount them, and name the counter.
//
//countersign:race
func TestCountersAreCountedAnew(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for crime, word := range map[string]string{"rolled back": "it was put back", "deleted": "is missing"} {
			t.Run(crime, func(t *testing.T) {
				r := remember(t, db.Fresh(t))
				_, then := spentBudget(t, r)
				r.journal += ".another" // of a machine that knows nothing
				r.start()
				r.checkClean(0)
				counterCrimes[crime](r.direct, then)
				report := must[*verify.AuditReport](t)(r.Operator().Audit(t.Context(), r.who.slug, verify.AuditOptions{}))
				if b := report.Break; b == nil || b.Check != ledger.CheckBudgets || !strings.Contains(b.Detail, word) || !strings.Contains(b.Detail, `"agents"`) {
					t.Errorf("the audit finds %+v", b)
				}
				(&suspect{governed: r.governed, t: t}).checkRound(r.Service)
				findings := must[[]*service.Finding](t)(r.Operator().Findings(t.Context(), r.who.slug))
				found := 0
				for _, f := range findings {
					if f.Check == string(ledger.CheckBudgets) && strings.Contains(f.Subject, word) {
						found++
					}
				}
				if found == 0 {
					t.Errorf("the self-check finds %+v", findings)
				}
			})
		}
	})
}

// A counter that fails authentication does not keep an approval from ending, and after an operator
// has accepted a rollback the budget continues from what is stored.
//
//countersign:race
func TestApprovalsEndWithoutTheirCounters(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		r := remember(t, db)
		r.settings(budgets(`{"name":"all","scope":"organization","window":"day","limit_usd":100,"decision":"require_approval"}`))
		chain := r.open("spending")
		var asked []ledger.ApprovalID
		for range 3 {
			asked = append(asked, r.record(chain, pay(t, "a", 101, "")).Event.Approval)
		}
		done(t, r.chains.Flush())
		r.direct.rollBack(tables{"budget_counters": nil})
		checkCode(t, "an approval", r.decide(r.who.member, asked[0], true), fault.CodeEvidenceTampered)
		done(t, r.decide(r.who.member, asked[1], false))
		r.complete(chain)
		for i, want := range []ledger.ApprovalStatus{ledger.ApprovalCancelled, ledger.ApprovalDenied, ledger.ApprovalCancelled} {
			if got := r.view(asked[i]).Status; got != want {
				t.Errorf("approval %d is %s, want %s", i, got, want)
			}
		}
		next := r.open("next")
		_, err := r.RecordEvent(t.Context(), r.who.agent, next, pay(t, "a", 1, ""))
		checkCode(t, "a payment", err, fault.CodeEvidenceTampered)
		found := must[[]*verify.ChainRollback](t)(r.ChainRollbacks(t.Context()))
		if len(found) != 1 || !strings.Contains(found[0].String(), "budget counter") {
			t.Fatalf("found: %v", found)
		}
		beside, err := keyring.OpenChains(r.journal, r.ring)
		done(t, err)
		done(t, r.Operator().AcceptChains(t.Context(), found, beside.Accept))
		done(t, r.chains.Reload())
		if status := r.record(next, pay(t, "a", 1, "")).Event.Status; status != ledger.EventAllowed {
			t.Errorf("a payment after the acceptance is %s", status)
		}
		r.checkUse("all/", 1, 0)
	})
}

// The marks of counters are removed once their windows are over.
//
//countersign:race
func TestCounterMarksEndWithTheirWindow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		r := remember(t, db)
		r.settings(budgets(dailyUSD, agentUSD))
		chain := r.open("spending")
		r.record(chain, pay(t, "a", 1, ""))
		for _, c := range []struct{ days, want int }{{0, 3}, {1, 2}, {31, 1}} { // the chain's, the month's and the day's
			r.clock.Set(newClock().Now().AddDate(0, 0, c.days))
			done(t, r.ProveChains(t.Context()))
			if remembered, _ := r.chains.Watched(); remembered != c.want {
				t.Errorf("after %d days %d marks are kept, want %d", c.days, remembered, c.want)
			}
		}
	})
}
