package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rule is a document with one rule whose condition starts in line 5, column 9.
const rule = "rules:\n- name: a\n  decision: deny\n  reason: r\n  when: "

// The same rules in YAML and JSON are the same set with the same hash.
func TestParseReadsBothFormats(t *testing.T) {
	t.Parallel()
	yes := true
	want := []Rule{
		{
			Name: "large payments", When: "action.amount_usd > 1000", Decision: "require_approval", Reason: "A person looks at large payments.",
			Remediation: "Split nothing: ask.", DocsURL: "https://wiki.example/payments", Mode: "enforce",
			Approvers: []string{"treasury", "cfo@acme.example"},
		},
		{Name: "no shell", When: "action.action_name == 'bash'", Decision: "deny", Reason: "No shell.", Mode: "shadow"},
	}
	documents := []struct {
		name     string
		format   Format
		document string
	}{
		{"YAML", YAML, `
fast_path: true
rules:
  - name: large payments
    when: action.amount_usd > 1000
    decision: require_approval
    reason: A person looks at large payments.
    remediation: "Split nothing: ask."
    docs_url: https://wiki.example/payments
    mode: enforce
    approvers: [treasury, cfo@acme.example]
  - {name: no shell, when: "action.action_name == 'bash'", decision: deny, reason: No shell., mode: shadow}
`},
		{"JSON", JSON, `{"rules": [{"reason": "A person looks at large payments.", "name": "large payments",
			"when": "action.amount_usd > 1000", "decision": "require_approval", "remediation": "Split nothing: ask.",
			"docs_url": "https:\/\/wiki.example/payments", "approvers": ["treasury", "cfo@acme.example"]},
			{"name": "no shell", "when": "action.action_name == 'bash'", "decision": "deny", "reason": "No shell.", "mode": "shadow"}],
			"fast_path": true}`},
	}
	var hashes [][32]byte
	for _, d := range documents {
		set, err := Parse([]byte(d.document), d.format)
		if err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		if diff := cmp.Diff(want, set.Rules()); diff != "" {
			t.Errorf("%s: rules (-want +got):\n%s", d.name, diff)
		}
		if allowed, given := set.FastPath(); allowed != yes || !given {
			t.Errorf("%s: fast path %v, given %v", d.name, allowed, given)
		}
		hashes = append(hashes, set.Hash())
	}
	if hashes[0] != hashes[1] {
		t.Error("the same rules have different hashes in YAML and in JSON")
	}
}

// A set without rules is accepted and matches nothing.
func TestParseAcceptsTheEmptySet(t *testing.T) {
	t.Parallel()
	set, err := Parse([]byte("rules: []"), YAML)
	if err != nil {
		t.Fatal(err)
	}
	if _, given := set.FastPath(); given || len(set.Rules()) != 0 || len(matchAll(set, &Input{})) != 0 {
		t.Errorf("the empty set holds something: %v", set.Rules())
	}
	if got := string(set.Canonical()); got != `{"rules":[]}` {
		t.Errorf("canonical form %s", got)
	}
}

