package policy

import "countersign/internal/canon"

// Input is what conditions can ask about: the action, the chain as it was
// before the action, and the organization. The caller has bounded it: a request
// has at most 1 MiB, a name 256 characters, an action 1,000 categories.
type Input struct {
	AgentName, ParentAgentName string
	ActionType, ActionName     string
	Payload, Metadata          canon.Value // an object, or null for none
	Categories                 []string
	AmountUSD                  float64 // 0 without an amount
	HasAmount                  bool
	ExternalDomains            []string
	RecordsModified            int64

	ChainName, Environment string
	ChainMetadata          canon.Value // an object, or null for none
	TotalActions           int64
	FinancialExposureUSD   float64
	Tokens                 int64
	AgeSeconds             float64

	OrgSlug string

	// Step is called after each step of a loop over a payload; nil for nothing. A loop may
	// take long, and whoever evaluates it may let others run meanwhile.
	Step Step

	// Budgets is what is left of each budget, by its name, in its own unit.
	Budgets map[string]float64
}

// Step is what is done between two steps of something that may take long.
type Step func()

func (s Step) take() {
	if s != nil {
		s()
	}
}
