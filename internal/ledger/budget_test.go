package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// parsedBudgets patches an organization's budgets.
func parsedBudgets(t *testing.T, body string) ([]Budget, error) {
	t.Helper()
	v, err := canon.Parse([]byte(`{"budgets":` + body + `}`))
	if err != nil {
		t.Fatal(err)
	}
	org, err := Organization{Settings: DefaultSettings()}.Patch(v)
	return org.Settings.Budgets, err
}

// TestBudgetsAreBounded: each fault of a budget is reported at its place.
func TestBudgetsAreBounded(t *testing.T) {
	t.Parallel()
	many := "[" + strings.TrimSuffix(strings.Repeat(`{},`, maxBudgets+1), ",") + "]"
	names := strings.TrimSuffix(strings.Repeat(`"n",`, maxBudgetMatch+1), ",")
	with := func(members string) string {
		return `[{"name":"b","scope":"agent","window":"day","decision":"deny",` + members + `}]`
	}
	for _, c := range []struct{ name, body, pointer string }{
		{"no array", `{}`, "/budgets"},
		{"null", `null`, "/budgets"},
		{"too many", many, "/budgets"},
		{"no name", `[{"scope":"agent","window":"day","decision":"deny","limit_usd":1}]`, "/budgets/0/name"},
		{"a long name", `[{"name":"` + strings.Repeat("n", 65) + `","scope":"agent","window":"day","decision":"deny","limit_usd":1}]`, "/budgets/0/name"},
		{"no scope", `[{"name":"b","window":"day","decision":"deny","limit_usd":1}]`, "/budgets/0/scope"},
		{"another scope", `[{"name":"b","scope":"chain","window":"day","decision":"deny","limit_usd":1}]`, "/budgets/0/scope"},
		{"no window", `[{"name":"b","scope":"agent","decision":"deny","limit_usd":1}]`, "/budgets/0/window"},
		{"another window", `[{"name":"b","scope":"agent","window":"week","decision":"deny","limit_usd":1}]`, "/budgets/0/window"},
		{"no decision", `[{"name":"b","scope":"agent","window":"day","limit_usd":1}]`, "/budgets/0/decision"},
		{"a decision that limits nothing", `[{"name":"b","scope":"agent","window":"day","decision":"allow_with_flag","limit_usd":1}]`, "/budgets/0/decision"},
		{"no limit", `[{"name":"b","scope":"agent","window":"day","decision":"deny"}]`, "/budgets/0"},
		{"two limits", with(`"limit_usd":1,"limit_tokens":1`), "/budgets/0"},
		{"below nothing", with(`"limit_usd":-1`), "/budgets/0/limit_usd"},
		{"beyond all reason", with(`"limit_cost_usd":1e16`), "/budgets/0/limit_cost_usd"},
		{"a part of a token", with(`"limit_tokens":0.5`), "/budgets/0/limit_tokens"},
		{"an unknown member", with(`"limit_usd":1,"limit_eur":1`), "/budgets/0/limit_eur"},
		{"no name to match", with(`"limit_usd":1,"match":[]`), "/budgets/0/match"},
		{"too many to match", with(`"limit_usd":1,"match":[` + names + `]`), "/budgets/0/match"},
		{"a name that nobody sees", with(`"limit_usd":1,"match":["\u200b"]`), "/budgets/0/match/0"},
		{"a part of the organization", `[{"name":"b","scope":"organization","match":"x","window":"day","decision":"deny","limit_usd":1}]`, "/budgets/0/match"},
		{"the same name twice", `[{"name":"b","scope":"agent","window":"day","decision":"deny","limit_usd":1},{"name":"b","scope":"key","window":"day","decision":"deny","limit_usd":1}]`, "/budgets/1/name"},
	} {
		_, err := parsedBudgets(t, c.body)
		fault, ok := err.(*fault.Error)
		if !ok || len(fault.Fields) == 0 || fault.Fields[0].Pointer != c.pointer {
			t.Errorf("%s: %+v, want a fault at %s", c.name, err, c.pointer)
		}
	}
}

