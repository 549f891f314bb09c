package policy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Every declared variable of a condition has the value of the action, the chain or
// the organization.
func TestMatchKnowsEveryVariable(t *testing.T) {
	t.Parallel()
	in := &Input{
		AgentName: "a", ParentAgentName: "b", ActionType: "c", ActionName: "d",
		Payload:    parseJSON(t, `{"x": 1, "deep": {"y": [true, null, "z"]}}`),
		Metadata:   parseJSON(t, `{"model": "m"}`),
		Categories: []string{"financial"}, AmountUSD: 2.5, HasAmount: true,
		ExternalDomains: []string{"e.example"}, RecordsModified: 3,
		ChainName: "f", Environment: "g", ChainMetadata: parseJSON(t, `{"ticket": "h"}`),
		TotalActions: 4, FinancialExposureUSD: 5.5, Tokens: 6, AgeSeconds: 7.5, OrgSlug: "i",
	}
	conditions := map[string]string{
		"action.agent_name": `== "a"`, "action.parent_agent_name": `== "b"`, "action.action_type": `== "c"`, "action.action_name": `== "d"`,
		"action.payload": `== {"x": 1, "deep": {"y": [true, null, "z"]}}`, "action.metadata": `== {"model": "m"}`,
		"action.categories": `== ["financial"]`, "action.amount_usd": `== 2.5`, "action.has_amount": `== true`,
		"action.external_domains": `== ["e.example"]`, "action.records_modified": `== 3`,
		"chain.name": `== "f"`, "chain.environment": `== "g"`, "chain.metadata": `== {"ticket": "h"}`, "chain.total_actions": `== 4`,
		"chain.financial_exposure_usd": `== 5.5`, "chain.tokens": `== 6`, "chain.age_seconds": `== 7.5`, "org.slug": `== "i"`,
	}
	declared := 0
	for _, v := range variables {
		if len(v.fields) > maxFields {
			t.Errorf("%s has %d fields, and a record room for %d", v.name, len(v.fields), maxFields)
		}
		for _, f := range v.fields {
			name := v.name + "." + f.name
			test, known := conditions[name]
			if !known {
				t.Errorf("%s has no case", name)
				continue
			}
			declared++
			wantHits(t, parse(t, name+" "+test, "has("+name+")", "dyn("+v.name+")."+f.name+" "+test), in, true)
			wantHits(t, parse(t, "has("+name+")"), &Input{}, false)
			wantHits(t, parse(t, name+" "+test), &Input{}, false)
		}
	}
	if declared != len(conditions) {
		t.Errorf("%d of %d fields are declared", declared, len(conditions))
	}
}

// Conditions read payloads with numbers, texts, lists and objects as in JSON.
func TestMatchReadsPayloads(t *testing.T) {
	t.Parallel()
	in := &Input{Payload: parseJSON(t, `{"n": 3, "big": 2500.75, "s": "Hello, World", "flag": true, "none": null,
		"list": [1, 2, 3], "names": ["x", "y"], "rows": [{"id": 1, "price": 9.5}, {"id": 2}], "empty": {}, "a b": 1}`)}
	holds := []string{
		"action.payload.n == 3", "action.payload.n > 2", "action.payload.n >= 3.0", "action.payload.n in [1, 2, 3]", "int(action.payload.n) + 1 == 4",
		"action.payload.big > 2500", "2501 > action.payload.big", "action.payload.flag == true", "action.payload.none == null",
		"action.payload.s.startsWith('Hello')", "action.payload.s.lowerAscii().contains('world')", "action.payload.s.matches('^Hel+o')",
		"action.payload.s.split(', ').size() == 2", "action.categories.join('-') == ''", "[action.payload.names[0], 'y'].join('-') == 'x-y'", "size(action.payload.s) == 12",
		"action.payload.list[1] == 2", "2 in action.payload.list", "!(4 in action.payload.list)", "action.payload.list.size() == 3",
		"action.payload.list + [4] == [1, 2, 3, 4]", "action.payload.list == [1.0, 2.0, 3.0]", "action.payload.list.map(i, i * 2.0) == [2.0, 4.0, 6.0]",
		"action.payload.names.exists(n, n == 'y')", "action.payload.rows.exists(r, has(r.price) && r.price > 9)", "action.payload.rows[0].price == 9.5",
		"action.payload.rows.filter(r, r.id > 1).size() == 1", "action.payload.rows.all(r, r.id > 0)", "action.payload['a b'] == 1",
		"'n' in action.payload", "!('m' in action.payload)", "!has(action.payload.m)", "action.payload.exists(k, k == 'flag')",
		"size(action.payload) == 10", "action.payload.empty == {}", "!has(action.payload.empty.x)", "type(action.payload.n) == double",
		"!has(action.metadata.model)", "!has(chain.metadata.x)", "size(action.metadata) == 0", "sets.intersects(action.payload.names, ['y'])",
		"action.payload.rows[0] == action.payload.rows[0]", "action.payload.rows[0] != action.payload.rows[1]", "1 in [dyn('x'), action.payload.list[0]]",
		"action == action", "type(action) == type(action)", "type(action.payload) == map", "type(action.payload.list) == list",
		"has(action.payload.m) && action.payload.m > 1 || action.payload.n == 3", "action.payload.m == 1 || true", "!(action.payload.m == 1 && false)",
	}
	wantHits(t, parse(t, holds...), in, true)
}

