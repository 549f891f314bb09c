package ledger

import (
	"slices"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Budget limits what actions use together in a time window, above the chain: in the whole
// organization, or separately for each environment, agent or key.
type Budget struct {
	Name   string      `json:"name"`
	Scope  BudgetScope `json:"scope"`
	Match  []string    `json:"match,omitempty"` // names of environments, agents or keys; empty: all, each separately
	Window Window      `json:"window"`
	// Exactly one of the limits is set.
	LimitUSD    *Money  `json:"limit_usd,omitempty"`
	LimitCost   *Money  `json:"limit_cost_usd,omitempty"`
	LimitTokens *int64  `json:"limit_tokens,omitempty"`
	Decision    Outcome `json:"decision"` // for actions over the budget
}

// BudgetScope says for what a budget counts separately.
type BudgetScope string

// The scopes of a budget.
const (
	ScopeOrganization BudgetScope = "organization"
	ScopeEnvironment  BudgetScope = "environment"
	ScopeAgent        BudgetScope = "agent"
	ScopeKey          BudgetScope = "key" // the API key that records the action
)

// Window is the period in which a budget counts, in UTC.
type Window string

// The windows of a budget.
const (
	WindowDay   Window = "day"
	WindowMonth Window = "month"
)

// Span returns the start of the window that contains a time, and the start of the next one.
func (w Window) Span(at Time) (start, end Time) {
	year, month, day := at.Std().Date()
	if w == WindowMonth {
		return TimeOf(time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)), TimeOf(time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC))
	}
	return TimeOf(time.Date(year, month, day, 0, 0, 0, 0, time.UTC)), TimeOf(time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC))
}

// Measure is what a budget counts.
type Measure string

// The measures of a budget. All amounts are represented as Money; tokens are whole numbers.
const (
	MeasureUSD    Measure = "usd"      // amounts of financial actions
	MeasureCost   Measure = "cost_usd" // cost of model calls
	MeasureTokens Measure = "tokens"
)

// Show formats an amount with its unit, for people.
func (m Measure) Show(amount Money) string {
	if m == MeasureTokens {
		return GroupThousands(amount.String()) + " tokens"
	}
	return amount.Display() + " USD"
}

// Limits on budgets.
const (
	maxBudgets      = 20
	maxBudgetName   = 64
	maxBudgetMatch  = 50
	maxBudgetTokens = int64(1) << 50
)

// Measure returns what the budget counts.
func (b *Budget) Measure() Measure {
	switch {
	case b.LimitUSD != nil:
		return MeasureUSD
	case b.LimitCost != nil:
		return MeasureCost
	}
	return MeasureTokens
}

// Limit returns the most that actions may use in one window.
func (b *Budget) Limit() Money {
	switch {
	case b.LimitUSD != nil:
		return *b.LimitUSD
	case b.LimitCost != nil:
		return *b.LimitCost
	case b.LimitTokens != nil:
		return moneyOfCount(*b.LimitTokens)
	}
	return Money{}
}

// Left returns what is left of the budget, never less than zero.
func (b *Budget) Left(c *BudgetCounter) Money {
	left := b.Limit().Sub(c.Used())
	if left.Cmp(Money{}) < 0 {
		return Money{}
	}
	return left
}

// Show formats an amount of the budget's measure with its unit, for people.
func (b *Budget) Show(amount Money) string { return b.Measure().Show(amount) }

// budgetRule is the prefix of budget names in the names of rules.
const budgetRule = "budget:"

// Rule returns the budget's name in decisions.
func (b *Budget) Rule() string { return budgetRule + b.Name }

// docsOfBudgets is where budgets are documented.
const docsOfBudgets = "docs/policies.md#budgets"

// BudgetOutcome returns what the budgets alone decided, or Allow.
func (d *Decision) BudgetOutcome() Outcome {
	strictest := Allow
	for _, m := range d.Matched {
		if strings.HasPrefix(m.Name, budgetRule) && !m.Shadow && m.Outcome.StricterThan(strictest) {
			strictest = m.Outcome
		}
	}
	return strictest
}

// Budget returns the budget with the name, or nil.
func (s *Settings) Budget(name string) *Budget {
	for i := range s.Budgets {
		if s.Budgets[i].Name == name {
			return &s.Budgets[i]
		}
	}
	return nil
}

func (s *Settings) appendBudgets(dst []byte) []byte {
	return appendObjects(dst, s.Budgets, func(w *canon.ObjectWriter, b *Budget) {
		w.String("decision", string(b.Decision))
		w.String("limit", b.Limit().String())
		w.Strings("match", b.Match)
		w.String("measure", string(b.Measure()))
		w.String("name", b.Name)
		w.String("scope", string(b.Scope))
		w.String("window", string(b.Window))
	})
}

