package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"countersign/internal/classify"
)

// Names of the built-in rules in decisions.
const (
	RuleKillSwitch          = "kill_switch"
	RuleAutoPause           = "auto_pause"
	RuleChainTimeout        = "chain_timeout"
	RuleTooManyApprovals    = "approval_limit"
	RuleUnbound             = "unbound_redaction"
	RuleHighRiskAgent       = "high_risk_agents"
	RuleSingleThreshold     = "financial_approval_threshold"
	RuleCumulativeThreshold = "cumulative_financial_threshold"
	RuleAmountMissing       = "financial_amount_missing"
	RuleDomainAllowlist     = "external_domains_allowlist"
	RuleShell               = "shell_command"
	RuleSQL                 = "sql_write"
	RuleDeletion            = "deletion"
	RuleMail                = "outbound_mail"
	RuleGap                 = "dropped_events"
)

// noteRules only flag what people want to know about. A client that allowed such an action itself,
// for example offline, has violated nothing.
var noteRules = []string{RuleShell, RuleSQL, RuleDeletion, RuleMail}

// docsOfRules is the document that describes the built-in rules, each under its name.
const docsOfRules = "docs/rules.md"

// builtin returns a match of a built-in rule. It says what to do and where to read more.
func builtin(name string, outcome Outcome, reason, remediation string) Match {
	return Match{Name: name, Outcome: outcome, Reason: reason, Remediation: remediation, DocsURL: docsOfRules + "#" + name}
}

// maxApprovals bounds the number of approvals in one chain, because its receipt lists all of them.
const maxApprovals = 1000

// limitMatches checks an action against what stops a chain altogether. While the kill switch is
// active, nothing else is checked.
func limitMatches(q *Question) []Match {
	if k := &q.Org.Controls.KillSwitch; k.Active {
		return []Match{killSwitchMatch(k)}
	}
	var matches []Match
	if reason := q.pauseReason(); reason != "" && !q.resumed {
		m := builtin(RuleAutoPause, Deny, reason,
			"An admin can resume the chain, which grants the same limits again, or raise the organization's auto_pause limits.")
		m.pause = true
		matches = append(matches, m)
	}
	if q.timedOut() && !q.Action.marker() {
		matches = append(matches, builtin(RuleChainTimeout, Deny,
			fmt.Sprintf("the chain is older than its timeout of %v seconds", q.Chain.Limits.TimeoutSeconds), "Open a new chain."))
	}
	return matches
}

// timedOut reports whether the chain is older than its client allows.
func (q *Question) timedOut() bool {
	limit := q.Chain.Limits.TimeoutSeconds
	return limit > 0 && seconds(q.Now.Sub(q.State.Begun(q.Chain))) > limit
}

// builtinMatches checks an action against the built-in rules, in the order in which they are listed
// if several are equally strict.
func builtinMatches(q *Question) []Match {
	var matches []Match
	if q.Action.ActionType == ActionTypeGap {
		return []Match{builtin(RuleGap, AllowWithFlag, "the client dropped events while it could not reach the service",
			"Find out why the service could not be reached, and raise the client's offline_buffer_max_events if it may happen again.")}
	}
	add := func(name string, outcome Outcome, reason, remediation string) {
		matches = append(matches, builtin(name, outcome, reason, remediation))
	}
	if q.highRisk() {
		add(RuleHighRiskAgent, RequireApproval, "every action of the high-risk agent \""+q.Action.AgentName+"\" requires approval",
			"Wait until a reviewer decides. An admin can take the agent off high_risk_agents; a client's own list goes with its chains.")
	}
	if q.Action.Facts.has(CategoryFinancial) {
		q.financial(add)
	}
	if domain := q.strangeDomain(); domain != "" {
		add(RuleDomainAllowlist, AllowWithFlag, fmt.Sprintf("the domain %s is not on the allowlist", domain),
			"Add the domain to external_domains_allowlist if agents may contact it.")
	}
	return matches
}

