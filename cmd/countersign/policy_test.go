package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/policy"
)

const examples = "../../examples/policies/"

// The policy check command accepts a good set and shows its rules and the hash of
// its version.
func TestPolicyCheck(t *testing.T) {
	t.Parallel()
	out := succeed(t, "policy", "check", examples+"payments.yaml")
	if !strings.Contains(out, "payments above 1,000") || !strings.Contains(out, "ok: 4 rules; its version will be v<N>+") {
		t.Errorf("check says %s", out)
	}
	checked := decode[policy.CheckResult](t, succeed(t, "policy", "check", "--json", examples+"payments.yaml"))
	if !checked.Valid || len(checked.Hash) != 12 || len(checked.Rules) != 4 || checked.Rules[3].Mode != "shadow" || checked.FastPath {
		t.Errorf("check says %+v", checked)
	}
	empty := filepath.Join(t.TempDir(), "none.json")
	writeFile(t, empty, []byte(`{"rules":[],"fast_path":true}`))
	if checked := decode[policy.CheckResult](t, succeed(t, "policy", "check", "--json", empty)); !checked.Valid || !checked.FastPath {
		t.Errorf("check says %+v", checked)
	}
}

const badPolicy = "rules:\n  - name: first\n    when: action.amout_usd > 1\n    decision: den\n    reason: no\n"

// The policy check command names every problem of a set with its line and column.
func TestPolicyCheckNamesEveryProblem(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	writeFile(t, bad, []byte(badPolicy))
	out := refuse(t, cli.ExitFailed, "refused: 2 problems", "policy", "check", bad).out
	for _, place := range []string{bad + ":3:", bad + ":4:15: first: "} {
		if !strings.Contains(out, "\n"+place) && !strings.HasPrefix(out, place) {
			t.Errorf("no line begins with %q:\n%s", place, out)
		}
	}
	checked := decode[policy.CheckResult](t, refuse(t, cli.ExitFailed, `"valid": false`, "policy", "check", "--json", bad).out)
	if len(checked.Problems) != 2 || checked.Problems[1].Line != 4 || checked.Problems[1].Column != 15 {
		t.Errorf("check says %+v", checked)
	}
	refuse(t, cli.ExitInconclusive, "no such file", "policy", "check", bad+".none")
	huge := filepath.Join(t.TempDir(), "huge.yaml")
	writeFile(t, huge, make([]byte, 4<<20+1))
	refuse(t, cli.ExitInconclusive, "longer than", "policy", "check", huge)
}

// What the documentation shows must hold.
func TestPolicyExamples(t *testing.T) {
	t.Parallel()
	files := []string{"../../internal/policy/packs/starter.cases.yaml"}
	found, err := filepath.Glob(examples + "*.cases.yaml")
	if err != nil || len(found) == 0 {
		t.Fatalf("%v, %v", found, err)
	}
	files = append(files, found...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			set := strings.TrimSuffix(file, ".cases.yaml") + ".yaml"
			if out := succeed(t, "policy", "test", set); !strings.Contains(out, " passed, 0 failed\n") || strings.Contains(out, "✗") {
				t.Errorf("test says %s", out)
			}
		})
	}
}

// decisions are cases that all fail when they are run with the wrong decision.
const caseFile = `cases:
- name: an amount over the threshold of the settings
  action: {agent_name: a, action_type: tool_call, action_name: pay, payload: {amount_usd: 80}}
  organization: {financial_approval_threshold_usd: 50}
  expect: {policy_decision: require_approval, policy_name: financial_approval_threshold, status: awaiting_approval}
- name: exposure that the chain has already
  action: {agent_name: a, action_type: tool_call, action_name: pay, payload: {amount_usd: 1}}
  chain: {financial_exposure_usd: 10001}
  expect: {policy_decision: require_approval, policy_name: cumulative_financial_threshold}
- name: a chain that has run for too long
  action: {agent_name: a, action_type: tool_call, action_name: look, payload: {}}
  chain: {age_seconds: 86401}
  expect: {policy_decision: deny, policy_name: auto_pause, status: denied}
- name: a chain with too many events
  action: {agent_name: a, action_type: tool_call, action_name: look, payload: {}}
  chain: {total_actions: 3}
  organization: {auto_pause: {max_events: 3}}
  expect: {policy_decision: deny}
- name: a rule about the organization and the chain
  action: {agent_name: a, action_type: tool_call, action_name: look, payload: {}}
  chain: {name: nightly, environment: staging, metadata: {ticket: T-1}, tokens: 5}
  organization: {slug: acme}
  expect: {policy_decision: allow_with_flag, policy_name: everything at once, status: flagged}
- name: everything in shadow
  action: {agent_name: a, action_type: tool_call, action_name: pay, payload: {amount_usd: 9000}}
  organization: {evaluation_mode: shadow}
  expect: {policy_decision: allow, status: allowed}
`