// TestBudgetsSurviveStorage: settings with budgets are stored unchanged, and settings without any
// have the same form as before budgets existed.
func TestBudgetsSurviveStorage(t *testing.T) {
	t.Parallel()
	settings := DefaultSettings()
	encoded := must(settings.Encode())
	if strings.Contains(string(encoded), "budgets") {
		t.Errorf("settings without budgets are stored as %s", encoded)
	}
	budgets, err := parsedBudgets(t, `[{"name":"b","scope":"agent","match":["x","Y"],"window":"month","decision":"require_approval","limit_tokens":5},
		{"name":"c","scope":"organization","window":"day","decision":"deny","limit_usd":0.07},{"name":"d","scope":"key","match":"x","window":"day","decision":"deny","limit_cost_usd":0}]`)
	if err != nil {
		t.Fatal(err)
	}
	settings.Budgets = budgets
	decoded := must(DecodeSettings(must(settings.Encode())))
	if diff := cmp.Diff(settings, decoded, cmp.Comparer(func(a, b Money) bool { return a.Cmp(b) == 0 })); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// TestWindowsAreUTC: windows start at midnight and on the first of the month.
func TestWindowsAreUTC(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		window         Window
		at, start, end string
	}{
		{WindowDay, "2026-02-28T23:59:59.999Z", "2026-02-28T00:00:00.000Z", "2026-03-01T00:00:00.000Z"},
		{WindowDay, "2026-03-01T00:00:00.000Z", "2026-03-01T00:00:00.000Z", "2026-03-02T00:00:00.000Z"},
		{WindowDay, "2026-10-25T00:30:00+02:00", "2026-10-24T00:00:00.000Z", "2026-10-25T00:00:00.000Z"},
		{WindowMonth, "2028-02-29T12:00:00.000Z", "2028-02-01T00:00:00.000Z", "2028-03-01T00:00:00.000Z"},
		{WindowMonth, "2026-12-31T23:59:59.999Z", "2026-12-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z"},
	} {
		start, end := c.window.Span(must(ParseTime(c.at)))
		if start.String() != c.start || end.String() != c.end {
			t.Errorf("%s at %s: %s to %s", c.window, c.at, start, end)
		}
	}
}

// standing returns a question about an action and one partly used budget.
func standing(t *testing.T, budget string, spent, waiting float64, action string) *Question {
	t.Helper()
	budgets, err := parsedBudgets(t, `[`+budget+`]`)
	if err != nil {
		t.Fatal(err)
	}
	q := question()
	q.Org.Settings.Budgets = budgets
	q.Org.Settings.FinancialThreshold, q.Org.Settings.CumulativeThreshold = MoneyOf(1e9), MoneyOf(1e9)
	q.Action = mustAction(t, action)
	subject := &Subject{Environment: "production", Agent: q.Action.AgentName, KeyName: "till"}
	for _, applied := range q.Org.Settings.Applying(q.Org.ID, subject, q.Action, q.Now, nil) {
		counter := NewBudgetCounter(applied.Key, applied.Label)
		counter.Spent, counter.Waiting = MoneyOf(spent), MoneyOf(waiting)
		q.Standings = append(q.Standings, applied.Standing(q.Action, counter))
	}
	return q
}

const (
	paying   = `{"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":{"amount_usd":%v}}`
	thinking = `{"agent_name":"a","action_type":"llm_call","action_name":"step","payload":{"model":"gpt-4o","input_tokens":%v}}`
)

