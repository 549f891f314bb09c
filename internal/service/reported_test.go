package service_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

func fieldsOf(err error) []fault.FieldError {
	var own *fault.Error
	if errors.As(err, &own) {
		return own.Fields
	}
	return nil
}

func (g *governed) report(chain ledger.ChainID, actions []*ledger.Action) []service.Reported {
	g.t.Helper()
	results := must[*service.Report](g.t)(g.ReportEvents(g.t.Context(), g.who.agent, chain, actions)).Results
	if len(results) != len(actions) {
		g.t.Fatalf("%d results for %d reports", len(results), len(actions))
	}
	return results
}

// happened returns a report of one action that a client decided.
func happened(t testing.TB, name, key, more string) *ledger.Action {
	t.Helper()
	return request(t, ledger.ParseReported, `{"events":[{"agent_name":"agent","action_type":"tool_call","action_name":"`+name+`","payload":{"n":1},`+
		`"decision_source":"offline_stub","idempotency_key":"`+key+`"`+more+`}]}`)[0]
}

// Reported events are recorded in order, and repeated ones are answered with the events that
// exist.
//
//countersign:race
func TestReportedEventsKeepTheirOrder(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("offline")
		g.record(chain, step(t, "online", ""))
		var keys []string
		for i := range 300 {
			keys = append(keys, fmt.Sprint("key-", i))
		}
		first := g.report(chain, reported(t, keys...))
		for i, result := range first {
			if result.Err != nil || result.Event.Sequence != int64(i)+2 || result.Event.Status != ledger.EventAllowed || result.Event.Decision.Source != ledger.SourceFastPath {
				t.Fatalf("report %d is event %d, %s by %s: %v", i, result.Event.Sequence, result.Event.Status, result.Event.Decision.Source, result.Err)
			}
		}
		// The whole batch again, and a part of it with something new, elsewhere.
		again := must[*service.Report](t)(g.replica().ReportEvents(t.Context(), g.who.agent, chain, reported(t, keys...))).Results
		mixed := g.report(chain, reported(t, "key-5", "new", "key-7", "new"))
		for i := range first {
			if again[i].Err != nil || again[i].Event.ID != first[i].Event.ID {
				t.Errorf("report %d sent again is another event: %v", i, again[i].Err)
			}
		}
		if mixed[0].Event.ID != first[5].Event.ID || mixed[1].Event.Sequence != 302 || mixed[2].Event.ID != first[7].Event.ID || mixed[3].Event.ID != mixed[1].Event.ID {
			t.Error("a batch of old and new reports is not answered each by each")
		}
		if state := g.chainState(chain); state.Actions != 302 {
			t.Errorf("%d actions are recorded", state.Actions)
		}
		g.complete(chain)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// An action of a report that cannot be recorded does not block the others, whatever its position.
func TestReportsThatFailAlone(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		for place := range 3 {
			chain := g.open(fmt.Sprint("place-", place))
			g.report(chain, []*ledger.Action{happened(t, "first", "taken", "")})
			batch := []*ledger.Action{happened(t, "a", "a", ""), happened(t, "b", "b", "")}
			batch = slices.Insert(batch, place, happened(t, "other", "taken", ""))
			for i, result := range g.report(chain, batch) {
				want := fault.Code("")
				if i == place {
					want = fault.CodeIdempotencyConflict
				}
				checkCode(t, fmt.Sprintf("report %d of a batch with a bad one at %d", i, place), result.Err, want)
			}
			if actions := g.chainState(chain).Actions; actions != 3 {
				t.Errorf("%d actions are recorded, want 3", actions)
			}
		}
		chain := g.open("sealed")
		g.report(chain, reported(t, "before"))
		g.complete(chain)
		_, err := g.ReportEvents(t.Context(), g.who.agent, chain, reported(t, "after"))
		checkCode(t, "a report on a sealed chain", err, fault.CodeChainSealed)
		results := g.report(chain, reported(t, "after", "before"))
		checkCode(t, "a new report on a sealed chain", results[0].Err, fault.CodeChainSealed)
		checkCode(t, "an old report on a sealed chain", results[1].Err, "")
		_, err = g.ReportEvents(t.Context(), newTenant(t, g.Service, "other").agent, chain, reported(t, "x"))
		checkCode(t, "a report on another's chain", err, fault.CodeNotFound)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// A reported action that the service would not have allowed is flagged. No approval is requested
// and nothing waits, because it has happened.
func TestViolationsAreFlagged(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"external_domains_allowlist":["example.com"],"high_risk_agents":["risky"]}`)
		g.put(`rules:
- {name: no-deploys, when: "action.action_name == 'deploy'", decision: deny, reason: r}
- {name: tried-out, when: "action.action_name == 'trial' || action.action_name == 'send_payment'", decision: deny, reason: r, mode: shadow}`)
		chain := g.open("violations")
		const big = `,"metadata":{"amount_usd":9000,"category":"financial"}`
		for _, c := range []struct {
			name, key, more string
			status          ledger.EventStatus
			shadow          ledger.Outcome
			violated        bool
		}{
			{"look", "1", "", ledger.EventAllowed, "", false},
			{"deploy", "2", "", ledger.EventFlagged, ledger.Deny, true},
			{"pay", "3", big, ledger.EventFlagged, ledger.RequireApproval, true},
			{"visit", "4", `,"metadata":{"url":"https://elsewhere.example/"}`, ledger.EventAllowed, "", false},
			{"trial", "5", "", ledger.EventAllowed, ledger.Deny, false},
			// A rule in shadow beside one that acts: what acts is what was violated.
			{"send_payment", "6", big, ledger.EventFlagged, ledger.RequireApproval, true},
		} {
			result := g.report(chain, []*ledger.Action{happened(t, c.name, c.key, c.more)})[0]
			d := &result.Event.Decision
			if result.Event.Status != c.status || d.Shadow != c.shadow || d.Violated() != c.violated || result.Event.Approval != (ledger.ApprovalID{}) {
				t.Errorf("%s %s is %s with shadow %q, violated %v, approval %s", c.name, c.more, result.Event.Status, d.Shadow, d.Violated(), result.Event.Approval)
			}
		}
		state := g.chainState(chain)
		checkMoney(t, "what happened counts", state.Metrics.FinancialExposure, 18000)
		if state.Waiting != 0 || state.Approvals != 0 {
			t.Errorf("%d approvals wait for what has happened", state.Waiting)
		}
		g.complete(chain)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// A gap is never silent, is never a violation, and needs no approval.
func TestGapMarkers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("gaps")
		gap := func(key string) *ledger.Event {
			action := request(t, ledger.ParseReported, `{"events":[{"agent_name":"agent","action_type":"gap","action_name":"dropped_events","payload":{"dropped":7,"from":"2026-05-04T08:00:00Z","to":"2026-05-04T08:30:00Z"},`+
				`"decision_source":"offline_stub","idempotency_key":"`+key+`"}]}`)[0]
			return g.report(chain, []*ledger.Action{action})[0].Event
		}
		check := func(name string, e *ledger.Event) {
			t.Helper()
			if e.Status != ledger.EventFlagged || e.Decision.Violated() || e.Approval != (ledger.ApprovalID{}) {
				t.Errorf("%s: a gap is %s, violated %v", name, e.Status, e.Decision.Violated())
			}
		}
		first := gap("1")
		check("plainly", first)
		if first.Decision.PolicyName != ledger.RuleGap {
			t.Errorf("a gap is flagged by %q", first.Decision.PolicyName)
		}
		g.settings(`{"high_risk_agents":["agent"]}`)
		check("of a high-risk agent", gap("2"))
		g.kill("an incident")
		check("under the kill switch", gap("3"))
		g.deactivateKillSwitch()
		g.settings(`{"high_risk_agents":[],"auto_pause":{"max_events":3}}`)
		check("beyond a limit", gap("4"))
		g.complete(chain)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// An action that a client decided under a lease is accepted when it is reported in a chain that
// has been paused since, and the answer says that the chain is paused: a client that knows of the
// pause must not assume that it has ended.
func TestReportsUnderALeaseTellOfAPause(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_events":3}}`)
		opened := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, chainNamed(t, "leased"), ""))
		if opened.Terms.Lease == nil {
			t.Fatal("no lease")
		}
		for i := range 4 {
			g.record(opened.ID, step(t, fmt.Sprint("step-", i), ""))
		}
		if state := g.chainState(opened.ID); state.Status != ledger.ChainAutoPaused {
			t.Fatalf("the chain is %s", state.Status)
		}
		action := step(t, "get_page", "leased")
		action.Source, action.LeaseID = ledger.SourceFastPath, opened.Terms.Lease.ID
		for _, turn := range []string{"reported", "reported again"} {
			decision := g.report(opened.ID, []*ledger.Action{action})[0].Event.Decision
			if decision.Outcome != ledger.Allow || decision.Violated() || !decision.AutoPaused || decision.PauseReason == "" {
				t.Errorf("%s: %+v", turn, decision)
			}
		}
	})
}