// A document that is not a policy set is refused with the line and column of the problem.
func TestParseRefusesDocuments(t *testing.T) {
	t.Parallel()
	valid := "{name: a, when: 'true', decision: deny, reason: r}"
	cases := []struct {
		name, document string
		format         Format
		want           string // "line:column detail" of the only problem
	}{
		{"empty YAML", "", YAML, "1:1 the document is empty"},
		{"only a comment", "# nothing\n", YAML, "1:1 the document is empty"},
		{"empty JSON", "", JSON, "1:1 not acceptable JSON: the text ends too early"},
		{"too large", "#" + strings.Repeat(" ", MaxDocument), YAML, "1:1 the document has 262145 bytes"},
		{"invalid UTF-8", "rules:\n  - \xff", YAML, "2:5 invalid UTF-8"},
		{"a list", "- a", YAML, "1:1 the document must be an object"},
		{"no rules", "fast_path: true", YAML, "1:1 rules is missing"},
		{"rules null", "rules:", YAML, "1:7 rules must be a list"},
		{"unknown field", "rules: []\nrule: 1", YAML, `2:1 unknown field "rule"`},
		{"duplicate key", "rules: []\nrules: []", YAML, `2:1 "rules" is given twice`},
		{"duplicate key in a rule", "rules:\n- {name: a, when: 'true', decision: deny, name: b, reason: r}", YAML, `2:43 "name" is given twice`},
		{"duplicate name in JSON", "{\"fast_path\": true,\n \"rules\": [{\"name\": \"a\", \"name\": \"b\"}]}", JSON, "2:12 not acceptable JSON: duplicate name"},
		{"trailing comma in JSON", "{\"rules\": [\n1,]}", JSON, "2:3 not acceptable JSON: expected a value"},
		{"fast_path as a word", "fast_path: 'true'\nrules: []", YAML, "1:12 fast_path must be true or false"},
		{"two documents", "rules: []\n---\nrules: []", YAML, "2:1 a second document begins here"},
		{"broken second document", "rules: []\n---\n[", YAML, "3:1 not acceptable YAML"},
		{"anchor", "rules: &all []", YAML, "1:8 anchors are not read"},
		{"tag", "rules: !!seq []", YAML, "1:8 tags are not read"},
		{"custom tag", "rules:\n  - !rule {}", YAML, "2:5 tags are not read"},
		{"name that is no string", "1: 2\nrules: []", YAML, "1:1 a name must be a string"},
		{"merge key", "rules: []\n<<: {}", YAML, `2:1 unknown field "<<"`},
		{"deep", "rules: " + strings.Repeat("[", 70) + strings.Repeat("]", 70), YAML, "1:72 nested deeper than 64 levels"},
		{"unclosed", "rules: [", YAML, "1:1 not acceptable YAML"},
		{"rule that is no object", "rules: [a]", YAML, "1:9 a rule must be an object"},
		{"one rule too many", "rules:\n" + many(MaxRules+1), YAML, "202:3 this is rule 201"},
		{"name given twice", "rules:\n- " + valid + "\n- " + valid, YAML, "3:10 another rule has this name"},
		{"empty name", "rules:\n- {name: '', when: 'true', decision: deny, reason: r}", YAML, "2:10 name must have 1 to 100 characters, and has 0"},
		{"long name", "rules:\n- {name: " + strings.Repeat("ä", 101) + ", when: 'true', decision: deny, reason: r}", YAML, "2:10 name must have 1 to 100 characters, and has 101"},
		{"name of two lines", "rules:\n- {name: \"a\\nb\", when: 'true', decision: deny, reason: r}", YAML, "2:10 name must be one line"},
		{"name as a number", "rules:\n- {name: 7, when: 'true', decision: deny, reason: r}", YAML, "2:10 name must be a string"},
		{"condition as a bool", "rules:\n- {name: a, when: true, decision: deny, reason: r}", YAML, "2:19 when must be a string"},
		{"empty condition", "rules:\n- {name: a, when: '', decision: deny, reason: r}", YAML, "2:19 when must have 1 to 4096 bytes"},
		{"long condition", rule + "'" + strings.Repeat(" ", maxCondition) + "true'", YAML, "5:9 when must have 1 to 4096 bytes, and has 4100"},
		{"decision", "rules:\n- {name: a, when: 'true', decision: block, reason: r}", YAML, "2:37 decision must be one of allow, allow_with_flag, require_approval, deny"},
		{"mode", "rules:\n- {name: a, when: 'true', decision: deny, reason: r, mode: off}", YAML, "2:60 mode must be one of enforce, shadow"},
		{"reason missing", "rules:\n- {name: a, when: 'true', decision: deny}", YAML, "2:3 reason is missing"},
		{"reason null", "{\"rules\": [{\"name\": \"a\", \"when\": \"true\", \"decision\": \"deny\",\n\"reason\": null}]}", JSON, "2:11 reason must be a string"},
		{"script as a link", "rules:\n- {name: a, when: 'true', decision: deny, reason: r, docs_url: 'javascript:x'}", YAML, "2:64 docs_url must be a web address"},
		{"approvers of a denial", "rules:\n- {name: a, when: 'true', decision: deny, reason: r, approvers: [b]}", YAML, "2:65 approvers only go with the decision require_approval"},
		{"no approvers", "rules:\n- {name: a, when: 'true', decision: require_approval, reason: r, approvers: []}", YAML, "2:77 approvers must name 1 to 50"},
		{"approver twice", "rules:\n- {name: a, when: 'true', decision: require_approval, reason: r, approvers: [b, b]}", YAML, "2:81 this approver is named twice"},
		{"approver as a number", "rules:\n- {name: a, when: 'true', decision: require_approval, reason: r, approvers: [7]}", YAML, "2:78 an approver must be a string"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(c.document), c.format)
			wantProblem(t, err, c.want)
		})
	}
}

// A refusal lists all problems in the order of the document.
func TestParseReportsAllProblemsInOrder(t *testing.T) {
	t.Parallel()
	document := `
rules:
  - name: first
    when: action.amout_usd > 1 || chain.age > 2
    decision: no
    reason: r
  - when: acton.payload.x == 1
    decision: deny
    reason: 5
colour: red
`
	_, err := Parse([]byte(document), YAML)
	var refused *Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	want := []Problem{
		{"first", 4, 17, "undefined field 'amout_usd'"},
		{"first", 4, 40, "undefined field 'age'"},
		{"first", 5, 15, "decision must be one of allow, allow_with_flag, require_approval, deny"},
		{"rules[1]", 7, 5, "name is missing"},
		{"rules[1]", 7, 11, "undeclared reference to 'acton' (did you mean 'action'?)"},
		{"rules[1]", 9, 13, "reason must be a string: put it in quotes"},
		{"", 10, 1, `unknown field "colour": a document has rules and fast_path`},
	}
	if diff := cmp.Diff(want, refused.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if got, want := err.Error(), `line 4, column 17: "first": undefined field 'amout_usd' (and 6 more)`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A refusal lists a bounded number of problems in a bounded text.
func TestParseBoundsItsReport(t *testing.T) {
	t.Parallel()
	document := "rules:\n" + strings.Repeat("- {name: 1, when: nowhere, decision: x, reason: 2}\n", 100)
	_, err := Parse([]byte(document), YAML)
	var refused *Error
	if !errors.As(err, &refused) || len(refused.Problems) != maxProblems {
		t.Errorf("got %v, want %d problems", err, maxProblems)
	}
	_, err = Parse([]byte("rules: []\n"+strings.Repeat("x", 5000)+": 1"), YAML)
	if err == nil || len(err.Error()) > 2*maxDetail {
		t.Errorf("got a text of %d bytes", len(fmt.Sprint(err)))
	}
}

// many returns a list of count valid rules, one per line.
func many(count int) string {
	var list strings.Builder
	for i := range count {
		fmt.Fprintf(&list, "- {name: rule %d, when: 'true', decision: deny, reason: r}\n", i)
	}
	return list.String()
}

// wantProblem requires exactly one problem, given as "line:column start of its detail".
func wantProblem(t *testing.T, err error, want string) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want %s", err, want)
	}
	p := refused.Problems[0]
	got := fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.Detail)
	if !strings.HasPrefix(got, want) || len(refused.Problems) != 1 {
		t.Errorf("got %s (%d problems), want %s", got, len(refused.Problems), want)
	}
}
