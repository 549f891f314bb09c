package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asking returns a set of one rule with the condition.
func asking(condition string) ([]byte, Format) {
	return fmt.Appendf(nil, "rules:\n- name: r\n  when: '%s'\n  decision: deny\n  reason: because\n", condition), YAML
}

// TestRulesAskAboutBudgets: conditions can read what is left of budgets. A budget that does not
// exist fails the rule, and the error says so.
func TestRulesAskAboutBudgets(t *testing.T) {
	t.Parallel()
	in := &Input{AmountUSD: 30, Budgets: map[string]float64{"marketing": 29.5, "tokens a day": 0, "true": 1}}
	for _, c := range []struct {
		condition string
		names     []string
		holds     bool
		failed    string
	}{
		{`budget("marketing").left < action.amount_usd`, []string{"marketing"}, true, ""},
		{`budget("marketing").left >= 30`, []string{"marketing"}, false, ""},
		{`budget("tokens a day").left == 0.0 && budget("marketing").left > 0.0`, []string{"marketing", "tokens a day"}, true, ""},
		{`["a", "b"].exists(x, budget("marketing").left > 1)`, []string{"marketing"}, true, ""},
		{`has(budget("marketing").left)`, []string{"marketing"}, true, ""},
		{`dyn(budget("marketing")).left > 1`, []string{"marketing"}, true, ""},
		{`budget("unknown").left > 1`, []string{"unknown"}, true, "a budget that the organization does not have"},
		{`dyn(budget("unknown")).left > 1`, []string{"unknown"}, true, "a budget that the organization does not have"},
		{`action.amount_usd > 5`, nil, true, ""},
	} {
		set, err := Parse(asking(c.condition))
		if err != nil {
			t.Errorf("%s: %v", c.condition, err)
			continue
		}
		if diff := cmp.Diff(c.names, set.Budgets()); diff != "" {
			t.Errorf("%s asks about (-want +got):\n%s", c.condition, diff)
		}
		hits := matchAll(set, in)
		if len(hits) > 0 != c.holds {
			t.Errorf("%s: %d hits", c.condition, len(hits))
			continue
		}
		failed := ""
		if len(hits) > 0 && hits[0].Failed != nil {
			failed = hits[0].Failed.Error()
		}
		if (failed == "") != (c.failed == "") || !strings.Contains(failed, c.failed) {
			t.Errorf("%s fails with %q", c.condition, failed)
		}
	}
}

// TestBudgetsAreTypeChecked: a condition that cannot apply to a budget is refused when the set is
// parsed.
func TestBudgetsAreTypeChecked(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{
		`budget("marketing").left`, `budget("marketing").right > 1`, `budget("marketing") > 1`, `budget(action.agent_name).left > 1`,
		`budget("a" + "b").left > 1`, `budget(1).left > 1`, `budget().left > 1`, `budget("a", "b").left > 1`, `budget.left > 1`, `budgets["a"].left > 1`,
		`@budgets["a"].left > 1`, `budget("marketing").left == "much"`, `budget{left: 1.0}.left > 1.0`,
	} {
		if set, err := Parse(asking(condition)); err == nil {
			t.Errorf("%s is taken, and asks about %q", condition, set.Budgets())
		}
	}
}