// noteMatches flags what people want to know about if no rule of the organization matches. A flag
// is a note and delays nothing. An obviously safe action is never flagged.
func noteMatches(q *Question) (matches []Match) {
	if q.Action.marker() {
		return nil
	}
	note := func(name, reason, remediation string) {
		matches = append(matches, builtin(name, AllowWithFlag, reason, remediation))
	}
	found := classify.NameRisks(q.Action.ActionName)
	if found.Shell {
		note(RuleShell, "the action runs a command on a machine",
			"Put a policy in force that says which commands may run, such as the starter pack: countersign policy put --pack starter.")
	}
	if q.Action.Facts.WritesSQL {
		note(RuleSQL, "the action changes a database by a statement of its own",
			"Let agents read with an account that cannot write, or put a policy in force, such as the starter pack.")
	}
	if found.Deletion {
		note(RuleDeletion, "the action deletes something",
			"Put a policy in force that says what may be deleted, such as the starter pack.")
	}
	if domain := q.unlistedDomain(); found.Mail && domain != "" {
		note(RuleMail, fmt.Sprintf("the action sends mail to %s, which is on no allowlist", domain),
			"Add the domain to external_domains_allowlist if agents may write there.")
	}
	return matches
}

// unlistedDomain returns the first domain that is on no allowlist of the organization. With
// allowlists it is strangeDomain; without any, every domain is unlisted.
func (q *Question) unlistedDomain() string {
	if q.Org.Settings.ExternalDomainsAllowlist == nil && q.Chain.Limits.DomainsAllowlist == nil && len(q.Action.Facts.ExternalDomains) > 0 {
		return q.Action.Facts.ExternalDomains[0]
	}
	return q.strangeDomain()
}

func killSwitchMatch(k *KillSwitch) Match {
	m := builtin(RuleKillSwitch, Deny, "the organization's kill switch is active: "+k.Reason, "Wait until an admin deactivates the kill switch.")
	m.stop = true
	return m
}

// noMoreApprovals denies an action that needs approval in a chain that has requested too many.
var noMoreApprovals = builtin(RuleTooManyApprovals, Deny,
	fmt.Sprintf("the chain has asked for %d approvals, the most it can", maxApprovals), "Complete the chain and open a new one.")

// unbindable denies an action that needs approval but could not be shown to be the approved one.
var unbindable = builtin(RuleUnbound, Deny,
	"the action needs approval, and the client redacted or cut values without a digest that binds them",
	"Record the action in a chain that was opened while the service could be reached.")

// cannotAsk returns the denial of an action that needs approval and for which nobody can be asked,
// or nil.
func (q *Question) cannotAsk() *Match {
	switch {
	case q.State.Approvals >= maxApprovals:
		return &noMoreApprovals
	case q.Action.Source == "" && q.Action.unbindable():
		return &unbindable
	}
	return nil
}

func seconds(span time.Duration) float64 { return float64(span.Milliseconds()) / 1000 }

// pauseReason says which limit the action triggers, or has triggered before.
func (q *Question) pauseReason() string {
	s, limits := q.State, &q.Org.Settings.AutoPause
	switch {
	case s.Status == ChainAutoPaused:
		return cmp.Or(s.PauseReason, "the chain is paused")
	case q.Action.marker():
		return "" // markers do not count against limits
	case s.TotalActions()-s.Granted.Actions >= limits.MaxEvents:
		return fmt.Sprintf("the chain has reached its limit of %d events", limits.MaxEvents)
	case seconds(q.Now.Sub(max(s.Begun(q.Chain), s.Granted.At))) > float64(limits.MaxDurationSeconds):
		return fmt.Sprintf("the chain has run longer than its limit of %d seconds", limits.MaxDurationSeconds)
	case s.TotalTokens()+s.Pending.Tokens+q.Action.Facts.Tokens()-s.Granted.Tokens > limits.MaxTokens:
		return fmt.Sprintf("the chain would use more than its limit of %d tokens", limits.MaxTokens)
	}
	return ""
}