// A rule whose condition fails on an action counts as failed, not as passed, and the
// error repeats no payload.
func TestMatchFailsClosed(t *testing.T) {
	t.Parallel()
	const secret = "<SECRET OF THE PAYLOAD>"
	in := &Input{Payload: parseJSON(t, `{"n": 3, "s": "`+secret+`", "list": [1], "rows": [{"id": 1}, {}]}`)}
	const (
		missing = "its condition reads a key that is missing: ask for it with has() first (line 1, column %d of the condition)"
		types   = "its condition does not fit the types of what it reads"
	)
	cases := []struct{ when, want string }{
		{"action.payload.m == 1", fmt.Sprintf(missing, 15)},
		{"action.payload.m.deeper == 1", fmt.Sprintf(missing, 17)},
		{"has(action.payload.m.deeper)", fmt.Sprintf(missing, 4)},
		{"action.payload.rows.all(r, r.id == 1)", fmt.Sprintf(missing, 29)},
		{"action.payload[action.payload.s] == 1", fmt.Sprintf(missing, 15)},
		{"action.payload.list[7] == 1", types},
		{"action.payload.s > 3", types},
		{"action.payload.n + 1 > 3", types},
		{"action.payload.n.startsWith('3')", types},
		{"action.payload.n.matches('3')", types},
		{"int(action.payload.s) > 3", types},
		{"timestamp(action.payload.s) > timestamp('2020-01-01T00:00:00Z')", types},
		{"1 / int(action.payload.n - 3.0) > 1", types},
		{"dyn(action).amout_usd > 1", types},
		{"has(dyn(action).amout_usd)", types},
		{"bytes(action.payload.s) in [dyn(1), dyn(2)]", types},
	}
	for _, c := range cases {
		t.Run(c.when, func(t *testing.T) {
			t.Parallel()
			hits := matchAll(parse(t, "false", c.when, "true"), in)
			if len(hits) != 2 || hits[0].Failed == nil || hits[1].Failed != nil {
				t.Fatalf("got %v, want the second rule failed and the third to apply", hits)
			}
			text := hits[0].Failed.Error()
			if !strings.HasPrefix(text, c.want) || strings.Contains(text, secret) {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
}

// A condition that costs too much for an action is stopped and counts as failed, and other rules
// are not affected.
func TestMatchStopsRulesThatCostTooMuch(t *testing.T) {
	t.Parallel()
	// With the sizes that estimates assume, each of these is cheap.
	dear := []string{
		"action.payload.a.all(i, i == 1)", "action.payload.a.map(i, i).size() == 0", "action.payload.a.exists(i, i == 2)",
		"action.payload.s.matches('(a|b|c)+c$')", "matches(action.payload.s, 'c$')", "!action.payload.s.matches('a{2}')",
		"action.payload.s.lowerAscii().size() > 0", "action.payload.s.replace('a', 'bb') == ''",
		"2 in action.payload.a", "!(2 in action.payload.a)", "action.payload == action.payload", "action.payload.a != action.payload.a",
		"[action.payload.a] == [action.payload.a]", "action.payload.a + [1] == []", "sets.contains(action.payload.a, [2])",
		"action.payload.o.exists(k, k == 'x')", "action.payload.o == action.metadata",
	}
	var members []string
	for i := range 11_000 {
		members = append(members, fmt.Sprintf("\"k%d\": 1", i))
	}
	object := "{" + strings.Join(members, ",") + "}"
	large := &Input{
		Payload:  parseJSON(t, `{"a": [`+strings.Repeat("1,", 200_000)+`1], "s": "`+strings.Repeat("ab", 300_000)+`", "o": `+object+`}`),
		Metadata: parseJSON(t, object),
	}
	hits := matchAll(parse(t, append(dear, "size(action.payload.a) + size(action.payload.s) > 5")...), large)
	if len(hits) != len(dear)+1 || hits[len(dear)].Failed != nil {
		t.Fatalf("got %d hits, want %d, of which the last holds", len(hits), len(dear)+1)
	}
	for _, hit := range hits[:len(dear)] {
		if hit.Failed == nil || hit.Failed.Error() != "its condition costs more than 100000 units on this action" {
			t.Errorf("%s: got %v", hit.Rule.When, hit.Failed)
		}
	}
	for _, hit := range matchAll(parse(t, dear...), &Input{Payload: parseJSON(t, `{"a": [1], "s": "x", "o": {}}`)}) {
		if hit.Failed != nil {
			t.Errorf("%s on a small payload: %v", hit.Rule.When, hit.Failed)
		}
	}
}

// A rule costs at most its limit for the longest lists that an action can have. A hundred domains
// are usual, and with what the client found and their other forms there may be eight times as many.
func TestLoopsOverTheLongestLists(t *testing.T) {
	t.Parallel()
	in := &Input{}
	for i := range 1004 {
		in.Categories = append(in.Categories, fmt.Sprint("category_", i))
	}
	for i := range 800 {
		in.ExternalDomains = append(in.ExternalDomains, fmt.Sprint("domain", i, ".example"))
	}
	for _, when := range []string{
		"action.external_domains.all(d, size(d) > chain.total_actions)",
		"action.categories.all(c, size(c) > chain.total_actions)",
	} {
		hits := matchAll(parse(t, when), in)
		if len(hits) != 1 || hits[0].Failed == nil || hits[0].Failed.Error() != "its condition costs more than 1000 units on this action" {
			t.Errorf("%s: got %+v", when, hits)
		}
	}
}

// A policy set can be matched from many goroutines at once.
//
//countersign:race
func TestMatchIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	set := parse(t, `action.agent_name == "a"`, `action.payload.x == 1`, `action.payload.s.matches("b")`, `action.categories.exists(c, c == "financial")`)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 200 {
				in := &Input{AgentName: "a", Payload: parseJSON(t, `{"x": 1, "s": "b"}`), Categories: []string{"financial"}}
				want := 4
				if (i+worker)%2 == 0 { // one rule fewer applies, and two fail
					in.AgentName, in.Payload = "b", parseJSON(t, `{"s": 5}`)
					want = 3
				}
				if hits := matchAll(set, in); len(hits) != want {
					t.Errorf("got %d hits, want %d", len(hits), want)
				}
			}
		})
	}
	group.Wait()
}