// parseBudgets reads the setting and reports every fault.
func parseBudgets(f *canon.Fields, name string) []Budget {
	v, _ := f.Get(name)
	if v.Kind() != canon.Array {
		f.Fault(name, "must be an array of budgets")
		return nil
	}
	if len(v.Items()) > maxBudgets {
		f.Fault(name, "must have at most %d budgets", maxBudgets)
		return nil
	}
	budgets := make([]Budget, 0, len(v.Items()))
	for i, item := range v.Items() {
		inner := f.Item(name, i, item)
		if item.Kind() != canon.Object {
			f.Join(inner)
			continue
		}
		b := parseBudget(inner)
		if b.Name != "" && slices.ContainsFunc(budgets, func(other Budget) bool { return other.Name == b.Name }) {
			inner.Fault("name", "must differ from the names of the other budgets")
		}
		f.Join(inner)
		budgets = append(budgets, b)
	}
	if len(budgets) == 0 {
		return nil // the same as if there never were any
	}
	return budgets
}

func parseBudget(f *canon.Fields) Budget {
	b := Budget{
		Name:     f.RequiredName("name", maxBudgetName),
		Scope:    BudgetScope(requiredOneOf(f, "scope", string(ScopeOrganization), string(ScopeEnvironment), string(ScopeAgent), string(ScopeKey))),
		Window:   Window(requiredOneOf(f, "window", string(WindowDay), string(WindowMonth))),
		Decision: Outcome(requiredOneOf(f, "decision", string(RequireApproval), string(Deny))),
	}
	b.Match = parseBudgetMatch(f, "match")
	if b.Scope == ScopeOrganization && len(b.Match) > 0 {
		f.Fault("match", "must not be given with the scope organization, which covers everything")
	}
	b.LimitUSD, b.LimitCost = parseAmount(f, "limit_usd"), parseAmount(f, "limit_cost_usd")
	if f.Has("limit_tokens") {
		tokens := f.Int("limit_tokens", 0, maxBudgetTokens)
		b.LimitTokens = &tokens
	}
	limits := 0
	for _, given := range []bool{b.LimitUSD != nil, b.LimitCost != nil, b.LimitTokens != nil} {
		if given {
			limits++
		}
	}
	if limits != 1 {
		f.FaultOfAll("must have exactly one of limit_usd, limit_cost_usd and limit_tokens")
	}
	return b
}

func requiredOneOf(f *canon.Fields, name string, allowed ...string) string {
	if !f.Has(name) {
		f.Fault(name, "is required: %s", strings.Join(allowed, " or "))
		return ""
	}
	return f.OneOf(name, allowed...)
}

// parseBudgetMatch accepts one name or a list of names.
func parseBudgetMatch(f *canon.Fields, name string) []string {
	if v, _ := f.Get(name); v.Kind() == canon.String {
		if match := f.Name(name, maxName); match != "" {
			return []string{match}
		}
		return nil
	}
	if !f.Has(name) {
		return nil
	}
	faults := f.Faults()
	names := ReadAgentNames(f, name, maxBudgetMatch)
	if len(names) == 0 && f.Faults() == faults {
		f.Fault(name, "must have at least one name; leave it out for a budget that covers all")
	}
	slices.Sort(names) // the digits of policy versions cover the list, and its order decides nothing
	return names
}

// Subject is who acts, as far as budgets distinguish subjects.
type Subject struct {
	Environment string
	Agent       string
	Key         KeyID
	KeyName     string
	// Unnamed says that the name of the key is unknown. A budget that matches names of keys then
	// covers it.
	Unnamed bool
}

// value returns the value under which the budget counts the subject's actions, and a label for
// people. Names, and ids of keys, are folded like agent names, so another spelling is not another
// subject.
func (b *Budget) value(s *Subject) (value, label string, covered bool) {
	switch b.Scope {
	case ScopeEnvironment:
		value, label = classify.FoldName(s.Environment), s.Environment
	case ScopeAgent:
		value, label = classify.FoldName(s.Agent), s.Agent
	case ScopeKey:
		value, label = s.Key.String(), s.KeyName
	default:
		return "", "", true
	}
	if len(b.Match) == 0 || b.Scope == ScopeKey && s.Unnamed {
		return value, label, true
	}
	named := classify.FoldName(label)
	return value, label, slices.ContainsFunc(b.Match, func(name string) bool {
		folded := classify.FoldName(name)
		return folded == named || folded == value
	})
}

// concerns reports whether actions of this kind use what the budget counts, as far as that is known
// in advance.
func (b *Budget) concerns(a *Action) bool {
	if a.marker() {
		return false
	}
	if b.Measure() == MeasureUSD {
		return a.Facts.has(CategoryFinancial)
	}
	return a.Facts.has(CategoryLLM) || a.Facts.Model != "" || a.Facts.Tokens() > 0
}

// takes returns what the action uses of the budget, as far as it is known.
func (b *Budget) takes(a *Action) Money {
	switch b.Measure() {
	case MeasureUSD:
		own := Reservation{Facts: a.Facts}
		return own.exposure()
	case MeasureCost:
		if a.Cost != nil {
			return *a.Cost
		}
		return Money{}
	}
	return moneyOfCount(a.Facts.Tokens())
}
