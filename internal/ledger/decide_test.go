package ledger

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"countersign/internal/canon"
)

// TestAmountsAreHeldAgainstTheThreshold: a small amount does not hide a large one, and no amount
// hides one in another currency.
func TestAmountsAreHeldAgainstTheThreshold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		payload, metadata string
		want              Outcome
		by                string
	}{
		{`{"amount_usd":4000}`, `{"amount_usd":0.01}`, Allow, ""},
		{`{"amount_usd":9000000}`, `{"amount_usd":0.01}`, RequireApproval, RuleSingleThreshold},
		{`{"amount_usd":0,"amount":9000}`, `{}`, RequireApproval, RuleSingleThreshold},
		{`{"value":9000}`, `{}`, RequireApproval, RuleSingleThreshold},
		{`{"payments":[{"amount":3000},{"amount":3000}]}`, `{}`, RequireApproval, RuleSingleThreshold},
		{`{"amount":5,"ccy":"EUR"}`, `{"amount_usd":5}`, RequireApproval, RuleAmountMissing},
		{`{"amount":5,"asset":"BTC"}`, `{}`, RequireApproval, RuleAmountMissing},
		{`{"amount":5,"currencyIso":"CHF"}`, `{}`, RequireApproval, RuleAmountMissing},
		{`{"amount":5,"unit":"EUR"}`, `{}`, RequireApproval, RuleAmountMissing},
		{`{"amount":1e300}`, `{}`, RequireApproval, RuleAmountMissing},
		{`{}`, `{}`, RequireApproval, RuleAmountMissing},
	} {
		q := question()
		q.Action = mustAction(t, `{"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":`+c.payload+`,"metadata":`+c.metadata+`}`)
		d := Decide(BuiltinPolicy, q)
		if d.Outcome != c.want || d.PolicyName != c.by {
			t.Errorf("%s %s: %s by %q, want %s by %q", c.payload, c.metadata, d.Outcome, d.PolicyName, c.want, c.by)
		}
	}
}

// TestTokensOfThePayloadCount: tokens in the payload count against the chain's limit even if the
// metadata omit them.
func TestTokensOfThePayloadCount(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`{"model":"gpt-4o","input_tokens":1001}`,
		`{"response":{"usage":{"prompt_tokens":1000,"completion_tokens":1}}}`,
		`{"usage":[{"input_tokens":600},{"input_tokens":600}]}`,
	} {
		q := question()
		q.Org.Settings.AutoPause.MaxTokens = 1000
		q.Action = mustAction(t, `{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":`+payload+`}`)
		if d := Decide(BuiltinPolicy, q); d.Outcome != Deny || !d.AutoPaused {
			t.Errorf("%s: %s by %q", payload, d.Outcome, d.PolicyName)
		}
	}
}

func mustAction(t *testing.T, body string) *Action {
	t.Helper()
	v, err := canon.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	action, err := ParseAction(v)
	if err != nil {
		t.Fatal(err)
	}
	return action
}

// fixedRules always match.
type fixedRules []Match

func (r fixedRules) Examine(*Action) {}

func (r fixedRules) Examined(*Action) bool { return true }

func (r fixedRules) Match(*Question) []Match { return r }

func money(dollars float64) *Money {
	m := MoneyOf(dollars)
	return &m
}

func question() *Question {
	chain := &Chain{StartedAt: firstMoment}
	return &Question{
		Org: &Organization{Slug: "acme", Settings: DefaultSettings()}, Chain: chain, State: NewChainState(firstMoment, "v0"),
		Action: &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "step"}, Now: firstMoment,
	}
}

func payment(dollars float64) Facts {
	return Facts{Categories: []string{CategoryFinancial}, Amount: money(dollars)}
}

