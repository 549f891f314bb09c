package ledger

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"countersign/internal/classify"
)

// settingValues has some values of every setting, including spellings with the same meaning. The
// keys are the members of Settings.
var settingValues = map[string][]func(*Settings){
	"EvaluationMode":      {func(s *Settings) { s.EvaluationMode = Shadow }},
	"FinancialThreshold":  {func(s *Settings) { s.FinancialThreshold = MoneyOf(777) }},
	"CumulativeThreshold": {func(s *Settings) { s.CumulativeThreshold = MoneyOf(777) }},
	"ExternalDomainsAllowlist": {
		func(s *Settings) { s.ExternalDomainsAllowlist = []string{} },
		func(s *Settings) { s.ExternalDomainsAllowlist = []string{"example.com", "example.org"} },
		func(s *Settings) {
			s.ExternalDomainsAllowlist = []string{"example.org", "a.example.com", "example.com"}
		},
		func(s *Settings) { s.ExternalDomainsAllowlist = []string{"a.example.com"} },
	},
	"HighRiskAgents": {
		func(s *Settings) { s.HighRiskAgents = []string{"payer", "writer"} },
		func(s *Settings) { s.HighRiskAgents = []string{"Writer", "payer", "payer"} },
		func(s *Settings) { s.HighRiskAgents = []string{"payer"} },
	},
	"ApprovalTimeoutHours": {func(s *Settings) { s.ApprovalTimeoutHours = 2 }},
	"FallbackApprovers": {
		func(s *Settings) { s.FallbackApprovers = []string{"b@example.com", "a@example.com"} },
		func(s *Settings) { s.FallbackApprovers = []string{"a@example.com", "b@example.com"} },
	},
	"TwoPersonApproval": {func(s *Settings) { s.TwoPersonApproval = true }},
	"FastPathActions": {
		func(s *Settings) { s.FastPathActions = []string{} },
		func(s *Settings) { s.FastPathActions = []string{"get", "list"} },
		func(s *Settings) {
			s.FastPathActions = slices.Clone(classify.SafeVerbs)
			slices.Reverse(s.FastPathActions)
		},
	},
	"EvidenceExport":    {func(s *Settings) { s.EvidenceExport = ExportAdmins }},
	"SlackChannel":      {func(s *Settings) { s.SlackChannel = "C0123456789" }},
	"AbandonAfterHours": {func(s *Settings) { s.AbandonAfterHours = 5 }},
	"FailModes":         {func(s *Settings) { s.FailModes = map[string]string{"default": "allow"} }},
	"AutoPause": {
		func(s *Settings) { s.AutoPause.MaxEvents = 5 },
		func(s *Settings) { s.AutoPause.MaxDurationSeconds = 60 },
		func(s *Settings) { s.AutoPause.MaxTokens = 100 },
	},
	"Budgets": {
		func(s *Settings) { s.Budgets = []Budget{budgetOf(100, Deny)} },
		func(s *Settings) { s.Budgets = []Budget{budgetOf(200, Deny)} },
		func(s *Settings) { s.Budgets = []Budget{budgetOf(100, RequireApproval)} },
	},
}

func budgetOf(limit float64, decision Outcome) Budget {
	usd := MoneyOf(limit)
	return Budget{Name: "day", Scope: ScopeOrganization, Window: WindowDay, LimitUSD: &usd, Decision: decision}
}

// anySettings draws one value of every setting, or its default.
func anySettings() *rapid.Generator[Settings] {
	return rapid.Custom(func(t *rapid.T) Settings {
		s := DefaultSettings()
		for i := range reflect.TypeFor[Settings]().NumField() {
			values := settingValues[reflect.TypeFor[Settings]().Field(i).Name]
			if n := rapid.IntRange(-3, len(values)-1).Draw(t, "value"); n >= 0 {
				values[n](&s)
			}
		}
		return s
	})
}

// past is what a chain has done before.
type past struct {
	actions  int64
	exposure float64
	age      Time
}

