package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Budget limits what actions take together within a window of time, above the chain:
// in the whole organization, or in each environment, of each agent or with each key.
type Budget struct {
	Name   string      `json:"name"`
	Scope  BudgetScope `json:"scope"`
	Match  []string    `json:"match,omitempty"` // names of the scope's kind; none: all of them, each by itself
	Window Window      `json:"window"`
	// Exactly one of the limits is set.
	LimitUSD    *Money  `json:"limit_usd,omitempty"`
	LimitCost   *Money  `json:"limit_cost_usd,omitempty"`
	LimitTokens *int64  `json:"limit_tokens,omitempty"`
	Decision    Outcome `json:"decision"` // on what is over the budget
}

// BudgetScope says among whom a budget is not shared.
type BudgetScope string

// The scopes of a budget.
const (
	ScopeOrganization BudgetScope = "organization"
	ScopeEnvironment  BudgetScope = "environment"
	ScopeAgent        BudgetScope = "agent"
	ScopeKey          BudgetScope = "key" // the API key that records the action
)

// Window is the time in which a budget counts, in UTC.
type Window string

// The windows of a budget.
const (
	WindowDay   Window = "day"
	WindowMonth Window = "month"
)

// Span is the window that a moment lies in: its beginning and the beginning of the next.
func (w Window) Span(at Time) (start, end Time) {
	year, month, day := at.Std().Date()
	if w == WindowMonth {
		return TimeOf(time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)), TimeOf(time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC))
	}
	return TimeOf(time.Date(year, month, day, 0, 0, 0, 0, time.UTC)), TimeOf(time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC))
}

// Measure is what a budget counts.
type Measure string

// The measures of a budget. Amounts of all of them are held as Money; tokens are whole.
const (
	MeasureUSD    Measure = "usd"      // what financial actions move
	MeasureCost   Measure = "cost_usd" // what models' calls cost
	MeasureTokens Measure = "tokens"
)

// The bounds of budgets.
const (
	maxBudgets      = 20
	maxBudgetName   = 64
	maxBudgetMatch  = 50
	maxBudgetTokens = int64(1) << 50
)

// Measure is what the budget counts.
func (b *Budget) Measure() Measure {
	switch {
	case b.LimitUSD != nil:
		return MeasureUSD
	case b.LimitCost != nil:
		return MeasureCost
	}
	return MeasureTokens
}

// Limit is the most that actions may take in one window.
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

// Rule is the name under which decisions show the budget.
func (b *Budget) Rule() string { return budgetRule + b.Name }

// docsOfBudgets is where budgets are described.
const docsOfBudgets = "docs/policies.md#budgets"

// budgetRule is before a budget's name, in the names of rules.
const budgetRule = "budget:"

// BudgetOutcome is what budgets alone decided, Allow where they decided nothing.
func (d *Decision) BudgetOutcome() Outcome {
	strictest := Allow
	for _, m := range d.Matched {
		if strings.HasPrefix(m.Name, budgetRule) && !m.Shadow && m.Outcome.StricterThan(strictest) {
			strictest = m.Outcome
		}
	}
	return strictest
}

// Show writes an amount of the budget's measure with its unit, for people.
func (b *Budget) Show(amount Money) string { return b.Measure().Show(amount) }

// Show writes an amount with its unit, for people.
func (m Measure) Show(amount Money) string {
	if m == MeasureTokens {
		return GroupThousands(amount.String()) + " tokens"
	}
	return amount.Display() + " USD"
}

// parseBudgets reads the setting, and names every fault.
func parseBudgets(f *Fields, name string) []Budget {
	v, _ := f.get(name)
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
		inner := newFieldsAt(item, fmt.Sprintf("%s/%s/%d", f.path, name, i))
		if item.Kind() != canon.Object {
			f.Join(inner)
			continue
		}
		b := parseBudget(inner)
		if b.Name != "" && slices.ContainsFunc(budgets, func(other Budget) bool { return other.Name == b.Name }) {
			inner.Fault("name", "must be another than those of the other budgets")
		}
		f.Join(inner)
		budgets = append(budgets, b)
	}
	if len(budgets) == 0 {
		return nil // as if there had never been any
	}
	return budgets
}