// The built-in rules decide exactly at their limits, the strictest rule wins, and no rule or client
// can weaken a built-in rule.
func TestBuiltinRules(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		arrange func(*Question)
		rules   fixedRules
		want    Outcome
		by      string
	}{
		{"nothing matches", func(*Question) {}, nil, Allow, ""},
		{"a payment at the threshold", func(q *Question) { q.Action.Facts = payment(5000) }, nil, Allow, ""},
		{"a payment above the threshold", func(q *Question) { q.Action.Facts = payment(5000.01) }, nil, RequireApproval, RuleSingleThreshold},
		{"an amount that is no payment", func(q *Question) { q.Action.Facts = Facts{Amount: money(9999)} }, nil, Allow, ""},
		{"a payment without an amount", func(q *Question) { q.Action.Facts = Facts{Categories: []string{CategoryFinancial}} }, nil, RequireApproval, RuleAmountMissing},
		{"exposure at the threshold", func(q *Question) {
			q.Action.Facts, q.State.Metrics.FinancialExposure = payment(1), MoneyOf(10000)
		}, nil, Allow, ""},
		{"exposure above the threshold", func(q *Question) {
			q.Action.Facts, q.State.Metrics.FinancialExposure = payment(1), MoneyOf(10000.01)
		}, nil, RequireApproval, RuleCumulativeThreshold},
		{"exposure that waits counts", func(q *Question) {
			q.Action.Facts, q.State.Metrics.FinancialExposure, q.State.Pending.Exposure = payment(1), MoneyOf(6000), MoneyOf(4001)
		}, nil, RequireApproval, RuleCumulativeThreshold},
		{"exposure does not concern other actions", func(q *Question) { q.State.Metrics.FinancialExposure = MoneyOf(99999) }, nil, Allow, ""},
		{"a client's lower threshold", func(q *Question) {
			q.Action.Facts, q.Chain.Limits.Single = payment(11), money(10)
		}, nil, RequireApproval, RuleSingleThreshold},
		{"a client's higher threshold", func(q *Question) {
			q.Action.Facts, q.Chain.Limits.Single = payment(5001), money(1e9)
		}, nil, RequireApproval, RuleSingleThreshold},
		{"a high-risk agent", func(q *Question) { q.Org.Settings.HighRiskAgents = []string{"agent"} }, nil, RequireApproval, RuleHighRiskAgent},
		{"a high-risk agent in another spelling", func(q *Question) {
			q.Org.Settings.HighRiskAgents, q.Action.AgentName = []string{"intern"}, " In\u200btern\u00ad"
		}, nil, RequireApproval, RuleHighRiskAgent},
		{"a high-risk agent listed in another spelling", func(q *Question) {
			q.Org.Settings.HighRiskAgents, q.Action.AgentName = []string{"\uff29\uff2e\uff34\uff25\uff32\uff2e "}, "intern"
		}, nil, RequireApproval, RuleHighRiskAgent},
		{"an agent of another name", func(q *Question) { q.Org.Settings.HighRiskAgents = []string{"agents"} }, nil, Allow, ""},
		{"a client's high-risk agent", func(q *Question) { q.Chain.Limits.HighRiskAgents = []string{"agent"} }, nil, RequireApproval, RuleHighRiskAgent},
		{"a shell", func(q *Question) { q.Action.ActionName = "BashTool" }, nil, AllowWithFlag, RuleShell},
		{"a deletion by a shell", func(q *Question) { q.Action.ActionName = "bash_rm" }, nil, AllowWithFlag, RuleShell},
		{"SQL that writes", func(q *Question) { q.Action.Facts.WritesSQL = true }, nil, AllowWithFlag, RuleSQL},
		{"a deletion", func(q *Question) { q.Action.ActionName = "drop_table" }, nil, AllowWithFlag, RuleDeletion},
		{"a deletion that is looked at", func(q *Question) { q.Action.ActionName = "list_deleted_rows" }, nil, Allow, ""},
		{"mail to nobody outside", func(q *Question) { q.Action.ActionName = "send_email" }, nil, Allow, ""},
		{"mail to others", func(q *Question) {
			q.Action.ActionName, q.Action.Facts.ExternalDomains = "send_email", []string{"partner.example"}
		}, nil, AllowWithFlag, RuleMail},
		{"mail to a domain on the list", func(q *Question) {
			q.Action.ActionName, q.Action.Facts.ExternalDomains = "send_email", []string{"partner.example"}
			q.Org.Settings.ExternalDomainsAllowlist = []string{"partner.example"}
		}, nil, Allow, ""},
		{"no allowlist", func(q *Question) { q.Action.Facts.ExternalDomains = []string{"evil.example"} }, nil, Allow, ""},
		{"a domain on the list", func(q *Question) {
			q.Org.Settings.ExternalDomainsAllowlist, q.Action.Facts.ExternalDomains = []string{"good.example"}, []string{"good.example", "api.good.example"}
		}, nil, Allow, ""},
		{"a domain that only ends alike", func(q *Question) {
			q.Org.Settings.ExternalDomainsAllowlist, q.Action.Facts.ExternalDomains = []string{"good.example"}, []string{"notgood.example"}
		}, nil, AllowWithFlag, RuleDomainAllowlist},
		{"an empty allowlist", func(q *Question) {
			q.Org.Settings.ExternalDomainsAllowlist, q.Action.Facts.ExternalDomains = []string{}, []string{"a.example"}
		}, nil, AllowWithFlag, RuleDomainAllowlist},
		{"a client cannot widen the list", func(q *Question) {
			q.Org.Settings.ExternalDomainsAllowlist, q.Chain.Limits.DomainsAllowlist = []string{"a.example"}, []string{"b.example"}
			q.Action.Facts.ExternalDomains = []string{"b.example"}
		}, nil, AllowWithFlag, RuleDomainAllowlist},
		{"the last event", func(q *Question) { q.State.Actions = 9_999 }, nil, Allow, ""},
		{"one event too many", func(q *Question) { q.State.Actions = 10_000 }, nil, Deny, RuleAutoPause},
		{"events after a resume", func(q *Question) { q.State.Actions, q.State.Granted.Actions = 10_500, 10_000 }, nil, Allow, ""},
		{"the last second", func(q *Question) { q.Now = firstMoment + 24*60*60*1000 }, nil, Allow, ""},
		{"too long", func(q *Question) { q.Now = firstMoment + 24*60*60*1000 + 1 }, nil, Deny, RuleAutoPause},
		{"long after a resume", func(q *Question) {
			q.State.Granted.At = firstMoment + 24*60*60*1000
			q.Now = q.State.Granted.At + 60*60*1000
		}, nil, Allow, ""},
		{"the last token", func(q *Question) { q.State.Tokens, q.Action.Facts.InputTokens = 9_999_990, 10 }, nil, Allow, ""},
		{"a token too many", func(q *Question) { q.State.Tokens, q.Action.Facts.OutputTokens = 9_999_990, 11 }, nil, Deny, RuleAutoPause},
		{"tokens that wait count", func(q *Question) { q.State.Pending.Tokens, q.Action.Facts.InputTokens = 9_999_990, 11 }, nil, Deny, RuleAutoPause},
		{"a paused chain", func(q *Question) { q.State.Status, q.State.PauseReason = ChainAutoPaused, "before" }, nil, Deny, RuleAutoPause},
		{"an old chain", func(q *Question) { q.Chain.Limits.TimeoutSeconds, q.Now = 10, firstMoment+10_001 }, nil, Deny, RuleChainTimeout},
		{"the kill switch", func(q *Question) { q.Org.Controls.KillSwitch = KillSwitch{Active: true, Reason: "stop"} },
			fixedRules{{Name: "own", Outcome: Allow}}, Deny, RuleKillSwitch},
		{"a rule of its own", func(*Question) {}, fixedRules{{Name: "own", Outcome: Deny}}, Deny, "own"},
		{"a rule cannot allow what is built in", func(q *Question) { q.Action.Facts = payment(6000) },
			fixedRules{{Name: "own", Outcome: Allow}}, RequireApproval, RuleSingleThreshold},
		{"the strictest rule", func(*Question) {},
			fixedRules{{Name: "a", Outcome: AllowWithFlag}, {Name: "b", Outcome: Deny}, {Name: "c", Outcome: RequireApproval}}, Deny, "b"},
		{"the first of equals", func(*Question) {}, fixedRules{{Name: "a", Outcome: Deny}, {Name: "b", Outcome: Deny}}, Deny, "a"},
		{"a rule of its own beside a built-in one", func(q *Question) { q.Action.Facts = payment(6000) },
			fixedRules{{Name: "a", Outcome: RequireApproval}, {Name: "b", Outcome: RequireApproval}}, RequireApproval, "a"},
		{"a rule that names approvers", func(q *Question) { q.Action.Facts = payment(6000) },
			fixedRules{{Name: "a", Outcome: RequireApproval}, {Name: "b", Outcome: RequireApproval, Approvers: []string{"chief"}}}, RequireApproval, "b"},
		{"a rule of its own beside a paused chain", func(q *Question) { q.State.Status, q.State.PauseReason = ChainAutoPaused, "before" },
			fixedRules{{Name: "own", Outcome: Deny}}, Deny, RuleAutoPause},
		{"a rule of its own beside a chain's time-out", func(q *Question) { q.Chain.Limits.TimeoutSeconds, q.Now = 10, firstMoment+10_001 },
			fixedRules{{Name: "own", Outcome: Deny}}, Deny, RuleChainTimeout},
		{"too many approvals", func(q *Question) { q.State.Approvals = maxApprovals },
			fixedRules{{Name: "own", Outcome: RequireApproval}}, Deny, RuleTooManyApprovals},
		{"a gap", func(q *Question) { q.Action.ActionType, q.Action.Source = ActionTypeGap, SourceOffline }, nil, AllowWithFlag, RuleGap},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := question()
			c.arrange(q)
			policy := &Policy{Version: "v1+x", Rules: c.rules}
			d := Decide(policy, q)
			if d.Outcome != c.want || d.PolicyName != c.by || d.Mode != Enforce || d.PolicyVersion != "v1+x" {
				t.Errorf("decided %s by %q (%s), want %s by %q", d.Outcome, d.PolicyName, d.Reason, c.want, c.by)
			}
			if d.AutoPaused != (c.by == RuleAutoPause) || d.KillSwitchActive != (c.by == RuleKillSwitch) {
				t.Errorf("auto_paused %t, kill_switch_active %t", d.AutoPaused, d.KillSwitchActive)
			}
			if (d.Reason == "") != (c.by == "" || c.by == "own" || c.by == "a" || c.by == "b") {
				t.Errorf("reason %q", d.Reason)
			}
		})
	}
}

