package policy

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/classify"
	"countersign/internal/ledger"
)

// The cases of a policy set are read with their actions and expectations.
func TestParseCases(t *testing.T) {
	t.Parallel()
	cases, err := ParseCases([]byte(`
cases:
  - name: a large payment
    action:
      agent_name: billing
      payload: {amount: 1200.50, due: 2026-12-01, paid: false, note: ~, lines: [1, "2"]}
    chain: {environment: production}
    organization: {high_risk_agents: [billing]}
    expect: {policy_decision: require_approval, policy_name: large payments, status: awaiting_approval}
  - name: anything else
    action: {}
    expect: {policy_decision: allow, policy_name: null}
  - {name: any rule, action: {}, expect: {policy_decision: allow}}
`))
	if err != nil {
		t.Fatal(err)
	}
	large, none := "large payments", ""
	want := []Expect{{"require_approval", &large, "awaiting_approval"}, {"allow", &none, ""}, {"allow", nil, ""}}
	var got []Expect
	for _, c := range cases {
		got = append(got, c.Expect)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("expectations (-want +got):\n%s", diff)
	}
	const action = `{"agent_name":"billing","payload":{"amount":1200.5,"due":"2026-12-01","lines":[1,"2"],"note":null,"paid":false}}`
	if got := string(cases[0].Action.Append(nil)); got != action {
		t.Errorf("action %s, want %s", got, action)
	}
	if got := string(cases[0].Chain.Append(nil)) + string(cases[0].Organization.Append(nil)); got != `{"environment":"production"}{"high_risk_agents":["billing"]}` {
		t.Errorf("chain and organization %s", got)
	}
	if !cases[1].Chain.IsNull() || !cases[1].Organization.IsNull() {
		t.Error("a case without chain and organization has them")
	}
}

// A bad case is refused with its line and column.
func TestParseCasesRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, document, want string }{
		{"nothing", "", "1:1 the document is empty"},
		{"a list", "- {}", "1:1 the document must be an object"},
		{"no cases", "{}", "1:1 cases is missing"},
		{"empty", "cases: []", "1:8 cases must have 1 to 1000 entries"},
		{"unknown field", "cases: [{name: a, action: {}, expect: {policy_decision: deny}}]\nmore: 1", `2:1 unknown field "more"`},
		{"unknown field of a case", "cases: [{name: a, action: {}, expects: 1, expect: {policy_decision: deny}}]", `1:31 unknown field "expects"`},
		{"unknown field of expect", "cases: [{name: a, action: {}, expect: {policy_decision: deny, rule: a}}]", `1:63 unknown field "rule"`},
		{"no action", "cases: [{name: a, expect: {policy_decision: deny}}]", "1:9 action is missing"},
		{"no decision", "cases: [{name: a, action: {}, expect: {}}]", "1:39 policy_decision is missing"},
		{"decision", "cases: [{name: a, action: {}, expect: {policy_decision: maybe}}]", "1:57 policy_decision must be one of"},
		{"status", "cases: [{name: a, action: {}, expect: {policy_decision: deny, status: pending}}]", "1:71 status must be one of"},
		{"action as a string", "cases: [{name: a, action: pay, expect: {policy_decision: deny}}]", "1:27 action must be an object"},
		{"hexadecimal", "cases: [{name: a, action: {n: 0x1F}, expect: {policy_decision: deny}}]", "1:31 this number is not one of JSON"},
		{"infinity", "cases: [{name: a, action: {n: .inf}, expect: {policy_decision: deny}}]", "1:31 this number is not one of JSON"},
		{"too precise", "cases: [{name: a, action: {n: 9007199254740993}, expect: {policy_decision: deny}}]", "1:31 this number is not one of JSON"},
		{"name twice", "cases:\n- {name: a, action: {}, expect: {policy_decision: deny}}\n- {name: a, action: {}, expect: {policy_decision: deny}}", "3:10 another case has this name"},
		{"duplicate key", "cases: [{name: a, action: {n: 1, n: 2}, expect: {policy_decision: deny}}]", `1:34 "n" is given twice`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseCases([]byte(c.document))
			wantProblem(t, err, c.want)
		})
	}
}

