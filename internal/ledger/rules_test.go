package ledger

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ruleNames returns the names of the built-in rules that the source declares.
func ruleNames(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "rules.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Rule") {
			names = append(names, must(strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)))
		}
		return true
	})
	return names
}

// Every built-in rule says what to do and where to read more, and that place exists. A rule that
// decides is among those that matched.
func TestBuiltinRulesExplainThemselves(t *testing.T) {
	t.Parallel()
	amount := MoneyOf(9000)
	pay := func(q *Question) {
		q.Action.Facts = Facts{Categories: []string{CategoryFinancial}, Amount: &amount}
	}
	cases := map[string]func(*Question){
		RuleKillSwitch:   func(q *Question) { q.Org.Controls.KillSwitch.Active = true },
		RuleAutoPause:    func(q *Question) { q.State.Actions = 10_000 },
		RuleChainTimeout: func(q *Question) { q.Chain.Limits.TimeoutSeconds, q.Now = 1, q.Now+5000 },
		RuleTooManyApprovals: func(q *Question) {
			pay(q)
			q.State.Approvals = maxApprovals
		},
		RuleUnbound: func(q *Question) {
			pay(q)
			q.Action.redactions = &redactions{unbindable: true}
		},
		RuleHighRiskAgent:   func(q *Question) { q.Org.Settings.HighRiskAgents = []string{"agent"} },
		RuleSingleThreshold: pay,
		RuleCumulativeThreshold: func(q *Question) {
			pay(q)
			small := MoneyOf(1)
			q.Action.Facts.Amount, q.State.Metrics.FinancialExposure = &small, MoneyOf(20_000)
		},
		RuleAmountMissing: func(q *Question) { q.Action.Facts.Categories = []string{CategoryFinancial} },
		RuleDomainAllowlist: func(q *Question) {
			q.Org.Settings.ExternalDomainsAllowlist, q.Action.Facts.ExternalDomains = []string{}, []string{"example.com"}
		},
		RuleShell:    func(q *Question) { q.Action.ActionName = "run_command" },
		RuleSQL:      func(q *Question) { q.Action.Facts.WritesSQL = true },
		RuleDeletion: func(q *Question) { q.Action.ActionName = "delete_customer" },
		RuleMail: func(q *Question) {
			q.Action.ActionName, q.Action.Facts.ExternalDomains = "send_email", []string{"example.com"}
		},
		RuleGap: func(q *Question) { q.Action.ActionType, q.Action.Source = ActionTypeGap, SourceOffline },
		"budget:day": func(q *Question) {
			pay(q)
			q.Action.Facts.Amount = &[]Money{MoneyOf(200)}[0]
			q.Org.Settings.Budgets = []Budget{budgetOf(100, RequireApproval)}
			for _, applied := range q.Org.Settings.Applying(q.Org.ID, &Subject{}, q.Action, q.Now, nil) {
				q.Standings = append(q.Standings, applied.Standing(q.Action, NewBudgetCounter(applied.Key, "")))
			}
		},
	}
	for _, name := range ruleNames(t) {
		if cases[name] == nil {
			t.Errorf("there is no case for the rule %s", name)
		}
	}
	for name, edit := range cases {
		q := &Question{
			Org: &Organization{Settings: DefaultSettings()}, Chain: &Chain{StartedAt: firstMoment}, State: NewChainState(firstMoment, ""),
			Action: &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "step"}, Now: firstMoment,
		}
		edit(q)
		d := Decide(BuiltinPolicy, q)
		if d.PolicyName != name {
			t.Errorf("%s: decided by %q, %s", name, d.PolicyName, d.Reason)
			continue
		}
		if d.Remediation == "" || d.Reason == "" {
			t.Errorf("%s: %q, %q", name, d.Reason, d.Remediation)
		}
		checkAnchor(t, d.DocsURL)
		if !slices.ContainsFunc(d.Matched, func(m MatchedRule) bool { return m.Name == name && m.Outcome == d.Outcome && !m.Shadow }) {
			t.Errorf("%s: the rules that matched are %+v", name, d.Matched)
		}
	}
}

// checkAnchor requires a place in the repository's documentation.
func checkAnchor(t *testing.T, address string) {
	t.Helper()
	path, anchor, ok := strings.Cut(address, "#")
	if !ok {
		t.Errorf("%q names no place", address)
		return
	}
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Error(err)
		return
	}
	var anchors []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		plain := regexp.MustCompile("[^a-z0-9_ -]").ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors = append(anchors, strings.ReplaceAll(plain, " ", "-"))
	}
	if !slices.Contains(anchors, anchor) {
		t.Errorf("%s has no heading for %s", path, address)
	}
}