// A rule's list of approvers applies together with a built-in rule that also requires approval.
func TestApproversOfSeveralRules(t *testing.T) {
	t.Parallel()
	asks := func(approvers ...string) Match {
		return Match{Name: "own", Outcome: RequireApproval, Approvers: approvers}
	}
	onTrial := asks("nobody")
	onTrial.Shadow = true
	cases := map[string]struct {
		rules fixedRules
		want  []string
	}{
		"no list":         {fixedRules{asks()}, nil},
		"one list":        {fixedRules{asks("controller")}, []string{"controller"}},
		"two lists":       {fixedRules{asks("controller", "chief"), asks("chief")}, []string{"chief"}},
		"lists apart":     {fixedRules{asks("controller"), asks("chief")}, []string{"controller"}},
		"a list on trial": {fixedRules{asks("controller"), onTrial}, []string{"controller"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := question()
			q.Action.Facts = payment(7500)
			d := Decide(&Policy{Rules: c.rules}, q)
			if d.Outcome != RequireApproval || d.PolicyName != "own" || !slices.Equal(d.Approvers, c.want) {
				t.Errorf("decided %s by %s, approvers %q, want %q", d.Outcome, d.PolicyName, d.Approvers, c.want)
			}
		})
	}
}

// An organization's own rule comes before an equally strict built-in rule.
func TestOwnWordsGoFirst(t *testing.T) {
	t.Parallel()
	own := Match{Name: "own", Outcome: RequireApproval, Reason: "the treasury decides", Remediation: "wait", DocsURL: "https://wiki.example"}
	q := question()
	q.Action.Facts = payment(6000)
	d := Decide(&Policy{Rules: fixedRules{own}}, q)
	if d.PolicyName != own.Name || d.Reason != own.Reason || d.Remediation != own.Remediation || d.DocsURL != own.DocsURL {
		t.Errorf("decided by %q: %q, %q, %q", d.PolicyName, d.Reason, d.Remediation, d.DocsURL)
	}
}

