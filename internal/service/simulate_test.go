package service_test

import (
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

func (g *governed) simulate(document string, most int) *service.SimulationReport {
	g.t.Helper()
	return must[*service.SimulationReport](g.t)(g.SimulatePolicy(g.t.Context(), g.who.admin, &service.Simulation{
		Document: service.PolicyDocument{Text: []byte(document), YAML: true}, MaxEvents: most,
	}))
}

// A candidate is evaluated on recorded events, and nothing is written.
func TestSimulation(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		for _, name := range []string{"one", "two"} {
			chain := g.open(name)
			for range 3 {
				g.record(chain, step(t, "deploy", ""))
			}
			g.record(chain, step(t, "look", ""))
			g.ask(chain)
		}
		g.kill("an incident")
		g.record(g.open("killed"), step(t, "deploy", "")) // not compared: no set would have allowed it
		g.deactivateKillSwitch()
		acts := len(g.acts())
		report := g.simulate(denyDeploys, 100)
		if report.Events != 11 || report.Chains != 3 || report.Changed != 6 || !report.Complete {
			t.Errorf("report %+v", report)
		}
		if len(report.Changes) != 1 || report.Changes[0] != (service.ChangeCount{From: ledger.Allow, To: ledger.Deny, Count: 6}) {
			t.Errorf("changes %+v", report.Changes)
		}
		if len(report.Examples) != 6 {
			t.Fatalf("%d examples", len(report.Examples))
		}
		example := report.Examples[0]
		if example.Outcome != ledger.Deny || example.PolicyName != "no-deploys" || example.Event.Action.ActionName != "deploy" || example.Reason != "not today" {
			t.Errorf("example %+v", example)
		}
		if part := g.simulate(denyDeploys, 4); part.Complete || part.Events != 4 {
			t.Errorf("bounded to 4 it looked at %d and calls itself complete: %v", part.Events, part.Complete)
		}
		if same := g.simulate("rules: []", 100); same.Changed != 0 {
			t.Errorf("a set without rules would have changed %+v", same.Changes)
		}
		if put := g.put(denyDeploys); put.Version != report.PolicyVersion {
			t.Errorf("simulated as %s, put as %s", report.PolicyVersion, put.Version)
		}
		g.checkActs(t, acts, []wantedAct{{"policy.put", "first admin", report.PolicyVersion}})
		_, err := g.SimulatePolicy(t.Context(), g.who.admin, &service.Simulation{Document: service.PolicyDocument{Text: []byte("]")}})
		checkCode(t, "a bad candidate", err, fault.CodeInvalid)
		_, err = g.SimulatePolicy(t.Context(), g.who.member, &service.Simulation{})
		checkCode(t, "by a member", err, fault.CodeForbidden)
	})
}

// Simulating the set in force shows no changes, even after a denial released a budget or a chain
// was resumed.
func TestSimulationOfWhatIsInForce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.put(denyDeploys)
		g.settings(`{"auto_pause":{"max_events":4}}`)
		chain := g.open("settled")
		g.record(chain, payment(t, 4000, ""))
		denied := g.ask(chain)
		checkCode(t, "deny", g.decide(g.who.member, denied, false), "")
		if e := g.record(chain, payment(t, 100, "")).Event; e.Status != ledger.EventAllowed {
			t.Fatalf("a payment after the no is %s", e.Status)
		}
		for range 2 {
			g.record(chain, step(t, "look", ""))
		}
		must[*service.ChainView](t)(g.ResumeChain(t.Context(), g.who.admin, chain))
		g.record(chain, step(t, "look", ""))
		must[*service.Report](t)(g.ReportEvents(t.Context(), g.who.agent, chain, reported(t, "fast")))
		if report := g.simulate(denyDeploys, 100); report.Changed != 0 || report.Events != 7 {
			t.Errorf("of %d events it would have changed %+v", report.Events, report.Changes)
		}
	})
}

// A simulation with a missing policy, a value out of range or an unknown field is refused at that
// field.
func TestParseSimulation(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"policy":{"rules":[]}}`:                               "",
		`{"policy":"rules: []","max_events":7}`:                 "",
		`{"policy":"rules: []","since":"2026-05-04T09:00:00Z"}`: "",
		`{}`:                             "/policy",
		`{"policy":7}`:                   "/policy",
		`{"policy":"","max_events":0}`:   "/max_events",
		`{"policy":"","max_events":1e9}`: "/max_events",
		`{"policy":"","since":"soon"}`:   "/since",
		`{"policy":"","depth":1}`:        "/depth",
	} {
		_, err := service.ParseSimulation(value(t, body))
		got := ""
		if fields := fieldsOf(err); len(fields) > 0 {
			got = fields[0].Pointer
		}
		if got != want {
			t.Errorf("%s: %v, want a fault at %q", body, err, want)
		}
	}
}