func parseBudget(f *Fields) Budget {
	b := Budget{
		Name:     f.RequiredName("name", maxBudgetName),
		Scope:    BudgetScope(requiredOneOf(f, "scope", string(ScopeOrganization), string(ScopeEnvironment), string(ScopeAgent), string(ScopeKey))),
		Window:   Window(requiredOneOf(f, "window", string(WindowDay), string(WindowMonth))),
		Decision: Outcome(requiredOneOf(f, "decision", string(RequireApproval), string(Deny))),
	}
	b.Match = parseBudgetMatch(f, "match")
	if b.Scope == ScopeOrganization && len(b.Match) > 0 {
		f.Fault("match", "must not be given with the scope organization, which has one member")
	}
	limits := 0
	money := func(name string) *Money {
		if !f.Has(name) {
			f.Ignore(name)
			return nil
		}
		limits++
		limit := MoneyOf(f.Number(name, 0, maxAmount))
		return &limit
	}
	b.LimitUSD, b.LimitCost = money("limit_usd"), money("limit_cost_usd")
	if f.Has("limit_tokens") {
		limits++
		tokens := f.Int("limit_tokens", 0, maxBudgetTokens)
		b.LimitTokens = &tokens
	} else {
		f.Ignore("limit_tokens")
	}
	if limits != 1 {
		f.faults = append(f.faults, FieldError{Pointer: f.path, Detail: "must have exactly one of limit_usd, limit_cost_usd and limit_tokens"})
	}
	return b
}

func requiredOneOf(f *Fields, name string, allowed ...string) string {
	if !f.Has(name) {
		f.Ignore(name)
		f.Fault(name, "is required: %s", strings.Join(allowed, " or "))
		return ""
	}
	return f.OneOf(name, allowed...)
}

// parseBudgetMatch takes one name or a list of names.
func parseBudgetMatch(f *Fields, name string) []string {
	if v, _ := f.get(name); v.Kind() == canon.String {
		if match := f.Name(name, maxName); match != "" {
			return []string{match}
		}
		return nil
	}
	if !f.Has(name) {
		return nil
	}
	faults := len(f.faults)
	names := f.AgentNames(name, maxBudgetMatch)
	if len(names) == 0 && len(f.faults) == faults {
		f.Fault(name, "must have at least one name; leave it out for a budget that covers all")
	}
	return names
}

// Subject is who acts, as budgets tell subjects apart.
type Subject struct {
	Environment string
	Agent       string
	Key         KeyID
	KeyName     string
	// Unnamed says that the name of the key is not known. Then a budget that goes by names
	// of keys is taken to cover it.
	Unnamed bool
}

// value is what the budget counts the subject's actions under, and how people know it.
// Names are compared as agents' names are: who is spelt differently is no other subject.
func (b *Budget) value(s *Subject) (value, label string, covered bool) {
	switch b.Scope {
	case ScopeEnvironment:
		value, label = classify.FoldName(s.Environment), s.Environment
	case ScopeAgent:
		value, label = classify.FoldName(s.Agent), s.Agent
	case ScopeKey:
		value, label = s.Key.String(), s.KeyName
		if slices.Contains(b.Match, value) || s.Unnamed {
			return value, label, true
		}
	default:
		return "", "", true
	}
	if len(b.Match) == 0 {
		return value, label, true
	}
	named := classify.FoldName(label)
	return value, label, slices.ContainsFunc(b.Match, func(name string) bool { return classify.FoldName(name) == named })
}

// concerns reports whether actions of this kind take anything that the budget counts, as
// far as that can be told before.
func (b *Budget) concerns(a *Action) bool {
	if a.marker() {
		return false
	}
	if b.Measure() == MeasureUSD {
		return a.Facts.has(CategoryFinancial)
	}
	return a.Facts.has(CategoryLLM) || a.Facts.Model != "" || a.Facts.Tokens() > 0
}

// takes is what the action takes of the budget, as far as it is known.
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

// CounterID identifies a counter: it is made of what the counter counts, and has a
// version that no other id has, so that it is never a chain's.
type CounterID struct{ uuid.UUID }

// counterVersion is that of ids whose content is their maker's own (RFC 9562).
const counterVersion = 8

// CounterKey says what a counter counts. A budget that is given another scope, window or
// measure counts anew.
type CounterKey struct {
	Org     OrgID
	Budget  string
	Scope   BudgetScope
	Measure Measure
	Window  Window
	Start   Time // of the window
	Value   string
}