// TestActionsAreHeldAgainstBudgets decides at the edges of a limit, for each measure.
func TestActionsAreHeldAgainstBudgets(t *testing.T) {
	t.Parallel()
	dollars := `{"name":"b","scope":"organization","window":"day","decision":"deny","limit_usd":100}`
	tokens := `{"name":"b","scope":"organization","window":"day","decision":"require_approval","limit_tokens":100}`
	cost := `{"name":"b","scope":"organization","window":"month","decision":"deny","limit_cost_usd":100}`
	agent := func(match string) string {
		return `{"name":"b","scope":"agent","match":` + match + `,"window":"day","decision":"deny","limit_usd":100}`
	}
	for _, c := range []struct {
		name, budget   string
		spent, waiting float64
		action         string
		cost           *Money
		want           Outcome
	}{
		{"up to the limit", dollars, 40, 10, fmt.Sprintf(paying, 50), nil, Allow},
		{"above the limit", dollars, 40, 10, fmt.Sprintf(paying, 50.01), nil, Deny},
		{"what waits counts", dollars, 0, 100, fmt.Sprintf(paying, 0.01), nil, Deny},
		{"nothing is left", dollars, 100, 0, fmt.Sprintf(paying, 0), nil, Deny},
		{"an amount that nobody knows", dollars, 99, 0, `{"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":{}}`, nil, RequireApproval},
		{"an amount that nobody knows, and nothing is left", dollars, 100, 0, `{"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":{}}`, nil, Deny},
		{"no money is moved", dollars, 100, 0, fmt.Sprintf(thinking, 5), money(1), Allow},
		{"tokens up to the limit", tokens, 90, 0, fmt.Sprintf(thinking, 10), nil, Allow},
		{"tokens above the limit", tokens, 90, 0, fmt.Sprintf(thinking, 11), nil, RequireApproval},
		{"a call before its tokens are known", tokens, 99, 0, `{"agent_name":"a","action_type":"llm_call","action_name":"step","payload":{"model":"gpt-4o"}}`, nil, Allow},
		{"the same with nothing left", tokens, 100, 0, `{"agent_name":"a","action_type":"llm_call","action_name":"step","payload":{"model":"gpt-4o"}}`, nil, RequireApproval},
		{"a call's cost overshoots once", cost, 99.99, 0, fmt.Sprintf(thinking, 5), money(1000), Allow},
		{"and not twice", cost, 100, 0, fmt.Sprintf(thinking, 5), money(0.01), Deny},
		{"a call that nobody can price", cost, 0, 0, fmt.Sprintf(thinking, 5), nil, RequireApproval},
		{"another agent", agent(`"b"`), 100, 0, fmt.Sprintf(paying, 1), nil, Allow},
		{"the agent, in another spelling", agent(`["b"," A\u200b"]`), 100, 0, fmt.Sprintf(paying, 1), nil, Deny},
		{"a key by its name", `{"name":"b","scope":"key","match":"TILL","window":"day","decision":"deny","limit_usd":1}`, 1, 0, fmt.Sprintf(paying, 1), nil, Deny},
		{"another environment", `{"name":"b","scope":"environment","match":"staging","window":"day","decision":"deny","limit_usd":1}`, 1, 0, fmt.Sprintf(paying, 1), nil, Allow},
	} {
		q := standing(t, c.budget, c.spent, c.waiting, c.action)
		q.Action.Cost = c.cost
		for i := range q.Standings {
			q.Standings[i] = q.Standings[i].Standing(q.Action, q.Standings[i].Counter)
		}
		d := Decide(BuiltinPolicy, q)
		if d.Outcome != c.want {
			t.Errorf("%s: %s by %q: %s", c.name, d.Outcome, d.PolicyName, d.Reason)
		}
		if byBudget := d.PolicyName == "budget:b"; byBudget != (len(d.Over) > 0) {
			t.Errorf("%s: decided by %q, over %d budgets", c.name, d.PolicyName, len(d.Over))
		}
	}
	d := Decide(BuiltinPolicy, standing(t, agent(`"a"`), 60, 15, fmt.Sprintf(paying, 30)))
	want := `the budget "b" of 100.00 USD a day for the agent "a" is used up to 75.00 USD, 15.00 USD of it waiting for approval, and the action takes 30.00 USD; the day ends at `
	if !strings.HasPrefix(d.Reason, want) || !strings.Contains(d.Remediation, "an admin") {
		t.Errorf("the reason is %q, the remedy %q", d.Reason, d.Remediation)
	}
}

// A budget for keys covers the keys that it names, by name or id and in any spelling, and counts
// each by its id.
func TestBudgetsForKeys(t *testing.T) {
	t.Parallel()
	subject := &Subject{Key: KeyID{must(ParseID(sampleID))}, KeyName: "Payments Bot"}
	for match, want := range map[string]bool{
		sampleID: true, strings.ToUpper(sampleID): true, " " + sampleID: true, "payments  bot": true, "PAYMENTS BOT": true,
		"payments": false, strings.Replace(sampleID, "a", "b", 1): false,
	} {
		b := Budget{Scope: ScopeKey, Match: []string{match}}
		if value, label, covered := b.value(subject); covered != want || value != sampleID || label != subject.KeyName {
			t.Errorf("a budget for %q: %s, %s, %v, want covered %v", match, value, label, covered, want)
		}
	}
}