// highRisk compares folded names: case, surrounding blanks and invisible characters do not make
// another agent.
func (q *Question) highRisk() bool {
	if len(q.Org.Settings.HighRiskAgents)+len(q.Chain.Limits.HighRiskAgents) == 0 {
		return false
	}
	name := classify.FoldName(q.Action.AgentName)
	same := func(listed string) bool { return classify.FoldName(listed) == name }
	return slices.ContainsFunc(q.Org.Settings.HighRiskAgents, same) || slices.ContainsFunc(q.Chain.Limits.HighRiskAgents, same)
}

// financial checks a payment against the thresholds. Amounts that wait for approval count towards
// the chain's exposure, so that two concurrent actions cannot both pass because neither is decided.
func (q *Question) financial(add func(string, Outcome, string, string)) {
	amount := q.Action.Facts.Amount
	if q.Action.Facts.AmountUnusable {
		add(RuleAmountMissing, RequireApproval, "an amount that cannot be read, or is in another currency than USD, cannot be held against a threshold",
			"Send every amount of the action as a number of US dollars, or as a text like 1200.50.")
	} else if amount == nil {
		add(RuleAmountMissing, RequireApproval, "a financial action without an amount in USD cannot be held against a threshold",
			"Send amount_usd in the payload or the metadata.")
	} else if limit := tighter(q.Org.Settings.FinancialThreshold, q.Chain.Limits.Single); amount.Cmp(limit) > 0 {
		add(RuleSingleThreshold, RequireApproval, fmt.Sprintf("%s USD is above the threshold of %s USD for a single transaction", amount.Fixed(), limit.Fixed()),
			"Wait until a reviewer decides. An admin can raise financial_approval_threshold_usd; a client's own threshold goes with its chains.")
	}
	waiting := q.State.Pending.Exposure
	exposure := q.State.TotalExposure().Add(waiting)
	if limit := tighter(q.Org.Settings.CumulativeThreshold, q.Chain.Limits.Cumulative); exposure.Cmp(limit) > 0 {
		part := ""
		if waiting.Cmp(Money{}) > 0 { // the chain's metrics do not include it
			part = fmt.Sprintf(" (including %s USD still waiting for approval)", waiting.Fixed())
		}
		if carried := q.State.Carried.Exposure; carried.Cmp(Money{}) > 0 {
			part += fmt.Sprintf(" (including %s USD of the chains that it continues)", carried.Fixed())
		}
		add(RuleCumulativeThreshold, q.Chain.Limits.cumulativeAction(),
			fmt.Sprintf("the chain's exposure of %s USD%s is above the threshold of %s USD", exposure.Fixed(), part, limit.Fixed()),
			q.Chain.Limits.cumulativeRemediation())
	}
}

func tighter(own Money, client *Money) Money {
	if client != nil && client.Cmp(own) < 0 {
		return *client
	}
	return own
}

// strangeDomain returns the first domain that is missing from an allowlist. A domain must be on
// every existing list.
func (q *Question) strangeDomain() string {
	for _, list := range [][]string{q.Org.Settings.ExternalDomainsAllowlist, q.Chain.Limits.DomainsAllowlist} {
		if list == nil {
			continue
		}
		for _, domain := range q.Action.Facts.ExternalDomains {
			// A host that cannot be looked up is nobody's: some programs read its end as a path.
			ascii, ok := classify.ASCIIDomain(domain)
			if !ok || !slices.ContainsFunc(list, func(allowed string) bool { return within(ascii, allowed) }) {
				return domain
			}
		}
	}
	return ""
}

// within reports whether a domain equals the other or is a subdomain of it.
func within(domain, other string) bool {
	prefix, ok := strings.CutSuffix(domain, other)
	return ok && (prefix == "" || strings.HasSuffix(prefix, "."))
}