// ID is the counter's.
func (k *CounterKey) ID() CounterID {
	h := sha256.New()
	var size [8]byte
	h.Write(k.Org.UUID[:])
	binary.BigEndian.PutUint64(size[:], uint64(k.Start)) //nolint:gosec // all 64 bits are kept
	h.Write(size[:])
	for _, text := range []string{k.Budget, string(k.Scope), string(k.Measure), string(k.Window), k.Value} {
		binary.BigEndian.PutUint64(size[:], uint64(len(text)))
		h.Write(size[:])
		h.Write([]byte(text))
	}
	var id CounterID
	copy(id.UUID[:], h.Sum(nil))
	id.UUID[6] = id.UUID[6]&0x0f | counterVersion<<4
	id.UUID[8] = id.UUID[8]&0x3f | 0x80
	return id
}

// End is when the window is over.
func (k *CounterKey) End() Time {
	_, end := k.Window.Span(k.Start)
	return end
}

// Of reports whether the counter is one of a budget as the budget is now.
func (k *CounterKey) Of(b *Budget) bool {
	return k.Budget == b.Name && k.Scope == b.Scope && k.Measure == b.Measure() && k.Window == b.Window
}

// IsCounterID reports whether an id is a counter's.
func IsCounterID(id [16]byte) bool { return id[6]>>4 == counterVersion }

// Applied is a budget that a subject's action is held against, and the counter that says
// where it stands.
type Applied struct {
	Budget *Budget
	Key    CounterKey
	Label  string
	// Counted says that the action is held against the budget; otherwise a rule asks what
	// is left of it.
	Counted bool
}

// Applying lists the budgets that an action is held against at a moment, and those whose
// names rules read. A budget that does not cover the subject is left out.
func (s *Settings) Applying(org OrgID, subject *Subject, action *Action, at Time, read []string) []Applied {
	var applied []Applied
	for i := range s.Budgets {
		b := &s.Budgets[i]
		counted := b.concerns(action)
		if !counted && !slices.Contains(read, b.Name) {
			continue
		}
		value, label, covered := b.value(subject)
		if !covered {
			continue
		}
		start, _ := b.Window.Span(at)
		applied = append(applied, Applied{
			Budget: b, Label: label, Counted: counted,
			Key: CounterKey{Org: org, Budget: b.Name, Scope: b.Scope, Measure: b.Measure(), Window: b.Window, Start: start, Value: value},
		})
	}
	return applied
}

// BudgetStanding is where a budget stands for one action.
type BudgetStanding struct {
	Applied
	Counter *BudgetCounter // which Record moves
	Takes   Money          // what the action takes
}

// Stand is where a budget stands before the action. The counter is the budget's for the
// action's subject, and moves when the action is recorded.
func (a Applied) Stand(action *Action, counter *BudgetCounter) BudgetStanding {
	return BudgetStanding{Applied: a, Counter: counter, Takes: a.Budget.takes(action)}
}

// Left is what the budget still has, never below zero.
func (b *Budget) Left(c *BudgetCounter) Money {
	left := b.Limit().Sub(c.Used())
	if left.Cmp(Money{}) < 0 {
		return Money{}
	}
	return left
}

// over reports whether the action is over the budget: nothing is left of it, or less than
// the action takes. What a model's call costs is known after the call, so that one call is
// let through for as long as anything is left.
func (s *BudgetStanding) over() bool {
	used, limit := s.Counter.Used(), s.Budget.Limit()
	if used.Cmp(limit) >= 0 {
		return true
	}
	return s.Budget.Measure() != MeasureCost && used.Add(s.Takes).Cmp(limit) > 0
}

// unpriced reports whether the action cannot be held against a budget of cost: a model was
// or will be called, and nobody knows what for.
func (s *BudgetStanding) unpriced(a *Action) bool {
	return s.Budget.Measure() == MeasureCost && a.Cost == nil && s.Takes.Cmp(Money{}) == 0 && (a.Facts.Model != "" || a.Facts.Tokens() > 0)
}