// TestCountersCountWhatEventsSay records actions with each outcome and settles those that wait: the
// counter is the sum of what counts, and each event records what it used.
func TestCountersCountWhatEventsSay(t *testing.T) {
	t.Parallel()
	budget := `{"name":"b","scope":"agent","window":"day","decision":"require_approval","limit_usd":100}`
	for _, c := range []struct {
		amount         float64
		status         EventStatus
		spent, waiting float64
	}{
		{60, EventAllowed, 60, 0},
		{100.01, EventAwaiting, 0, 100.01},
	} {
		q := standing(t, budget, 0, 0, fmt.Sprintf(paying, c.amount))
		recorded := q.State.Record(&Recording{
			Keys: keyRing, Policy: BuiltinPolicy, Org: q.Org, Chain: q.Chain, Action: q.Action, Now: q.Now, Standings: q.Standings,
			NewApproval: func() ApprovalID { return ApprovalID{NewRandomID([16]byte{1})} },
		})
		counter := q.Standings[0].Counter
		if recorded.Event.Status != c.status || counter.Spent.Cmp(MoneyOf(c.spent)) != 0 || counter.Waiting.Cmp(MoneyOf(c.waiting)) != 0 {
			t.Errorf("%v: %s, %s spent and %s waiting", c.amount, recorded.Event.Status, counter.Spent, counter.Waiting)
		}
		read := must(DecodeEvent(recorded.Stored.Body))
		if len(read.Uses) != 1 || read.Uses[0].Counter != counter.ID() || read.Uses[0].Amount.Cmp(MoneyOf(c.amount)) != 0 {
			t.Errorf("%v: the event says %+v", c.amount, read.Uses)
		}
		if recorded.Approval == nil {
			continue
		}
		body, mac := recorded.Approval.Encode(keyRing)
		approval := must(DecodeApproval(body, mac, keyRing, recorded.Approval.Org))
		if diff := cmp.Diff(read.Uses, approval.Reserved.Uses, cmp.Comparer(func(a, b Money) bool { return a.Cmp(b) == 0 })); diff != "" {
			t.Errorf("the approval holds another use (-event +approval):\n%s", diff)
		}
		for _, approved := range []bool{true, false} {
			settled := *counter
			settled.Settle(approval.Reserved.Uses[0].Amount, approved)
			if spent := settled.Spent.Cmp(Money{}) > 0; settled.Waiting.Cmp(Money{}) != 0 || spent != approved {
				t.Errorf("approved %t: %s spent, %s waiting", approved, settled.Spent, settled.Waiting)
			}
		}
	}
}

// TestCountersAreEvidence: a counter is stored unchanged, and no other is accepted in its place.
func TestCountersAreEvidence(t *testing.T) {
	t.Parallel()
	org := OrgID{must(ParseID(sampleID))}
	key := CounterKey{Org: org, Budget: "b", Scope: ScopeAgent, Measure: MeasureUSD, Window: WindowDay, Start: TimeOf(time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)), Value: "a"}
	counter := &BudgetCounter{CounterKey: key, Label: "A", Revision: 3, Moves: 5, Uses: 4, Spent: MoneyOf(0.1), Waiting: MoneyOf(7)}
	body, mac := counter.Encode(keyRing)
	got := must(DecodeBudgetCounter(body, mac, keyRing, org))
	if diff := cmp.Diff(counter, got, cmp.Comparer(func(a, b Money) bool { return a.Cmp(b) == 0 })); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
	if _, err := DecodeBudgetCounter([]byte(strings.Replace(string(body), `"0.1"`, `"0.0"`, 1)), mac, keyRing, org); err == nil {
		t.Error("another amount is believed")
	}
	if _, err := DecodeBudgetCounter(body, mac, keyRing, OrgID{NewRandomID([16]byte{9})}); err == nil {
		t.Error("another organization's counter is believed")
	}
	seen := map[CounterID]bool{key.ID(): true}
	for i, change := range []func(*CounterKey){
		func(k *CounterKey) { k.Org = OrgID{NewRandomID([16]byte{9})} },
		func(k *CounterKey) { k.Budget, k.Value = "ba", "" },
		func(k *CounterKey) { k.Scope = ScopeKey },
		func(k *CounterKey) { k.Measure = MeasureCost },
		func(k *CounterKey) { k.Window = WindowMonth },
		func(k *CounterKey) { k.Start++ },
		func(k *CounterKey) { k.Value = "b" },
	} {
		other := key
		change(&other)
		if seen[other.ID()] || !IsCounterID(other.ID().UUID) {
			t.Errorf("change %d leaves the id", i)
		}
		seen[other.ID()] = true
	}
	if IsCounterID(NewTimedID(1, [10]byte{0xff})) {
		t.Error("a chain's id is taken for a counter's")
	}
}