// The metrics do not include waiting exposure, so the reason distinguishes the two.
func TestExposureThatWaitsIsSaid(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[float64]string{
		0:     "the chain's exposure of 19000.00 USD is above the threshold of 10000.00 USD",
		13000: "the chain's exposure of 32000.00 USD (including 13000.00 USD still waiting for approval) is above the threshold of 10000.00 USD",
	} {
		q := question()
		q.Action.Facts, q.State.Metrics.FinancialExposure, q.State.Pending.Exposure = payment(1), MoneyOf(19000), MoneyOf(waiting)
		if d := Decide(BuiltinPolicy, q); d.Reason != want {
			t.Errorf("with %v waiting the reason is %q, want %q", waiting, d.Reason, want)
		}
	}
}

// A rule or organization in shadow records what it would have decided and stops nothing. The kill
// switch is never in shadow.
func TestShadow(t *testing.T) {
	t.Parallel()
	shadowed := Match{Name: "trial", Outcome: Deny, Shadow: true}
	cases := []struct {
		name   string
		org    Mode
		kill   bool
		rules  fixedRules
		want   Outcome
		mode   Mode
		shadow Outcome
		by     string
	}{
		{"a rule on trial", Enforce, false, fixedRules{shadowed}, Allow, Shadow, Deny, "trial"},
		{"a stricter rule beside it", Enforce, false, fixedRules{shadowed, {Name: "own", Outcome: Deny}}, Deny, Enforce, "", "own"},
		{"a milder rule beside it", Enforce, false, fixedRules{shadowed, {Name: "own", Outcome: AllowWithFlag}}, AllowWithFlag, Shadow, Deny, "own"},
		{"an organization on trial", Shadow, false, fixedRules{{Name: "own", Outcome: RequireApproval}}, Allow, Shadow, RequireApproval, "own"},
		{"an organization on trial, nothing matches", Shadow, false, nil, Allow, Shadow, Allow, ""},
		{"the kill switch is never on trial", Shadow, true, nil, Deny, Enforce, "", RuleKillSwitch},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := question()
			q.Org.Settings.EvaluationMode, q.Org.Controls.KillSwitch.Active = c.org, c.kill
			d := Decide(&Policy{Rules: c.rules}, q)
			if d.Outcome != c.want || d.Mode != c.mode || d.Shadow != c.shadow || d.PolicyName != c.by {
				t.Errorf("decided %s in %s mode, shadow %q, by %q", d.Outcome, d.Mode, d.Shadow, d.PolicyName)
			}
		})
	}
}

