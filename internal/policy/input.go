package policy

import "countersign/internal/canon"

// Input is what conditions can read: the action, the chain before the action, and the organization.
// The caller has bounded it: a request has at most 1 MiB, a name 256 characters, an action 1,000
// categories of the client, and 800 domains.
type Input struct {
	AgentName, ParentAgentName string
	ActionType, ActionName     string
	Payload, Metadata          canon.Value // an object or null
	Categories                 []string
	AmountUSD                  float64 // 0 if there is no amount
	HasAmount                  bool
	ExternalDomains            []string
	RecordsModified            int64

	ChainName, Environment string
	ChainMetadata          canon.Value // an object or null
	TotalActions           int64
	FinancialExposureUSD   float64
	Tokens                 int64
	AgeSeconds             float64

	OrgSlug string

	// Step is called after each step of a loop over a payload; it may be nil. A loop may take long,
	// and the caller may let others run in between.
	Step Step

	// Budgets is what is left of each budget by name, in its own unit.
	Budgets map[string]float64
}

// Step is called between the steps of something that may take long.
type Step func()

func (s Step) take() {
	if s != nil {
		s()
	}
}
