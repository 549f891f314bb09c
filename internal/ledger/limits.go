package ledger

import (
	"slices"
	"time"

	"countersign/internal/canon"
)

// ClientLimits are the limits that a client requested when it opened a chain. They can tighten the
// organization's settings but not loosen them: every rule checks both.
type ClientLimits struct {
	Single           *Money
	Cumulative       *Money
	DomainsAllowlist []string // nil: not given
	HighRiskAgents   []string
	ApprovalHours    float64 // 0: not given
	TimeoutSeconds   float64 // 0: not given
	CumulativeDeny   bool    // deny above the cumulative threshold instead of requiring approval
	Notify           []string
}

// parseClientLimits reads policy_config and checks its types and bounds.
func parseClientLimits(f *canon.Fields) ClientLimits {
	return ClientLimits{
		Single:           parseAmount(f, "financial_approval_threshold_usd"),
		Cumulative:       parseAmount(f, "cumulative_financial_threshold_usd"),
		DomainsAllowlist: parseDomains(f, "external_domains_allowlist"),
		HighRiskAgents:   f.Texts("high_risk_agents", maxListed, maxName),
		ApprovalHours:    f.Number("approval_timeout_hours", minTimeoutHours, maxTimeoutHours),
		TimeoutSeconds:   f.Number("chain_timeout_seconds", 0, maxSeconds),
		CumulativeDeny:   f.OneOf("cumulative_financial_threshold_action", string(RequireApproval), string(Deny)) == string(Deny),
		Notify:           parseNotify(f, "notify"),
	}
}

// parseNotify accepts one e-mail address or a list. They are notified like fallback approvers.
func parseNotify(f *canon.Fields, name string) []string {
	v, _ := f.Get(name)
	if v.Kind() != canon.String {
		return parseAddresses(f, name)
	}
	address := f.Text(name, maxAddress)
	if !plausibleAddress(address) {
		f.Fault(name, "must be an e-mail address, or a list of them")
	}
	return []string{address}
}

// EffectiveLimits are the limits in force for a chain: the tighter of the client's and the
// organization's.
type EffectiveLimits struct {
	Single           Money
	Cumulative       Money
	CumulativeAction Outcome
	DomainsAllowlist []string // nil: every domain
	HighRiskAgents   []string
	ApprovalHours    float64
	TimeoutSeconds   float64 // 0: none
	AutoPause        AutoPause
}

// Effective returns the limits in force for a chain of the organization.
func (s *Settings) Effective(client *ClientLimits) *EffectiveLimits {
	return &EffectiveLimits{
		Single: tighter(s.FinancialThreshold, client.Single), Cumulative: tighter(s.CumulativeThreshold, client.Cumulative),
		CumulativeAction: client.cumulativeAction(), DomainsAllowlist: onBothLists(s.ExternalDomainsAllowlist, client.DomainsAllowlist),
		HighRiskAgents: unite(s.HighRiskAgents, client.HighRiskAgents), ApprovalHours: approvalHours(s, client),
		TimeoutSeconds: client.TimeoutSeconds, AutoPause: s.AutoPause,
	}
}

func (l *ClientLimits) cumulativeAction() Outcome {
	if l.CumulativeDeny {
		return Deny
	}
	return RequireApproval
}

func (l *ClientLimits) cumulativeRemediation() string {
	const raise = "An admin can raise cumulative_financial_threshold_usd; a client's own threshold goes with its chains."
	if l.CumulativeDeny {
		return "The client asked for the denial with cumulative_financial_threshold_action. " + raise
	}
	return "Wait until a reviewer decides. " + raise
}

// onBothLists returns the domains that two allowlists both permit. A nil list permits everything. A
// domain of one list counts if it is on the other or a subdomain of one that is.
func onBothLists(one, other []string) []string {
	switch {
	case one == nil:
		return other
	case other == nil:
		return one
	}
	both := []string{}
	for _, lists := range [][2][]string{{one, other}, {other, one}} {
		for _, domain := range lists[0] {
			covered := slices.ContainsFunc(lists[1], func(wider string) bool { return within(domain, wider) })
			if covered && !slices.Contains(both, domain) {
				both = append(both, domain)
			}
		}
	}
	return both
}

// AppendTo encodes the limits for responses.
func (l *EffectiveLimits) AppendTo(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.Number("approval_timeout_hours", l.ApprovalHours)
	w.Value(l.AutoPause.appendTo(w.Name("auto_pause")))
	if l.TimeoutSeconds > 0 {
		w.Number("chain_timeout_seconds", l.TimeoutSeconds)
	} else {
		w.Null("chain_timeout_seconds")
	}
	w.String("cumulative_financial_threshold_action", string(l.CumulativeAction))
	w.Number("cumulative_financial_threshold_usd", l.Cumulative.Float())
	if l.DomainsAllowlist == nil {
		w.Null("external_domains_allowlist")
	} else {
		w.Strings("external_domains_allowlist", l.DomainsAllowlist)
	}
	w.Number("financial_approval_threshold_usd", l.Single.Float())
	w.Strings("high_risk_agents", l.HighRiskAgents)
	return w.End()
}

// parseAmount reads an optional amount, and returns nil if it is missing or null.
func parseAmount(f *canon.Fields, name string) *Money {
	number := f.Number(name, 0, maxAmount)
	if !f.Has(name) {
		return nil
	}
	amount := MoneyOf(number)
	return &amount
}

// approvalTime returns how long a person has to decide.
func approvalTime(settings *Settings, limits *ClientLimits) time.Duration {
	return hours(approvalHours(settings, limits))
}

// hours returns a number of hours in whole milliseconds, the precision of Time.
func hours(n float64) time.Duration { return Milliseconds(int64(n * 3_600_000)) }

func approvalHours(settings *Settings, limits *ClientLimits) float64 {
	if limits.ApprovalHours > 0 && limits.ApprovalHours < settings.ApprovalTimeoutHours {
		return limits.ApprovalHours
	}
	return settings.ApprovalTimeoutHours
}