const ruleFile = `rules:
- name: everything at once
  when: 'org.slug == "acme" && chain.name == "nightly" && chain.environment == "staging" && chain.metadata.ticket == "T-1" && chain.tokens == 5'
  decision: allow_with_flag
  reason: all of it holds
`

// The policy test command runs the cases of a set and says of each failed one what
// was expected and what came.
func TestPolicyTest(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	set, cases := filepath.Join(folder, "set.yaml"), filepath.Join(folder, "set.cases.yaml")
	writeFile(t, set, []byte(ruleFile))
	refuse(t, cli.ExitInconclusive, "set.cases.yaml", "policy", "test", set)
	writeFile(t, cases, []byte(caseFile))
	if out := succeed(t, "policy", "test", set); !strings.Contains(out, "6 passed, 0 failed") {
		t.Errorf("test says %s", out)
	}
	wrong := filepath.Join(folder, "wrong.yaml")
	writeFile(t, wrong, []byte(`cases:
- name: another decision
  action: {agent_name: a, action_type: tool_call, action_name: look, payload: {}}
  expect: {policy_decision: deny, policy_name: everything at once}
- name: an action that cannot be recorded
  action: {agent_name: a, action_name: look}
  chain: {colour: red}
  organization: {slug: Not A Slug}
  expect: {policy_decision: allow}
`))
	r := refuse(t, cli.ExitFailed, "6 passed, 2 failed", "policy", "test", set, cases, wrong)
	if !strings.Contains(r.out, "policy_decision should be deny and is allow; policy_name should be everything at once and is null") {
		t.Errorf("test says %s", r.out)
	}
	tested := decode[policy.TestResult](t, refuse(t, cli.ExitFailed, `"failed": 2`, "policy", "test", "--json", set, cases, wrong).out)
	last := tested.Cases[len(tested.Cases)-1]
	faults := strings.Join(last.Faults, "\n")
	for _, place := range []string{"action/action_type is required", "action/payload is required", "chain/colour is not a known field", "slug"} {
		if !strings.Contains(faults, place) {
			t.Errorf("no fault says %q: %s", place, faults)
		}
	}
	bad := filepath.Join(folder, "bad.yaml")
	writeFile(t, bad, []byte("cases: 7\n"))
	refuse(t, cli.ExitFailed, bad+":1:8: ", "policy", "test", set, bad)
	writeFile(t, set, []byte(badPolicy))
	refuse(t, cli.ExitFailed, "refused: 2 problems", "policy", "test", set, cases)
	if err := os.Remove(set); err != nil {
		t.Fatal(err)
	}
	refuse(t, cli.ExitInconclusive, "no such file", "policy", "test", set, cases)
}

// A case can set budgets and say how far they are used: the budgets decide, and rules that
// ask what is left of them.
func TestPolicyTestWithBudgets(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	set, cases := filepath.Join(folder, "set.yaml"), filepath.Join(folder, "set.cases.yaml")
	writeFile(t, set, []byte(`rules:
- name: reserve
  when: 'action.amount_usd > budget("daily").left - 10.0'
  decision: require_approval
  reason: ten dollars stay
`))
	succeed(t, "policy", "check", set)
	one := func(name, agent, used, decision, rule string) string {
		return `
- name: ` + name + `
  action: {agent_name: ` + agent + `, action_type: tool_call, action_name: send_payment, payload: {amount_usd: 40}}
  organization: {budgets: [{name: daily, scope: agent, match: a, window: day, limit_usd: 100, decision: deny}]}
  budgets_used: {` + used + `}
  expect: {policy_decision: ` + decision + `, policy_name: ` + rule + `}`
	}
	writeFile(t, cases, []byte("cases:"+one("unused", "a", "", "allow", "null")+one("the rule", "a", "daily: 55", "require_approval", "reserve")+
		one("the budget", "a", "daily: 60.01", "deny", "'budget:daily'")+one("another agent", "b", "daily: 100", "allow", "null")+`
- name: no such budget
  action: {agent_name: a, action_type: tool_call, action_name: look, payload: {}}
  expect: {policy_decision: deny, policy_name: reserve}
`))
	if out := succeed(t, "policy", "test", set); !strings.Contains(out, "5 passed, 0 failed") {
		t.Errorf("test says %s", out)
	}
	writeFile(t, cases, []byte("cases:"+one("misspelt", "a", "dayly: 5", "allow", "null")+"\n"))
	refuse(t, cli.ExitFailed, "1 failed", "policy", "test", set)
}
