package policy

import (
	"strings"
	"testing"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
	"pgregory.net/rapid"

	"countersign/internal/canon"
)

// A condition that was split gives the same verdict as the whole: true, false or failed, whatever
// the order of its operands and whichever of them fails.
func TestSplitChangesNoVerdict(t *testing.T) {
	t.Parallel()
	operands := []string{
		"true", "false", "action.amount_usd > 10.0", "action.payload.x == 1", "has(action.payload.x)", "action.payload.s > 3",
		"chain.tokens > 5", "chain.environment == 'production'", "org.slug == 'acme'", "chain.metadata.owner == 'kim'",
		"(chain.tokens > 5 || action.payload.x == 1)", "!(chain.tokens > 5 && action.amount_usd > 10.0)",
		"action.categories.exists(c, c == chain.environment)", "action.categories.exists(chain, chain == 'llm')",
		"(action.amount_usd > 10.0 && (chain.tokens > 5 && action.payload.x == 1))",
		"(chain.tokens > 5 ? action.payload.x == 1 : true)", "dyn(chain).tokens > 5", "action.payload.x == chain.tokens",
		"[1].exists(chain, .chain.tokens > 5)", "[1].exists(org, .org.slug == 'acme')", "[1].exists(action, .action.payload.x == chain.tokens)",
	}
	rapid.Check(t, func(t *rapid.T) {
		when := strings.Join(rapid.SliceOfN(rapid.SampledFrom(operands), 1, 5).Draw(t, "operands"), " && ")
		in := &Input{
			AmountUSD:   rapid.SampledFrom([]float64{0, 50}).Draw(t, "amount"),
			Tokens:      rapid.Int64Range(0, 10).Draw(t, "tokens"),
			Environment: rapid.SampledFrom([]string{"production", "llm"}).Draw(t, "environment"),
			OrgSlug:     rapid.SampledFrom([]string{"acme", "other"}).Draw(t, "slug"),
			Categories:  rapid.SampledFrom([][]string{nil, {"llm"}}).Draw(t, "categories"),
			Payload:     parseJSON(t, rapid.SampledFrom([]string{`{}`, `{"x": 1}`, `{"x": 2, "s": "y"}`, `{"s": 4}`}).Draw(t, "payload")),
		}
		// As in the service: the chain is not available when the action is examined, and the
		// action's content is dropped when nothing reads it any more.
		set, alone, rest := parseStored(t, when), *in, *in
		alone.Tokens, alone.Environment, alone.OrgSlug = 0, "", ""
		if !set.StateReadsAction() {
			rest.Payload = canon.Value{}
		}
		var got verdict
		for _, hit := range set.Match(&rest, set.Examine(&alone)) {
			got = verdict{hit.Failed == nil, hit.Failed}
		}
		want := evaluateWhole(t, when, in)
		if got.holds != want.holds || (got.failed == nil) != (want.failed == nil) {
			t.Fatalf("%s: got %+v, want %+v", when, got, want)
		}
	})
}

// evaluateWhole evaluates a condition without splitting it.
func evaluateWhole(tb tester, when string, in *Input) (found verdict) {
	checked, issues := environment().Compile(when)
	if issues.Err() != nil {
		tb.Fatal(issues.Err())
	}
	whole, err := program(checked, maxRuleCost)
	if err != nil {
		tb.Fatal(err)
	}
	evaluate(in, func(frame *interpreter.ExecutionFrame) {
		result, _, err := whole.Eval(frame)
		found = verdict{result == types.True && err == nil, err}
	})
	return found
}

// The parts that read only the action are evaluated before the transaction. Only those that read
// the chain or the organization are left for it.
func TestSplitLeavesTheChainAlone(t *testing.T) {
	t.Parallel()
	cases := []struct {
		when          string
		action, state bool
	}{
		{"action.amount_usd > 1.0", true, false},
		{"true", true, false},
		{"chain.tokens > 1", false, true},
		{"org.slug == 'acme'", false, true},
		{"chain.tokens > 1 && action.payload.list.exists(i, i == 1)", true, true},
		{"chain.tokens > 1 || action.amount_usd > 1.0", false, true},
		{"action.payload.list.exists(i, i == chain.name)", false, true},
		{"dyn(chain).tokens > 1", false, true},
		{"[chain].size() == 1", false, true},
		{".chain.tokens > 1", false, true},
		{"[1].exists(chain, .chain.tokens > 1)", false, true},
		{"[1].exists(org, .org.slug == 'acme')", false, true},
		{"[1].exists(action, .action.amount_usd > 1.0)", true, false},
	}
	for _, c := range cases {
		set := parseStored(t, c.when)
		if got := set.conditions[0]; (got.action != nil) != c.action || (got.state != nil) != c.state || set.stateful != c.state {
			t.Errorf("%s: action %v, state %v, want %v, %v", c.when, got.action != nil, got.state != nil, c.action, c.state)
		}
	}
}

// The cost limit inside the transaction is a hundred times lower, for each rule and for all
// together, both when a set is put and for each action.
func TestStateCostsAHundredthPart(t *testing.T) {
	t.Parallel()
	const (
		loop    = "action.payload.list.exists(i, i == chain.tokens)"
		pattern = "(chain.name + action.action_name).matches('^(a|b)*[0-9]{2,40}$')"
	)
	var searches []string
	for range 190 {
		searches = append(searches, "action.payload.s.contains('long') || action.payload.s.contains('longer') || action.payload.s.contains('longest') || chain.tokens > 1")
	}
	cases := []struct {
		name  string
		rules []string
		want  string
	}{
		{"one rule", []string{loop}, "more than the 1000 a rule may where it reads the chain or the organization"},
		{"together", searches, "more than the 10000 all of it may where it reads the chain or the organization"},
		{"patterns", []string{pattern, pattern + " && chain.tokens > 1"}, "more than the 20000 steps all of them may where they read the chain or the organization"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			document := documentOf(t, c.rules)
			if _, err := Parse(document, JSON); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse: %v, want %q", err, c.want)
			}
			stored, err := ParseStored(document, JSON)
			if err != nil {
				t.Fatalf("a set that was put before is not read any more: %v", err)
			}
			slow := stored.Slow()
			if len(slow) == 0 {
				t.Error("no rule is named as slow")
			}
			if kept := stored.conditions[len(c.rules)-1].stateLimit; kept != maxRuleCost {
				t.Errorf("the rule may cost %d on an action, want %d as before", kept, maxRuleCost)
			}
		})
	}
	if set := parse(t, "chain.tokens > 1 && "+strings.ReplaceAll(loop, "chain.tokens", "1")); len(set.Slow()) != 0 {
		t.Error("a loop that is joined with && counts against the chain")
	}
	large := &Input{Payload: parseJSON(t, `{"s": "`+strings.Repeat("a", 500_000)+`"}`)}
	hits := matchAll(parse(t, "action.payload.s.contains('b') || chain.tokens > 1"), large)
	if len(hits) != 1 || hits[0].Failed == nil || hits[0].Failed.Error() != "its condition costs more than 1000 units on this action" {
		t.Errorf("got %+v, want the rule stopped", hits)
	}
}

// parseStored parses a set that was put under the limits of an earlier version.
func parseStored(tb tester, conditions ...string) *Set {
	tb.Helper()
	set, err := ParseStored(documentOf(tb, conditions), JSON)
	if err != nil {
		tb.Fatal(err)
	}
	return set
}