// budgetMatches holds an action against the budgets above its chain.
func budgetMatches(q *Question) []Match {
	var matches []Match
	for i := range q.Standings {
		s := &q.Standings[i]
		if !s.Counted {
			continue
		}
		m := Match{Name: s.Budget.Rule(), DocsURL: docsOfBudgets, budget: s.Budget}
		switch {
		case s.over():
			m.Outcome, m.Reason = s.Budget.Decision, s.reason()
			m.Remediation = "Wait until the " + string(s.Budget.Window) + " is over, or have an admin raise the limit under budgets in the organization's settings."
		case s.unpriced(q.Action):
			m.Outcome = RequireApproval
			m.Reason = fmt.Sprintf("the call's cost is not known, so it cannot be held against the budget %q of %s a %s", s.Budget.Name, s.Budget.Show(s.Budget.Limit()), s.Budget.Window)
			m.Remediation = "Name a model that the operator's price table knows, with its tokens, or have the operator add the model to the table."
		default:
			continue
		}
		matches = append(matches, m)
	}
	return matches
}

func (s *BudgetStanding) reason() string {
	b, c := s.Budget, s.Counter
	_, end := b.Window.Span(c.Start)
	whose := ""
	if b.Scope != ScopeOrganization {
		whose = fmt.Sprintf(" for the %s %q", b.Scope, s.Label)
	}
	waiting := ""
	if c.Waiting.Cmp(Money{}) > 0 {
		waiting = fmt.Sprintf(", %s of it waiting for approval", b.Show(c.Waiting))
	}
	return fmt.Sprintf("the budget %q of %s a %s%s is used up to %s%s, and the action takes %s; the %s ends at %s",
		b.Name, b.Show(b.Limit()), b.Window, whose, b.Show(c.Used()), waiting, b.Show(s.Takes), b.Window, end)
}

// count enters the action into the counters of the budgets that it is held against, and
// returns what it took of each.
func (q *Question) count(status EventStatus) []BudgetUse {
	if status == EventDenied {
		return nil
	}
	var uses []BudgetUse
	for i := range q.Standings {
		s := &q.Standings[i]
		if !s.Counted || s.Takes.Cmp(Money{}) <= 0 {
			continue
		}
		s.Counter.take(s.Takes, status == EventAwaiting)
		uses = append(uses, BudgetUse{Budget: s.Budget.Name, Counter: s.Key.ID(), Amount: s.Takes})
	}
	return uses
}

// withoutUses are the standings without what an event itself took.
func withoutUses(standings []BudgetStanding, uses []BudgetUse, counted, waiting bool) []BudgetStanding {
	if !counted && !waiting || len(uses) == 0 {
		return standings
	}
	without := slices.Clone(standings)
	for i := range without {
		s := &without[i]
		for _, use := range uses {
			if use.Counter != s.Key.ID() {
				continue
			}
			counter := *s.Counter
			if waiting {
				counter.Waiting = less(counter.Waiting, use.Amount)
			} else {
				counter.Spent = less(counter.Spent, use.Amount)
			}
			s.Counter = &counter
		}
	}
	return without
}

// StandAgain is where budgets stand for an action that was recorded before: by the
// counters that it was counted in, at the limits of now. A budget that has become another
// one since, or is gone, does not apply, nor does one that was put later.
func (s *Settings) StandAgain(uses []BudgetUse, counter func(CounterID) *BudgetCounter) []BudgetStanding {
	var standings []BudgetStanding
	for _, use := range uses {
		c := counter(use.Counter)
		if c == nil {
			continue
		}
		if b := s.Budget(use.Budget); b != nil && c.Of(b) {
			standings = append(standings, BudgetStanding{
				Applied: Applied{Budget: b, Key: c.CounterKey, Label: c.Label, Counted: true}, Counter: c, Takes: use.Amount,
			})
		}
	}
	return standings
}

func (s *Settings) appendBudgets(dst []byte) []byte {
	dst = append(dst, '[')
	for i := range s.Budgets {
		b := &s.Budgets[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		w.String("decision", string(b.Decision))
		w.String("limit", b.Limit().String())
		w.Strings("match", b.Match)
		w.String("measure", string(b.Measure()))
		w.String("name", b.Name)
		w.String("scope", string(b.Scope))
		w.String("window", string(b.Window))
		dst = w.End()
	}
	return append(dst, ']')
}

// Budget finds a budget by its name, nil for none.
func (s *Settings) Budget(name string) *Budget {
	for i := range s.Budgets {
		if s.Budgets[i].Name == name {
			return &s.Budgets[i]
		}
	}
	return nil
}