// Whether a rule matches does not depend on the order of the rules.
func TestMatchDoesNotDependOnTheOrderOfRules(t *testing.T) {
	t.Parallel()
	pool := []string{
		"action.amount_usd > 100", "action.amount_usd <= 100", "action.payload.x == 1", "has(action.payload.x)", "action.payload.x + 1 == 2",
		"action.agent_name.startsWith('a')", "'financial' in action.categories", "action.categories.exists(c, c == action.payload.x)", "true", "false",
		"chain.tokens > 5 || action.payload.y > 3",
	}
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation(pool).Draw(t, "order")
		in := &Input{
			AgentName:  rapid.SampledFrom([]string{"a", "b"}).Draw(t, "agent"),
			AmountUSD:  rapid.Float64Range(0, 200).Draw(t, "amount"),
			Tokens:     rapid.Int64Range(0, 10).Draw(t, "tokens"),
			Categories: rapid.SampledFrom([][]string{nil, {"financial"}, {"llm", "financial"}}).Draw(t, "categories"),
			Payload:    parseJSON(t, rapid.SampledFrom([]string{`{}`, `{"x": 1}`, `{"x": "s", "y": 4}`, `null`}).Draw(t, "payload")),
		}
		reference, shuffled := outcomes(parse(t, pool...), in), outcomes(parse(t, order...), in)
		if diff := cmp.Diff(reference, shuffled); diff != "" {
			t.Fatalf("in another order (-first +second):\n%s", diff)
		}
	})
}

// outcomes lists what applies and what failed, sorted.
func outcomes(set *Set, in *Input) []string {
	var list []string
	last := -1
	for _, hit := range matchAll(set, in) {
		at := slices.IndexFunc(set.rules, func(r Rule) bool { return r.Name == hit.Rule.Name })
		if at <= last {
			list = append(list, "out of order: "+hit.Rule.Name)
		}
		last = at
		list = append(list, fmt.Sprintf("%s: %v", hit.Rule.When, hit.Failed))
	}
	slices.Sort(list)
	return list
}

// matchAll examines an action and then matches it, like the service.
func matchAll(set *Set, in *Input) []Hit { return set.Match(in, set.Examine(in)) }
