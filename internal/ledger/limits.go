package ledger

// ClientLimits are what a client asked for when it opened a chain. They can
// tighten the organization's settings and never loosen them: every rule holds an
// action against both.
type ClientLimits struct {
	Single           *Money
	Cumulative       *Money
	DomainsAllowlist []string // nil: none given
	HighRiskAgents   []string
	ApprovalHours    float64 // 0: none given
	TimeoutSeconds   float64 // 0: none given
}

// parseClientLimits reads policy_config and holds it to its types and bounds.
func parseClientLimits(f *Fields) ClientLimits {
	return ClientLimits{
		Single:           parseThreshold(f, "financial_approval_threshold_usd"),
		Cumulative:       parseThreshold(f, "cumulative_financial_threshold_usd"),
		DomainsAllowlist: parseDomains(f, "external_domains_allowlist"),
		HighRiskAgents:   f.Texts("high_risk_agents", maxListed, maxName),
		ApprovalHours:    f.Number("approval_timeout_hours", minTimeoutHours, maxTimeoutHours),
		TimeoutSeconds:   f.Number("chain_timeout_seconds", 0, maxSeconds),
	}
}

func parseThreshold(f *Fields, name string) *Money {
	number := f.Number(name, 0, maxAmount)
	if !f.Has(name) {
		return nil
	}
	limit := MoneyOf(number)
	return &limit
}

// approvalTime is how long a person has to decide.
func approvalTime(settings *Settings, limits *ClientLimits) Time {
	hours := settings.ApprovalTimeoutHours
	if limits.ApprovalHours > 0 && limits.ApprovalHours < hours {
		hours = limits.ApprovalHours
	}
	const hour = 60 * 60 * 1000
	return Time(hours * hour)
}
