package ledger

import (
	"slices"
	"testing"
)

// When an event is sent again, the answer is what may happen now.
func TestAgain(t *testing.T) {
	t.Parallel()
	deny, ask, flag := Match{Name: "new", Outcome: Deny}, Match{Name: "new", Outcome: RequireApproval}, Match{Name: "new", Outcome: AllowWithFlag}
	act := func(*ChainState, *Question, *Policy) {}
	rule := func(m Match) func(*ChainState, *Question, *Policy) {
		return func(_ *ChainState, _ *Question, p *Policy) { p.Rules = fixedRules{m} }
	}
	trial := deny
	trial.Shadow = true
	for _, c := range []struct {
		name    string
		facts   Facts
		settle  ApprovalStatus // of the approval that a payment requires
		acted   bool           // an act changed the organization
		since   func(*ChainState, *Question, *Policy)
		outcome Outcome
		source  Source
		paused  bool
		by      string
	}{
		{"nothing changed", Facts{}, "", false, act, Allow, SourceBackend, false, ""},
		{"another act", Facts{}, "", true, act, Allow, SourceBackend, false, ""},
		{"a rule that denies", Facts{}, "", true, rule(deny), Deny, SourceBackend, false, "new"},
		{"a rule that no act put", Facts{}, "", false, rule(deny), Allow, SourceBackend, false, ""},
		{"a rule that asks", Facts{}, "", true, rule(ask), Deny, SourceBackend, false, "new"},
		{"a rule that flags", Facts{}, "", true, rule(flag), AllowWithFlag, SourceBackend, false, "new"},
		{"a rule on trial", Facts{}, "", true, rule(trial), Allow, SourceBackend, false, ""},
		{"an organization on trial", Facts{}, "", true, func(_ *ChainState, q *Question, p *Policy) {
			p.Rules, q.Org.Settings.EvaluationMode = fixedRules{deny}, Shadow
		}, Allow, SourceBackend, false, ""},
		{"its agent became high-risk", Facts{}, "", true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Settings.HighRiskAgents = []string{"AGENT"}
		}, Deny, SourceBackend, false, RuleHighRiskAgent},
		{"a lower threshold", payment(4000), "", true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Settings.FinancialThreshold = MoneyOf(3000)
		}, Deny, SourceBackend, false, RuleSingleThreshold},
		{"a lower threshold in all, which it alone reaches", payment(4000), "", true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Settings.CumulativeThreshold = MoneyOf(1)
		}, Allow, SourceBackend, false, ""},
		{"a lower threshold in all, which others reach", payment(4000), "", true, func(s *ChainState, q *Question, _ *Policy) {
			q.Org.Settings.CumulativeThreshold, s.Metrics.FinancialExposure = MoneyOf(1), s.Metrics.FinancialExposure.Add(MoneyOf(1.01))
		}, Deny, SourceBackend, false, RuleCumulativeThreshold},
		{"a limit of events that it alone reaches", Facts{}, "", true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Settings.AutoPause.MaxEvents = 1
		}, Allow, SourceBackend, false, ""},
		{"a limit of events that others reach", Facts{}, "", true, func(s *ChainState, q *Question, _ *Policy) {
			s.Actions, q.Org.Settings.AutoPause.MaxEvents = 2, 1
		}, Deny, SourceBackend, true, RuleAutoPause},
		{"a limit of events from before it was granted anew", Facts{}, "", true, func(s *ChainState, q *Question, _ *Policy) {
			s.Actions, s.Granted.Actions, q.Org.Settings.AutoPause.MaxEvents = 5, 5, 1
		}, Allow, SourceBackend, false, ""},
		{"a limit of tokens that it alone reaches", Facts{InputTokens: 9}, "", true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Settings.AutoPause.MaxTokens = 9
		}, Allow, SourceBackend, false, ""},
		{"a limit of tokens that others reach", Facts{InputTokens: 9}, "", true, func(s *ChainState, q *Question, _ *Policy) {
			s.Tokens, q.Org.Settings.AutoPause.MaxTokens = s.Tokens+1, 9
		}, Deny, SourceBackend, true, RuleAutoPause},
		{"a pause", Facts{}, "", false, func(s *ChainState, _ *Question, _ *Policy) { s.Status = ChainAutoPaused }, Deny, SourceBackend, true, RuleAutoPause},
		{"the kill switch", Facts{}, "", true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Controls.KillSwitch.Active = true
		}, Deny, SourceBackend, false, RuleKillSwitch},

		{"a chain's time-out", Facts{}, "", false, func(_ *ChainState, q *Question, _ *Policy) {
			q.Chain.Limits.TimeoutSeconds, q.Now = 1, q.Now+5000
		}, Deny, SourceBackend, false, RuleChainTimeout},
		{"approved in a chain that has timed out", payment(9000), ApprovalApproved, false, func(_ *ChainState, q *Question, _ *Policy) {
			q.Chain.Limits.TimeoutSeconds, q.Now = 1, q.Now+5000
		}, Deny, SourceBackend, false, RuleChainTimeout},

		{"still waiting", payment(9000), ApprovalPending, false, act, RequireApproval, SourceBackend, false, RuleSingleThreshold},
		{"escalated", payment(9000), ApprovalEscalated, true, act, RequireApproval, SourceBackend, false, RuleSingleThreshold},
		{"waiting beyond its time", payment(9000), ApprovalPending, false, func(_ *ChainState, q *Question, _ *Policy) {
			q.Now += 25 * 60 * 60 * 1000
		}, Deny, SourceHuman, false, RuleSingleThreshold},
		{"waiting for what is denied now", payment(9000), ApprovalPending, true, rule(deny), Deny, SourceBackend, false, "new"},
		{"waiting in a paused chain", payment(9000), ApprovalPending, false, func(s *ChainState, _ *Question, _ *Policy) {
			s.Status = ChainAutoPaused
		}, Deny, SourceBackend, true, RuleAutoPause},
		{"approved", payment(9000), ApprovalApproved, false, act, Allow, SourceHuman, false, RuleSingleThreshold},
		{"approved, and another act", payment(9000), ApprovalApproved, true, act, Allow, SourceHuman, false, RuleSingleThreshold},
		{"approved, and a rule that asks too", payment(9000), ApprovalApproved, true, rule(ask), Allow, SourceHuman, false, RuleSingleThreshold},
		{"approved, and a rule that flags", payment(9000), ApprovalApproved, true, rule(flag), Allow, SourceHuman, false, RuleSingleThreshold},
		{"approved, and a rule that denies", payment(9000), ApprovalApproved, true, rule(deny), Deny, SourceBackend, false, "new"},
		{"approved in a chain that asked as often as it can", payment(9000), ApprovalApproved, true, func(s *ChainState, _ *Question, _ *Policy) {
			s.Approvals = maxApprovals
		}, Allow, SourceHuman, false, RuleSingleThreshold},
		{"approved in a paused chain", payment(9000), ApprovalApproved, false, func(s *ChainState, _ *Question, _ *Policy) {
			s.Status = ChainAutoPaused
		}, Deny, SourceBackend, true, RuleAutoPause},
		{"approved under the kill switch", payment(9000), ApprovalApproved, true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Controls.KillSwitch.Active = true
		}, Deny, SourceHuman, false, RuleKillSwitch},
		{"denied", payment(9000), ApprovalDenied, false, act, Deny, SourceHuman, false, RuleSingleThreshold},
		{"denied under the kill switch", payment(9000), ApprovalDenied, true, func(_ *ChainState, q *Question, _ *Policy) {
			q.Org.Controls.KillSwitch.Active = true
		}, Deny, SourceHuman, false, RuleSingleThreshold},
		{"denied in a paused chain", payment(9000), ApprovalDenied, false, func(s *ChainState, _ *Question, _ *Policy) {
			s.Status = ChainAutoPaused
		}, Deny, SourceHuman, true, RuleSingleThreshold},
		{"timed out", payment(9000), ApprovalTimedOut, true, act, Deny, SourceHuman, false, RuleSingleThreshold},
		{"cancelled", payment(9000), ApprovalCancelled, true, act, Deny, SourceHuman, false, RuleSingleThreshold},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newBook(t).open("")
			r := plainly(p.chain, &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "step", Payload: []byte("{}"), Facts: c.facts}, p.chain.StartedAt, [10]byte{1})
			r.Org.Controls.Act = 3
			recorded := p.state.Record(r)
			if approval := recorded.Approval; approval != nil && c.settle == ApprovalEscalated {
				approval.Status = c.settle
			} else if approval != nil && c.settle != ApprovalPending {
				approval.settle(c.settle, nil, "", r.Now+5)
				p.state.Settle(approval, r.Now+5)
			}
			event := must(DecodeEvent(recorded.Stored.Body))
			if c.acted {
				r.Org.Controls.Act = 4
			}
			policy := *BuiltinPolicy
			q := &Question{Org: r.Org, Chain: p.chain, State: p.state, Action: r.Action, Now: r.Now + 50}
			c.since(p.state, q, &policy)
			before := *p.state
			answer := event.AnswerRepeated(&policy, q, recorded.Approval)
			d := &answer.Decision
			if d.Outcome != c.outcome || d.Source != c.source || d.AutoPaused != c.paused || d.PolicyName != c.by || answer.Status != c.outcome.status() {
				t.Errorf("answered %s with %+v", answer.Status, d)
			}
			if d.KillSwitchActive != q.Org.Controls.KillSwitch.Active {
				t.Errorf("the kill switch is said to be %v", d.KillSwitchActive)
			}
			if p.state.Actions != before.Actions || p.state.Tokens != before.Tokens || p.state.Granted != before.Granted ||
				p.state.Metrics.FinancialExposure.Cmp(before.Metrics.FinancialExposure) != 0 || p.state.Pending.Exposure.Cmp(before.Pending.Exposure) != 0 {
				t.Error("the question changed the chain")
			}
			if of := recorded.Approval; of != nil && d.PolicyName == of.PolicyName && !slices.Equal(d.Matched, event.Decision.Matched) {
				t.Errorf("it lists the rules %+v, and %+v at first", d.Matched, event.Decision.Matched)
			}
			if answer.ID != event.ID || answer.Approval != event.Approval || answer.Sequence != event.Sequence {
				t.Error("another event is answered")
			}
		})
	}
}

// An event that predates act numbers is decided again too.
func TestAgainWithoutANumber(t *testing.T) {
	t.Parallel()
	p := newBook(t).open("")
	r := plainly(p.chain, &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "step", Payload: []byte("{}")}, p.chain.StartedAt, [10]byte{1})
	event := must(DecodeEvent(p.state.Record(r).Stored.Body))
	r.Org.Controls.Act = 1
	q := &Question{Org: r.Org, Chain: p.chain, State: p.state, Action: r.Action, Now: r.Now}
	if answer := event.AnswerRepeated(&Policy{Version: "v1", Rules: fixedRules{{Name: "no", Outcome: Deny}}}, q, nil); answer.Status != EventDenied {
		t.Errorf("answered %s", answer.Status)
	}
}