// An action that a client allowed is recorded as such, and flagged if the service would have
// stopped it.
func TestClientDecisions(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		arrange  func(*Question)
		want     Outcome
		shadow   Outcome
		violated bool
	}{
		{"as the service would have", func(*Question) {}, Allow, "", false},
		{"the service would have asked", func(q *Question) { q.Action.Facts = payment(6000) }, AllowWithFlag, RequireApproval, true},
		{"the service would have denied", func(q *Question) { q.State.Status = ChainAutoPaused }, AllowWithFlag, Deny, true},
		{"the kill switch was active", func(q *Question) { q.Org.Controls.KillSwitch.Active = true }, AllowWithFlag, Deny, true},
		{"a shell is flagged, and no violation", func(q *Question) { q.Action.ActionName = "execute_shell" }, AllowWithFlag, "", false},
		{"a shell over a threshold is one", func(q *Question) {
			q.Action.ActionName, q.Action.Facts = "execute_shell", payment(6000)
		}, AllowWithFlag, RequireApproval, true},
		{"a gap is no violation", func(q *Question) { q.Action.ActionType = ActionTypeGap }, AllowWithFlag, "", false},
		{"an organization on trial", func(q *Question) {
			q.Action.Facts, q.Org.Settings.EvaluationMode = payment(6000), Shadow
		}, Allow, RequireApproval, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := question()
			q.Action.Source = SourceFastPath
			c.arrange(q)
			d := Decide(BuiltinPolicy, q)
			if d.Outcome != c.want || d.Shadow != c.shadow || d.Violated() != c.violated || d.Source != SourceFastPath {
				t.Errorf("recorded as %s, shadow %q, violated %t, from %s", d.Outcome, d.Shadow, d.Violated(), d.Source)
			}
		})
	}
}