// decisions returns everything that the settings decide, for actions close to every value of
// settingValues.
func decisions(s *Settings) string {
	var all strings.Builder
	fmt.Fprintln(&all, s.EvaluationMode, string(s.CanonicalFailModes()))
	enforced := *s
	enforced.EvaluationMode = Enforce
	org := &Organization{ID: OrgID{uuid.UUID{1}}, Settings: enforced}
	chain := &Chain{ID: ChainID{uuid.UUID{2}}, Org: org.ID, FastPath: true, StartedAt: firstMoment}
	decide := func(agent string, amount float64, domain string, before past) {
		action := &Action{AgentName: agent, ActionType: "tool_call", ActionName: "step", Payload: []byte(`{}`), Facts: Facts{InputTokens: 150}}
		if amount > 0 {
			usd := MoneyOf(amount)
			action.Facts.Amount, action.Facts.Categories = &usd, []string{CategoryFinancial}
		}
		if domain != "" {
			action.Facts.ExternalDomains = []string{domain}
		}
		state := NewChainState(firstMoment, "")
		state.Actions, state.Metrics.FinancialExposure = before.actions, MoneyOf(before.exposure)
		r := plainly(chain, action, firstMoment+before.age, [10]byte{1})
		r.Org = org
		for _, applied := range enforced.Applying(org.ID, &Subject{Agent: agent}, action, r.Now, nil) {
			r.Standings = append(r.Standings, applied.Standing(action, NewBudgetCounter(applied.Key, "")))
		}
		recorded := state.Record(r)
		fmt.Fprint(&all, recorded.Event.Decision.Outcome, recorded.Event.Decision.PolicyName, recorded.Event.Decision.AutoPaused)
		if a := recorded.Approval; a != nil {
			fmt.Fprint(&all, a.ExpiresAt, a.TwoPerson, asSet(a.Fallback))
		}
	}
	for _, agent := range []string{"payer", "writer", "other"} {
		for _, domain := range []string{"", "example.com", "a.example.com", "example.org", "example.net"} {
			decide(agent, 0, domain, past{})
		}
		for _, before := range []past{{}, {7, 0, 0}, {0, 1000, 0}, {0, 20000, 0}, {0, 0, 100_000}} {
			for _, amount := range []float64{0, 50, 150, 300, 1000, 9000} {
				decide(agent, amount, "", before)
			}
		}
	}
	if lease := NewChainState(firstMoment, "").Grant(&Recording{Keys: keyRing, Policy: BuiltinPolicy, Org: org, Chain: chain, Now: firstMoment}); lease != nil {
		fmt.Fprint(&all, asSet(lease.Actions))
	}
	return all.String()
}

// The policy version changes with a setting exactly if the setting can change a decision. In
// combination with other settings it changes at least then: one setting can hide what another would
// decide.
func TestPolicyVersionCoversWhatDecides(t *testing.T) {
	t.Parallel()
	defaults := DefaultSettings()
	if got := defaults.policyVersion(BuiltinPolicy.Version); got != BuiltinPolicy.Version {
		t.Errorf("the defaults make %s of %s", got, BuiltinPolicy.Version)
	}
	for field := range reflect.TypeFor[Settings]().Fields() {
		values := settingValues[field.Name]
		if len(values) == 0 {
			t.Errorf("nothing is known about the setting %s: add it to settingValues, and to deciding if it can change a decision", field.Name)
		}
		for i, set := range values {
			s := DefaultSettings()
			set(&s)
			decides := decisions(&s) != decisions(&defaults)
			if changes := s.policyVersion(BuiltinPolicy.Version) != BuiltinPolicy.Version; changes != decides {
				t.Errorf("%s, value %d: decides %v, and changes the version %v", field.Name, i+1, decides, changes)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		one := anySettings().Draw(t, "one")
		other := one
		values := settingValues[reflect.TypeFor[Settings]().Field(rapid.IntRange(0, reflect.TypeFor[Settings]().NumField()-1).Draw(t, "setting")).Name]
		rapid.SampledFrom(values).Draw(t, "value")(&other)
		same := one.policyVersion("v3+0123456789ab") == other.policyVersion("v3+0123456789ab")
		if same && decisions(&one) != decisions(&other) {
			t.Fatal("they decide differently, and have one version")
		}
	})
}

// The digits are those of the set and of the canonical settings, as documented: neither another
// release nor another default changes them.
func TestPolicyVersionIsFixed(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*Settings){
		"v2+0123456789ab": func(*Settings) {},
		"v2+" + PayloadHash([]byte(`{"financial_approval_threshold_usd":777,"set":"0123456789ab"}`))[:12]:                func(s *Settings) { s.FinancialThreshold = MoneyOf(777) },
		"v2+" + PayloadHash([]byte(`{"evaluation_mode":"shadow","set":"0123456789ab","two_person_approval":true}`))[:12]: func(s *Settings) { s.EvaluationMode, s.TwoPersonApproval = Shadow, true },
	} {
		s := DefaultSettings()
		edit(&s)
		if got := s.policyVersion("v2+0123456789ab"); got != want {
			t.Errorf("version %s, want %s", got, want)
		}
	}
}