// TestBudgetsChangeThePolicyVersion: other budgets give another version, and no budgets give the
// old one.
func TestBudgetsChangeThePolicyVersion(t *testing.T) {
	t.Parallel()
	settings := DefaultSettings()
	if got := BuiltinPolicy.Under(&settings).Version; got != BuiltinPolicy.Version {
		t.Errorf("without budgets the version is %s", got)
	}
	seen := map[string]bool{BuiltinPolicy.Version: true}
	for _, limit := range []string{`"limit_usd":1`, `"limit_usd":2`, `"limit_tokens":1`} {
		settings.Budgets, _ = parsedBudgets(t, `[{"name":"b","scope":"agent","window":"day","decision":"deny",`+limit+`}]`)
		version := BuiltinPolicy.Under(&settings).Version
		if seen[version] || !strings.HasPrefix(version, "v0+") || len(version) != len(BuiltinPolicy.Version) {
			t.Errorf("%s: version %s", limit, version)
		}
		seen[version] = true
	}
}

// TestOrderOfMatchIsNoOtherVersion: a budget that names the same subjects in another order decides the
// same, and has the same version.
func TestOrderOfMatchIsNoOtherVersion(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, match := range []string{`["a","b","c"]`, `["c","a","b"]`, `["b","c","b","a"]`} {
		settings := DefaultSettings()
		var err error
		settings.Budgets, err = parsedBudgets(t, `[{"name":"b","scope":"agent","match":`+match+`,"window":"day","decision":"deny","limit_usd":1}]`)
		if err != nil {
			t.Fatal(err)
		}
		seen[BuiltinPolicy.Under(&settings).Version] = true
	}
	if len(seen) != 1 {
		t.Errorf("%d versions: %v", len(seen), seen)
	}
}

// TestLeasesCoverNothingThatBudgetsCount reports actions with tokens, a model or an amount under a
// lease: none is covered, so each counts against the budgets.
func TestLeasesCoverNothingThatBudgetsCount(t *testing.T) {
	t.Parallel()
	for _, members := range []string{
		`"payload":{"input_tokens":1}`, `"payload":{"model":"gpt-4o"}`, `"payload":{},"metadata":{"output_tokens":5}`, `"payload":{"amount_usd":1}`,
		`"payload":{},"metadata":{"category":"financial"}`, `"payload":{},"metadata":{"category":"llm"}`, `"payload":{"usage":{"total_tokens":9}}`,
	} {
		action := mustAction(t, `{"agent_name":"a","action_type":"tool_call","action_name":"read_ledger",`+members+`}`)
		settings := DefaultSettings()
		counted := false
		for _, limit := range []string{`"limit_usd":1`, `"limit_cost_usd":1`, `"limit_tokens":1`} {
			budgets, err := parsedBudgets(t, `[{"name":"b","scope":"organization","window":"day","decision":"deny",`+limit+`}]`)
			if err != nil {
				t.Fatal(err)
			}
			counted = counted || budgets[0].concerns(action)
		}
		if safe := action.obviouslySafe(settings.SafeActions()); safe && counted {
			t.Errorf("%s is obviously safe, and counts", members)
		}
	}
}