func anyQuestion() *rapid.Generator[*Question] {
	agents := rapid.SampledFrom([]string{"payer", "writer", "reader"})
	domains := rapid.SliceOfN(rapid.SampledFrom([]string{"example.com", "a.example.com", "example.org", "evil.example"}), 0, 3)
	return rapid.Custom(func(t *rapid.T) *Question {
		q := question()
		q.Action.AgentName = agents.Draw(t, "agent")
		q.Action.Facts = Facts{
			Categories:      rapid.SliceOfDistinct(rapid.SampledFrom([]string{CategoryFinancial, CategoryLLM}), rapid.ID).Draw(t, "categories"),
			Amount:          maybe(rapid.Custom(func(t *rapid.T) Money { return MoneyOf(rapid.Float64Range(0, 20000).Draw(t, "amount")) })).Draw(t, "amount"),
			ExternalDomains: domains.Draw(t, "domains"), InputTokens: rapid.Int64Range(0, 20_000_000).Draw(t, "tokens"),
		}
		q.State.Metrics.FinancialExposure = MoneyOf(rapid.Float64Range(0, 20000).Draw(t, "exposure"))
		q.State.Actions = rapid.Int64Range(0, 20_000).Draw(t, "actions")
		q.Now = firstMoment + Time(rapid.Int64Range(0, 2*24*60*60*1000).Draw(t, "age"))
		if rapid.Bool().Draw(t, "listed") {
			q.Org.Settings.ExternalDomainsAllowlist = domains.Draw(t, "allowed")
		}
		q.Org.Settings.HighRiskAgents = rapid.SliceOfN(agents, 0, 2).Draw(t, "risky")
		return q
	})
}

func anyRules() *rapid.Generator[fixedRules] {
	return rapid.Custom(func(t *rapid.T) fixedRules {
		rule := rapid.Custom(func(t *rapid.T) Match {
			return Match{
				Name:    rapid.StringMatching(`[a-z]{3}`).Draw(t, "name"),
				Outcome: rapid.SampledFrom([]Outcome{Allow, AllowWithFlag, RequireApproval, Deny}).Draw(t, "outcome"),
				Shadow:  rapid.Bool().Draw(t, "shadow"),
			}
		})
		return rapid.SliceOfN(rule, 0, 5).Draw(t, "rules")
	})
}

// No policy_config that a client can send makes a decision milder.
func TestClientsOnlyTighten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := anyQuestion().Draw(t, "question")
		policy := &Policy{Rules: anyRules().Draw(t, "rules")}
		alone := Decide(policy, q)
		config, err := canon.Parse(anyPolicyConfig().Draw(t, "config"))
		if err != nil {
			t.Fatal(err)
		}
		f := canon.NewFields(config)
		q.Chain.Limits = parseClientLimits(f)
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		if d := Decide(policy, q); alone.Outcome.StricterThan(d.Outcome) {
			t.Fatalf("%s became %s", alone.Outcome, d.Outcome)
		}
		if span := approvalTime(&q.Org.Settings, &q.Chain.Limits); span > approvalTime(&q.Org.Settings, &ClientLimits{}) {
			t.Fatalf("a person has %d ms, more than the organization grants", span)
		}
	})
}