// Every example and every pack is valid and has cases next to it that name existing rules. The
// policy command tests what they decide.
func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	var files []string
	for _, folder := range []string{"../../examples/policies", "packs"} {
		found, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s holds %d sets: %v", folder, len(found), err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".cases.yaml") {
			continue
		}
		set, err := Parse(readFile(t, file), YAML)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		names := map[string]bool{ledger.RuleMail: true} // a built-in rule that cases may also name
		for _, r := range set.Rules() {
			names[r.Name] = true
		}
		cases, err := ParseCases(readFile(t, strings.TrimSuffix(file, ".yaml")+".cases.yaml"))
		if err != nil {
			t.Fatalf("cases of %s: %v", file, err)
		}
		for _, c := range cases {
			if name := c.Expect.PolicyName; name != nil && *name != "" && !names[*name] {
				t.Errorf("%s: %q expects the unknown rule %q", file, c.Name, *name)
			}
		}
	}
}

// A pack is found only by its exact name.
func TestPacks(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]string{"starter"}, Packs()); diff != "" {
		t.Errorf("the packs (-want +got):\n%s", diff)
	}
	if text, ok := Pack("starter"); !ok || !bytes.Contains(text, []byte("rules:")) {
		t.Errorf("the pack is %q", text)
	}
	for _, name := range []string{"", "Starter", "starter.cases", "../packs/starter"} {
		if _, ok := Pack(name); ok {
			t.Errorf("%q is taken for a pack", name)
		}
	}
}

// The starter pack asks a person for every name that the built-in rules shell_command and deletion
// flag, however it is written.
func TestStarterAsksForWhatIsFlagged(t *testing.T) {
	t.Parallel()
	text, _ := Pack("starter")
	set, err := Parse(text, YAML)
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile(`(?s)## (shell_command|deletion)\n\nThe action's name has one of these words: (.*?)\.`)
	lists := documented.FindAllStringSubmatch(string(readFile(t, "../../docs/rules.md")), -1)
	if len(lists) != 2 {
		t.Fatalf("docs/rules.md has %d lists of words", len(lists))
	}
	for _, list := range lists {
		rule := map[string]string{"shell_command": "shells", "deletion": "deletes"}[list[1]]
		for _, word := range strings.Split(strings.Join(strings.Fields(list[2]), " "), ", ") {
			title, upper := strings.ToUpper(word[:1])+word[1:], strings.ToUpper(word)
			for _, name := range []string{
				word, "do_" + word, word + "_it", "do-" + word + "-it", word + "2", "7" + word, word + "It", title, "do" + title, title + "It",
				"do" + title + "It", "HTTP" + title, upper, "DO_" + upper, upper + "_IT", "do" + upper, upper + "It", "do" + upper + "It",
			} {
				if found := classify.NameRisks(name); !found.Shell && !found.Deletion {
					t.Errorf("%s is not flagged", name)
				}
				hits := matchAll(set, &Input{ActionType: "tool_call", ActionName: name})
				if !slices.ContainsFunc(hits, func(h Hit) bool { return h.Rule.Name == rule && h.Failed == nil }) {
					t.Errorf("%s passes", name)
				}
			}
		}
	}
}

// A pack that lets clients decide obviously safe actions has no rule that matches one: the client would
// allow what the pack asks a person about.
func TestPacksLeaveNothingTheyStopToClients(t *testing.T) {
	t.Parallel()
	nouns := []string{
		"command", "sh", "subprocess", "terminal", "zsh", "deleted_items", "removedUsers", "erased", "purged", "wiped", "truncated", "destroyed",
		"order", "dashboard", "email", "message", "replies", "host",
	}
	for _, pack := range Packs() {
		text, _ := Pack(pack)
		set, err := Parse(text, YAML)
		if err != nil {
			t.Fatal(err)
		}
		if allowed, _ := set.FastPath(); !allowed {
			continue
		}
		for _, verb := range classify.SafeVerbs {
			for _, noun := range nouns {
				name := verb + "_" + noun
				facts := classify.Classify(classify.Input{ActionType: "tool_call", ActionName: name})
				if !classify.ObviouslySafe(name, classify.SafeVerbs, facts, false) {
					continue
				}
				for _, hit := range matchAll(set, &Input{ActionType: "tool_call", ActionName: name}) {
					t.Errorf("%s: a client may allow %s, which the rule %q decides", pack, name, hit.Rule.Name)
				}
			}
		}
	}
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