// Former settings of an organization are found by their version, however often they were changed
// since. A version that none of them has is not found.
func TestPastSettingsAreFound(t *testing.T) {
	t.Parallel()
	org := &Organization{ID: OrgID{uuid.UUID{1}}, Slug: "acme", Settings: DefaultSettings()}
	log := NewActLog(org.ID)
	var past PastSettings
	enter := func(action, detail string) {
		act, err := log.Append(keyRing, org, Act{Action: action, Target: "acme", Detail: []byte(detail), At: firstMoment})
		if err != nil {
			t.Fatal(err)
		}
		if err := past.Step(act); err != nil {
			t.Fatal(err)
		}
	}
	enter(ActOrganizationCreate, `{}`)
	enter(ActOrganizationUpdate, `{"changed":{"financial_approval_threshold_usd":{"from":"5000","to":"777"}}}`)
	enter(ActKeyCreate, `{"name":"x"}`)
	enter(ActOrganizationUpdate, `{"changed":{"budgets":{"from":null,"to":[]},"name":{"from":"a","to":"b"},"two_person_approval":{"from":false,"to":true}}}`)
	enter(ActOrganizationUpdate, `{"changed":{"name":{"from":"b","to":"c"}}}`)
	now := DefaultSettings()
	now.FinancialThreshold, now.TwoPersonApproval, now.Budgets = MoneyOf(777), true, []Budget{budgetOf(100, Deny)}
	second := DefaultSettings()
	second.FinancialThreshold = MoneyOf(777)
	const set = "v1+0123456789ab"
	for name, c := range map[string]struct {
		version string
		found   bool
	}{
		"the second": {second.policyVersion(set), true},
		"none":       {"v1+ffffffffffff", false},
	} {
		got, err := past.Find(&now, c.version, set)
		if (err == nil) != c.found || c.found && !got.Names(c.version, set) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Of a list, exactly those domains remain that are within no other.
func TestWidestDomains(t *testing.T) {
	t.Parallel()
	label := rapid.SampledFrom([]string{"a", "b", "ab", "example", "xn--a"})
	domain := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "labels"), ".")
	})
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(domain, 0, 20).Draw(t, "list")
		want := []string{}
		for _, domain := range asSet(list) {
			if !slices.ContainsFunc(list, func(other string) bool { return other != domain && within(domain, other) }) {
				want = append(want, domain)
			}
		}
		if got := widestDomains(list); !slices.Equal(got, want) {
			t.Fatalf("of %q remain %q, want %q", list, got, want)
		}
	})
}

// BenchmarkPolicyVersion determines a version under the longest allowlist.
func BenchmarkPolicyVersion(b *testing.B) {
	s := DefaultSettings()
	for i := range maxListed {
		s.ExternalDomainsAllowlist = append(s.ExternalDomainsAllowlist, fmt.Sprintf("host-%d.department.example.com", i))
	}
	for b.Loop() {
		s.policyVersion(BuiltinPolicy.Version)
	}
}