// Rules in shadow never change what happens, and neither does their order.
func TestShadowNeverActs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q, rules := anyQuestion().Draw(t, "question"), anyRules().Draw(t, "rules")
		acting := slices.DeleteFunc(slices.Clone(rules), func(m Match) bool { return m.Shadow })
		with, without := Decide(&Policy{Rules: rules}, q), Decide(&Policy{Rules: acting}, q)
		if with.Outcome != without.Outcome {
			t.Fatalf("with rules on trial %s, without them %s", with.Outcome, without.Outcome)
		}
		q.Org.Settings.EvaluationMode = Shadow
		if d := Decide(&Policy{Rules: rules}, q); d.Outcome != Allow || d.Mode != Shadow || d.AutoPaused {
			t.Fatalf("an organization on trial has %s in %s mode", d.Outcome, d.Mode)
		}
	})
}

// The strictest rule wins in any order.
func TestOrderOfRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q, rules := anyQuestion().Draw(t, "question"), anyRules().Draw(t, "rules")
		shuffled := rapid.Permutation(rules).Draw(t, "shuffled")
		one, other := Decide(&Policy{Rules: rules}, q), Decide(&Policy{Rules: shuffled}, q)
		if one.Outcome != other.Outcome || one.Shadow != other.Shadow || one.Mode != other.Mode {
			t.Fatalf("%s/%s in one order, %s/%s in another", one.Outcome, one.Shadow, other.Outcome, other.Shadow)
		}
		for _, m := range rules {
			if !m.Shadow && m.Outcome.StricterThan(one.Outcome) {
				t.Fatalf("a rule says %s, decided was %s", m.Outcome, one.Outcome)
			}
		}
	})
}

// Whatever is recorded, approved, denied or left to expire, in any order: the chain's exposure is
// the sum of what was allowed and approved, its reservation is the sum of what waits, and with
// nothing waiting it is zero.
func TestExposureIsWhatWasAllowed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		chain := &Chain{StartedAt: firstMoment}
		state := NewChainState(firstMoment, "v0")
		var allowed, waiting Money
		var open []*Approval
		settle := func(i int) {
			a := open[i]
			open = slices.Delete(open, i, i+1)
			waiting = waiting.Sub(*a.Reserved.Facts.Amount)
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				if _, err := a.Decide(&Verdict{Approve: true}, Reviewer{Key: KeyID{NewRandomID([16]byte{9})}}, new(Settlement), state.LastAt); err != nil {
					t.Fatal(err)
				}
				allowed = allowed.Add(*a.Reserved.Facts.Amount)
			case 1:
				a.Advance(a.ExpiresAt)
			default:
				a.Cancel(state.LastAt)
			}
			state.Settle(a, state.LastAt)
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "settle") {
				settle(rapid.IntRange(0, len(open)-1).Draw(t, "which"))
			} else {
				amount := MoneyOf(float64(rapid.IntRange(1, 900_000).Draw(t, "cents")) / 100)
				action := &Action{AgentName: "a", ActionType: "b", ActionName: "c", Payload: []byte(`{}`), Facts: Facts{Categories: []string{CategoryFinancial}, Amount: &amount}}
				before := state.Metrics.FinancialExposure.Add(state.Pending.Exposure)
				recorded := state.Record(plainly(chain, action, state.LastAt, [10]byte{}))
				if recorded.Approval == nil {
					allowed = allowed.Add(amount)
					if amount.Cmp(MoneyOf(5000)) > 0 || before.Cmp(MoneyOf(10000)) > 0 {
						t.Fatalf("%s was allowed on top of %s", amount, before)
					}
				} else {
					waiting = waiting.Add(amount)
					open = append(open, recorded.Approval)
				}
			}
			if state.Metrics.FinancialExposure.Cmp(allowed) != 0 || state.Pending.Exposure.Cmp(waiting) != 0 {
				t.Fatalf("exposure %s and %s waiting, want %s and %s", state.Metrics.FinancialExposure, state.Pending.Exposure, allowed, waiting)
			}
		}
	})
}
