package service_test

import (
	"fmt"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

func modelCall(t testing.TB, tokens int) *ledger.Action {
	t.Helper()
	return request(t, ledger.ParseAction, fmt.Sprintf(`{"agent_name":"agent","action_type":"llm_call","action_name":"chat","payload":{},"metadata":{"model":"m","input_tokens":%d,"output_tokens":0}}`, tokens))
}

// limits has, for each limit, how many actions it allows and what exceeds it.
var limits = []struct {
	name, settings string
	allowed        int
	act            func(g *governed, chain ledger.ChainID) *ledger.Event
}{
	{"events", `{"auto_pause":{"max_events":3}}`, 3, func(g *governed, chain ledger.ChainID) *ledger.Event {
		return g.record(chain, step(g.t, "look", "")).Event
	}},
	{"duration", `{"auto_pause":{"max_duration_seconds":60}}`, 3, func(g *governed, chain ledger.ChainID) *ledger.Event {
		g.clock.Advance(20 * time.Second)
		return g.record(chain, step(g.t, "look", "")).Event
	}},
	{"tokens", `{"auto_pause":{"max_tokens":300}}`, 3, func(g *governed, chain ledger.ChainID) *ledger.Event {
		return g.record(chain, modelCall(g.t, 100)).Event
	}},
}

// A chain that exceeds a limit denies every action until an admin resumes it, and each resume
// grants the limit again.
func TestAutoPauseAndResume(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for _, limit := range limits {
			t.Run(limit.name, func(t *testing.T) {
				g := govern(t, db.Fresh(t))
				g.settings(limit.settings)
				chain := g.open(limit.name)
				_, err := g.ResumeChain(t.Context(), g.who.admin, chain)
				checkCode(t, "resumed before it paused", err, fault.CodeNotPaused)
				for grant := range 3 {
					for i := range limit.allowed {
						if e := limit.act(g, chain); e.Status != ledger.EventAllowed {
							t.Fatalf("grant %d: action %d is %s because %s", grant, i, e.Status, e.Decision.Reason)
						}
					}
					tripped := limit.act(g, chain)
					after := g.record(chain, step(t, "look", ""))
					for _, e := range []*ledger.Event{tripped, after.Event} {
						if e.Status != ledger.EventDenied || !e.Decision.AutoPaused || e.Decision.PolicyName != ledger.RuleAutoPause || e.Decision.PauseReason == "" {
							t.Errorf("grant %d: an action beyond the limit is %s with %+v", grant, e.Status, e.Decision)
						}
					}
					if status := g.chainState(chain).Status; status != ledger.ChainAutoPaused {
						t.Errorf("the chain is %s", status)
					}
					for _, caller := range []*service.Caller{g.who.agent, g.who.member} {
						_, err := g.ResumeChain(t.Context(), caller, chain)
						checkCode(t, "resumed by a "+string(caller.Role), err, fault.CodeForbidden)
					}
					acts := len(g.acts())
					resumed := must[*service.ChainView](t)(g.ResumeChain(t.Context(), g.who.admin, chain))
					if resumed.State.Status != ledger.ChainActive || resumed.State.PauseReason != "" {
						t.Errorf("resumed it is %s because of %q", resumed.State.Status, resumed.State.PauseReason)
					}
					g.checkActs(t, acts, []wantedAct{{"chain.resume", "first admin", chain.String()}})
					_, err := g.ResumeChain(t.Context(), g.who.admin, chain)
					checkCode(t, "resumed twice", err, fault.CodeNotPaused)
				}
				g.complete(chain)
				_, err = g.ResumeChain(t.Context(), g.who.admin, chain)
				checkCode(t, "resumed when sealed", err, fault.CodeChainSealed)
				checkIntact(t, g.Service, "acme", 1)
			})
		}
	})
}

// In shadow mode nothing pauses, but the decision says that it would have.
func TestNoPauseInShadow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for _, limit := range limits {
			g := govern(t, db.Fresh(t))
			g.settings(limit.settings)
			g.settings(`{"evaluation_mode":"shadow"}`)
			chain := g.open(limit.name)
			for range limit.allowed {
				limit.act(g, chain)
			}
			e := limit.act(g, chain)
			if e.Status != ledger.EventAllowed || e.Decision.AutoPaused || e.Decision.Shadow != ledger.Deny || e.Decision.Mode != ledger.Shadow {
				t.Errorf("%s: in shadow an action beyond the limit is %s with %+v", limit.name, e.Status, e.Decision)
			}
			if status := g.chainState(chain).Status; status != ledger.ChainActive {
				t.Errorf("%s: in shadow the chain is %s", limit.name, status)
			}
			g.settings(`{"evaluation_mode":"enforce"}`)
			if e := limit.act(g, chain); e.Status != ledger.EventDenied || !e.Decision.AutoPaused {
				t.Errorf("%s: enforced again an action beyond the limit is %s", limit.name, e.Status)
			}
		}
	})
}

// Tokens of an action that waits for approval are reserved, and released by a denial.
func TestWaitingTokensAreHeld(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_tokens":100},"high_risk_agents":["agent"]}`)
		chain := g.open("tokens")
		id := g.record(chain, modelCall(t, 100)).Event.Approval
		if held := g.chainState(chain).Pending.Tokens; held != 100 {
			t.Errorf("%d tokens are held", held)
		}
		g.settings(`{"high_risk_agents":[]}`)
		checkCode(t, "deny", g.decide(g.who.member, id, false), "")
		if e := g.record(chain, modelCall(t, 100)).Event; e.Status != ledger.EventAllowed {
			t.Errorf("after the no the tokens are not free: %s", e.Decision.Reason)
		}
		if e := g.record(chain, modelCall(t, 1)).Event; !e.Decision.AutoPaused {
			t.Error("one token too many does not pause the chain")
		}
		if state := g.chainState(chain); state.Tokens != 100 || state.Pending.Tokens != 0 {
			t.Errorf("%d tokens are spent and %d held", state.Tokens, state.Pending.Tokens)
		}
	})
}
