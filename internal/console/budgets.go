package console

import (
	"fmt"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// maxBudgets is the maximum number of budgets in the form.
const maxBudgets = 20

// budgetForm is the row of one budget in the form.
type budgetForm struct {
	No                                                   int
	Name, Scope, Match, Window, Measure, Limit, Decision string
	Added                                                bool // the row is empty, for a new budget
}

func budgetForms(budgets []ledger.Budget) []budgetForm {
	forms := make([]budgetForm, 0, len(budgets)+1)
	for i := range budgets {
		b := &budgets[i]
		forms = append(forms, budgetForm{
			No: i, Name: b.Name, Scope: string(b.Scope), Match: strings.Join(b.Match, "\n"), Window: string(b.Window),
			Measure: string(b.Measure()), Limit: b.Limit().String(), Decision: string(b.Decision),
		})
	}
	return withEmptyRow(forms)
}

// empty reports whether a row has neither a name nor a limit.
func (b *budgetForm) empty() bool { return b.Name == "" && b.Limit == "" }

// withEmptyRow adds a row for a new budget, unless the last one is empty already.
func withEmptyRow(forms []budgetForm) []budgetForm {
	last := len(forms) - 1
	switch {
	case last >= 0 && forms[last].empty():
		forms[last].Added = true
	case len(forms) < maxBudgets:
		forms = append(forms, budgetForm{No: len(forms), Scope: "organization", Window: "day", Measure: "usd", Decision: "require_approval", Added: true})
	}
	return forms
}

// sentBudgets returns the rows of a form as they were sent. Each keeps its place, by which an existing
// budget is told from a new one.
func sentBudgets(sent form) []budgetForm {
	var forms []budgetForm
	for i := range maxBudgets {
		prefix := fmt.Sprintf("budget_%d_", i)
		if !sent.values.Has(prefix + "name") {
			break
		}
		field := func(name string) string { return sent.text(prefix + name) }
		forms = append(forms, budgetForm{
			No: i, Name: field("name"), Scope: field("scope"), Match: field("match"), Window: field("window"),
			Measure: field("measure"), Limit: field("limit"), Decision: field("decision"),
		})
	}
	return forms
}

// limitMembers are the JSON members for the limit of a budget, by measure.
var limitMembers = map[string]string{
	string(ledger.MeasureUSD): "limit_usd", string(ledger.MeasureCost): "limit_cost_usd", string(ledger.MeasureTokens): "limit_tokens",
}

// budgetsRequest converts the rows to the API's form. The first rows are the existing budgets. One of them
// without a name is omitted, which removes the budget. A new budget with a limit and no name is a mistake,
// and the validation says so.
func budgetsRequest(sent form, existing int) []map[string]any {
	budgets := []map[string]any{}
	for i, b := range sentBudgets(sent) {
		if b.Name == "" && i < existing || b.empty() {
			continue
		}
		members := map[string]any{"name": b.Name, "scope": b.Scope, "window": b.Window, "decision": b.Decision}
		if b.Match != "" {
			var names []string
			for name := range strings.Lines(b.Match) {
				if name = strings.TrimSpace(name); name != "" {
					names = append(names, name)
				}
			}
			members["match"] = names
		}
		if member := limitMembers[b.Measure]; member != "" {
			members[member] = number(b.Limit)
		}
		budgets = append(budgets, members)
	}
	return budgets
}

// shownUses is the number of counters on the settings page. The API lists all of them.
const shownUses = 40

// budgetBar shows how much of a budget is used.
type budgetBar struct {
	Name, Who, Used, Limit, Waiting, Left string
	Ends                                  string
	Share                                 float64 // used share of the limit, at most 1
	Over                                  bool    // nothing is left
	Tampered                              bool
}

func (v *visit) budgetBars(caller *service.Caller) (bars []budgetBar, more bool, err error) {
	uses, err := v.console.service.Budgets(v.r.Context(), caller, ledger.CounterID{}, shownUses+1)
	if err != nil {
		return nil, false, err
	}
	for _, use := range uses[:min(len(uses), shownUses)] {
		bars = append(bars, barOf(use))
	}
	return bars, len(uses) > shownUses, nil
}

func barOf(u *service.BudgetUse) budgetBar {
	b := u.Budget
	bar := budgetBar{Name: visible(b.Name), Who: counterOwner(u), Tampered: u.Tampered, Limit: b.Show(b.Limit()), Ends: u.End.Std().Format("2 January, 15:04") + " UTC"}
	if u.Tampered {
		return bar
	}
	used := u.Spent.Add(u.Waiting)
	bar.Used, bar.Left = b.Show(used), b.Show(u.Left)
	if u.Waiting.Cmp(ledger.Money{}) > 0 {
		bar.Waiting = b.Show(u.Waiting)
	}
	bar.Over = used.Cmp(b.Limit()) >= 0
	bar.Share = 1
	if !bar.Over {
		bar.Share = used.Float() / b.Limit().Float()
	}
	return bar
}

// counterOwner describes whose use a counter counts.
func counterOwner(u *service.BudgetUse) string {
	switch {
	case u.Budget.Scope == ledger.ScopeOrganization:
		return "the whole organization"
	case u.Value == "" && u.Key != nil:
		return "a key without a name"
	}
	return string(u.Budget.Scope) + " " + visible(u.Value)
}
