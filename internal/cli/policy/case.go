package policy

import (
	"errors"
	"fmt"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/policy"
	"countersign/internal/pricing"
)

// caseTime is the time of every case, so that a decision does not depend on when the case is run.
var caseTime = ledger.TimeOf(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))

// Limits of a case's chain, the same as those of the service.
const (
	maxChainName     = 200 // characters
	maxChainMetadata = 16 << 10
	maxChainCount    = 1 << 53
	maxChainSeconds  = 10 * 365 * 24 * 60 * 60
	maxChainExposure = 1e15
)

// statusOf maps a decision to the status of a recorded event.
var statusOf = map[ledger.Outcome]ledger.EventStatus{
	ledger.Allow: ledger.EventAllowed, ledger.AllowWithFlag: ledger.EventFlagged,
	ledger.RequireApproval: ledger.EventAwaiting, ledger.Deny: ledger.EventDenied,
}

// runCase decides one case and compares the decision with the expected one.
func runCase(compiled *ledger.Policy, file string, c *policy.Case) testedCase {
	tested := testedCase{File: file, Name: c.Name}
	question, err := questionOf(compiled, c)
	if err != nil {
		tested.Faults = faultsOf(err)
		return tested
	}
	decision := ledger.Decide(compiled, question)
	tested.Decision, tested.Reason = string(decision.Outcome), decision.Reason
	tested.Status = string(statusOf[decision.Outcome])
	if decision.PolicyName != "" {
		tested.PolicyName = &decision.PolicyName
	}
	expect := func(what, want, got string) {
		if want != got {
			tested.Faults = append(tested.Faults, fmt.Sprintf("%s should be %s and is %s", what, named(want), named(got)))
		}
	}
	expect("policy_decision", c.Expect.PolicyDecision, tested.Decision)
	if c.Expect.PolicyName != nil {
		expect("policy_name", *c.Expect.PolicyName, decision.PolicyName)
	}
	if c.Expect.Status != "" {
		expect("status", c.Expect.Status, tested.Status)
	}
	return tested
}

func named(text string) string {
	if text == "" {
		return "null"
	}
	return text
}

// questionOf reads the action, the chain and the organization of a case like the API.
func questionOf(compiled *ledger.Policy, c *policy.Case) (*ledger.Question, error) {
	action, actionErr := ledger.ParseAction(c.Action)
	org, orgErr := caseOrganization(c.Organization)
	chain, state, chainErr := caseChain(c.Chain)
	if err := errors.Join(within("action", actionErr), within("organization", orgErr), within("chain", chainErr)); err != nil {
		return nil, err
	}
	standings, err := caseBudgets(compiled, c.Used, org, chain, action)
	if err != nil {
		return nil, within("budgets_used", err)
	}
	return &ledger.Question{Org: org, Chain: chain, State: state, Action: action, Now: caseTime, Standings: standings}, nil
}

// caseBudgets returns the budgets of the case's organization with the use that the case states. The
// case's key has no name, so a budget for named keys covers it.
func caseBudgets(compiled *ledger.Policy, used canon.Value, org *ledger.Organization, chain *ledger.Chain, action *ledger.Action) ([]ledger.BudgetStanding, error) {
	if facts := &action.Facts; facts.Model != "" {
		if cost, ok := pricing.Default().Cost(facts.Model, facts.InputTokens, facts.OutputTokens); ok {
			money := ledger.MoneyFrom(cost)
			action.Cost = &money
		}
	}
	spent := make(map[string]ledger.Money)
	if !used.IsNull() {
		f := canon.NewFields(used)
		for _, member := range f.Members() {
			name := member.Name
			if spent[name] = ledger.MoneyOf(f.Number(name, 0, maxChainExposure)); org.Settings.Budget(name) == nil {
				f.Fault(name, "is not a budget of the case's organization")
			}
		}
		if err := f.Err(); err != nil {
			return nil, err
		}
	}
	subject := &ledger.Subject{Environment: chain.Environment, Agent: action.AgentName, Unnamed: true}
	var standings []ledger.BudgetStanding
	for _, applied := range org.Settings.Applying(org.ID, subject, action, caseTime, compiled.Budgets) {
		counter := ledger.NewBudgetCounter(applied.Key, applied.Label)
		counter.Spent = spent[applied.Budget.Name]
		standings = append(standings, applied.Standing(action, counter))
	}
	return standings, nil
}

func caseOrganization(v canon.Value) (*ledger.Organization, error) {
	org := ledger.Organization{Slug: "default", Name: "Default", Settings: ledger.DefaultSettings()}
	if v.IsNull() {
		return &org, nil
	}
	if slug, given := v.Get("slug"); given {
		if err := ledger.CheckSlug(slug.Str()); err != nil {
			return nil, err
		}
		org.Slug = slug.Str()
	}
	patched, err := org.Patch(v)
	return &patched, err
}

// caseChain returns a chain in the state that the case describes.
func caseChain(v canon.Value) (*ledger.Chain, *ledger.ChainState, error) {
	chain := &ledger.Chain{Name: "test", Environment: ledger.DefaultEnvironment, StartedAt: caseTime}
	state := ledger.NewChainState(caseTime, "")
	if v.IsNull() {
		return chain, state, nil
	}
	f := canon.NewFields(v)
	if f.Has("name") {
		chain.Name = f.RequiredName("name", maxChainName)
	}
	if f.Has("environment") {
		chain.Environment = f.RequiredName("environment", maxChainName)
	}
	chain.Metadata = f.Object("metadata", maxChainMetadata)
	chain.StartedAt = chain.StartedAt.Add(-ledger.Milliseconds(int64(f.Number("age_seconds", 0, maxChainSeconds) * 1000)))
	state.Actions = f.Int("total_actions", 0, maxChainCount)
	state.Tokens = f.Int("tokens", 0, maxChainCount)
	state.Metrics.FinancialExposure = ledger.MoneyOf(f.Number("financial_exposure_usd", 0, maxChainExposure))
	return chain, state, f.Err()
}

// partError is a fault in one part of a case.
type partError struct {
	part string
	error
}

func (e *partError) Unwrap() error { return e.error }

func within(part string, err error) error {
	if err == nil {
		return nil
	}
	return &partError{part, err}
}

// faultsOf lists the faults of a case with their places.
func faultsOf(err error) []string {
	var faults []string
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, inner := range joined.Unwrap() {
			faults = append(faults, faultsOf(inner)...)
		}
		return faults
	}
	var part *partError
	var own *fault.Error
	if !errors.As(err, &part) || !errors.As(err, &own) || len(own.Fields) == 0 {
		return []string{err.Error()}
	}
	for _, field := range own.Fields {
		faults = append(faults, fmt.Sprintf("%s%s %s", part.part, field.Pointer, field.Detail))
	}
	return faults
}
