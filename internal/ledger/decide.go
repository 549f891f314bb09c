package ledger

import (
	"fmt"
	"slices"

	"countersign/internal/canon"
)

// Outcome is a policy's decision on an action.
type Outcome string

// The outcomes, mildest first.
const (
	Allow           Outcome = "allow"
	AllowWithFlag   Outcome = "allow_with_flag"
	RequireApproval Outcome = "require_approval"
	Deny            Outcome = "deny"
)

var strictness = map[Outcome]int{Allow: 0, AllowWithFlag: 1, RequireApproval: 2, Deny: 3}

// StricterThan reports whether an outcome permits less than another.
func (o Outcome) StricterThan(other Outcome) bool { return strictness[o] > strictness[other] }

func (o Outcome) status() EventStatus {
	switch o {
	case Allow:
		return EventAllowed
	case AllowWithFlag:
		return EventFlagged
	case RequireApproval:
		return EventAwaiting
	default:
		return EventDenied
	}
}

// Source says who decided.
type Source string

// The sources of a decision.
const (
	SourceBackend  Source = "backend_evaluation"
	SourceFastPath Source = "local_fast_path"
	SourceHuman    Source = "human_approval"
	SourceOffline  Source = "offline_stub"
)

// Mode says whether a policy is enforced or only reports what it would have decided.
type Mode string

// The modes of evaluation.
const (
	Enforce Mode = "enforce"
	Shadow  Mode = "shadow"
)

// Decision is the decision on one action, with its reasons.
type Decision struct {
	Outcome          Outcome
	Reason           string
	Source           Source
	PolicyName       string
	PolicyVersion    string
	KillSwitchActive bool
	PauseReason      string
	Remediation      string
	DocsURL          string
	Mode             Mode
	Shadow           Outcome
	EstimatedCost    *Money
	AutoPaused       bool
	// Matched lists all rules that applied, strictest first, so that readers do not learn of only
	// one.
	Matched []MatchedRule

	// Approvers are the approvers named by the rules that require approval. They are not part of
	// the event.
	Approvers []string
	// Over are the budgets that the action exceeds or cannot be checked against. They are not part
	// of the event.
	Over []*Budget
}

// MatchedRule is a rule that applied to an action, as shown in decisions.
type MatchedRule struct {
	Name    string
	Outcome Outcome
	Reason  string
	Shadow  bool // it only reports what it would have decided
}

// maxMatched bounds how many rules a decision lists.
const maxMatched = 20

// matchedRules lists the rules that applied, strictest first and otherwise in the order of
// evaluation.
func matchedRules(matches []Match, allShadow bool) []MatchedRule {
	rules := make([]MatchedRule, 0, len(matches))
	for i := range matches {
		m := &matches[i]
		rules = append(rules, MatchedRule{
			Name: m.Name, Outcome: m.Outcome, Reason: bounded(m.Reason), Shadow: (m.Shadow || allShadow) && !m.stop,
		})
	}
	slices.SortStableFunc(rules, func(a, b MatchedRule) int { return strictness[b.Outcome] - strictness[a.Outcome] })
	return rules[:min(len(rules), maxMatched)]
}

// matchedFirst puts rules that matched later before the others.
func (d *Decision) matchedFirst(rules ...MatchedRule) {
	d.Matched = slices.Concat(rules, d.Matched)
	d.Matched = d.Matched[:min(len(d.Matched), maxMatched)]
}

// AppendMatched encodes matched rules for decisions, events and approvals.
func AppendMatched(dst []byte, rules []MatchedRule) []byte {
	return appendObjects(dst, rules, func(w *canon.ObjectWriter, rule *MatchedRule) {
		w.String("decision", string(rule.Outcome))
		w.String("name", rule.Name)
		w.String("reason", rule.Reason)
		w.Bool("shadow", rule.Shadow)
	})
}

// matchedRules decodes the result of AppendMatched. Older records have none.
func (r *recordReader) matchedRules() []MatchedRule {
	var rules []MatchedRule
	r.each("matched_rules", func(inner *recordReader) {
		rules = append(rules, MatchedRule{
			Name: inner.Text("name", maxStored), Outcome: Outcome(inner.Text("decision", maxName)),
			Reason: inner.Text("reason", maxStored), Shadow: inner.Bool("shadow"),
		})
	})
	return rules
}

// Violated reports whether a client allowed something that the service would have stopped or
// flagged.
func (d *Decision) Violated() bool {
	return d.Source != SourceBackend && d.Mode == Enforce && d.Shadow.StricterThan(Allow)
}

// Policy is what an action is checked against besides the built-in rules.
type Policy struct {
	Version string
	Rules   Rules // nil for none
	// FastPath says whether clients may decide harmless actions themselves.
	FastPath bool
	// Budgets are the names of the budgets that rules read.
	Budgets []string
}

// Rules are an organization's own rules.
type Rules interface {
	// Examine evaluates everything that depends only on the action and stores the result in the
	// action. It may take long, so it is called before a transaction begins.
	Examine(*Action)
	// Examined reports whether exactly these rules have examined the action.
	Examined(*Action) bool
	// Match returns every rule whose condition is true for the question. A rule that could not be
	// evaluated is included, as a denial that says so. If the action was not examined, Match
	// examines it.
	Match(*Question) []Match
}

// Match is a rule that applies to an action.
type Match struct {
	Name        string
	Outcome     Outcome
	Reason      string
	Remediation string
	DocsURL     string
	Shadow      bool
	Approvers   []string

	pause  bool    // for the chain's limits: the action triggers an auto-pause
	stop   bool    // for the kill switch: never in shadow
	budget *Budget // the budget that the action exceeds; nil for other rules
}

// BuiltinPolicy is the policy of an organization without its own policy set. Its version is the
// hash of the empty rule set.
var BuiltinPolicy = &Policy{Version: PolicyVersion(0, []byte(`{"rules":[]}`)), FastPath: true}

// PolicyVersion names a policy set by its number and the hash of its canonical form.
func PolicyVersion(number int64, canonical []byte) string {
	return fmt.Sprintf("v%d+%s", number, PayloadHash(canonical)[:12])
}

// Question is everything that a decision depends on. It is read-only.
type Question struct {
	Org    *Organization
	Chain  *Chain
	State  *ChainState
	Action *Action
	Now    Time
	// Recorded is the state of the chain in which the action was recorded, if that is one that
	// Chain continues. It is nil for Chain itself.
	Recorded *ChainState
	// Leased says that the service had let the client decide this action.
	Leased bool

	// Standings are the budgets that the action counts against and those that rules read. The
	// caller has loaded them; without them no budget applies.
	Standings []BudgetStanding

	resumed bool // ignore a pause of the chain
}

// Decide checks an action against the kill switch, the chain's limits, the organization's own rules
// and the built-in ones. It is the only place where actions are decided. The strictest rule wins,
// and among equals the first in that order: an organization that wrote a rule wants its own words
// to be read.
func Decide(policy *Policy, q *Question) Decision {
	d := Decision{
		Outcome: Allow, Source: SourceBackend, PolicyVersion: policy.Version, Mode: Enforce,
		EstimatedCost: q.Action.Cost, KillSwitchActive: q.Org.Controls.KillSwitch.Active,
	}
	if q.Action.ActionType == ActionTypeLateOutcome { // not an action but the outcome of one
		return d
	}
	matches := limitMatches(q)
	var own []Match
	if policy.Rules != nil && !d.KillSwitchActive {
		own = policy.Rules.Match(q)
		matches = append(matches, own...)
	}
	if !d.KillSwitchActive {
		matches = append(append(matches, builtinMatches(q)...), budgetMatches(q)...)
		if len(own) == 0 { // an organization with a rule about the action knows of it
			matches = append(matches, noteMatches(q)...)
		}
	}
	enforced, shadowed := strictest(matches, q.Org.Settings.EvaluationMode == Shadow)
	if enforced != nil && enforced.Outcome == RequireApproval {
		if refusal := q.cannotAsk(); refusal != nil {
			enforced, matches = refusal, append(matches, *refusal)
		}
	}
	for i := range matches {
		if over := matches[i].budget; over != nil {
			d.Over = append(d.Over, over)
		}
	}
	d.Matched = matchedRules(matches, q.Org.Settings.EvaluationMode == Shadow)
	if enforced != nil {
		d.explain(enforced)
		d.Outcome, d.AutoPaused = enforced.Outcome, enforced.pause
	}
	if d.Outcome == RequireApproval {
		d.Approvers = approversOf(matches)
	}
	switch {
	case d.KillSwitchActive:
		d.PauseReason = q.Org.Controls.KillSwitch.Reason
	case d.AutoPaused:
		d.PauseReason = d.Reason
	default:
		d.onTrial(q.Org.Settings.EvaluationMode, shadowed)
	}
	if q.Action.Source != "" {
		d.reconcile(q)
	}
	return d
}

// onTrial records what enforcing would have decided, if a rule or the whole organization is in
// shadow.
func (d *Decision) onTrial(mode Mode, shadowed *Match) {
	if mode == Shadow {
		d.Mode, d.Shadow = Shadow, d.Outcome
	}
	if shadowed != nil && shadowed.Outcome.StricterThan(d.Outcome) {
		if d.Outcome == Allow {
			d.explain(shadowed)
		}
		d.Mode, d.Shadow = Shadow, shadowed.Outcome
	}
}

func (d *Decision) explain(m *Match) {
	d.PolicyName, d.Reason, d.Remediation, d.DocsURL = m.Name, bounded(m.Reason), bounded(m.Remediation), bounded(m.DocsURL)
}

// strictest returns the first of the strictest enforced matches and of the strictest shadow
// matches. A rule that names approvers comes before those that do not: a reviewer who is refused
// must learn which rule does it.
func strictest(matches []Match, allShadow bool) (enforced, shadowed *Match) {
	for i := range matches {
		m := &matches[i]
		best := &enforced
		if (m.Shadow || allShadow) && !m.stop {
			best = &shadowed
		}
		if *best == nil || m.Outcome.StricterThan((*best).Outcome) || m.namesApproversBeside(*best) {
			*best = m
		}
	}
	return enforced, shadowed
}

func (m *Match) namesApproversBeside(other *Match) bool {
	return m.Outcome == RequireApproval && other.Outcome == RequireApproval && len(m.Approvers) > 0 && len(other.Approvers) == 0
}

// approversOf returns the approvers whom every rule admits that requires approval and names
// approvers, so that no rule's list is lost because another rule matches too. If nobody is on all
// lists, the first list applies.
func approversOf(matches []Match) []string {
	var admitted []string
	for _, m := range matches {
		if m.Outcome != RequireApproval || m.Shadow || len(m.Approvers) == 0 {
			continue
		}
		if admitted == nil {
			admitted = m.Approvers
			continue
		}
		both := slices.DeleteFunc(slices.Clone(admitted), func(name string) bool { return !slices.Contains(m.Approvers, name) })
		if len(both) > 0 {
			admitted = both
		}
	}
	return admitted
}

// reconcile turns the service's decision into a record of what a client allowed. It happened, so it
// counts as allowed; if the service would have been stricter, the event is flagged and says so.
// What a lease covered was allowed by the service itself, so it stays allowed whatever has changed
// since.
func (d *Decision) reconcile(q *Question) {
	d.Source, d.Approvers = q.Action.Source, nil
	if d.Outcome == Allow {
		return
	}
	if q.Leased {
		d.explain(&Match{Reason: "the client decided under a lease that the service had granted"})
		d.Outcome, d.AutoPaused, d.Mode, d.Shadow = Allow, false, Enforce, ""
		if !d.KillSwitchActive {
			d.PauseReason = ""
		}
		return
	}
	// A gap is not an action, and a note stops nothing. Neither means that the client allowed
	// something that the service would not have.
	if q.Action.ActionType != ActionTypeGap && !d.isNote() {
		d.Mode, d.Shadow = Enforce, d.Outcome
	}
	d.Outcome = AllowWithFlag
}

// isNote reports whether the decision is just an informational flag of a built-in rule.
func (d *Decision) isNote() bool {
	return d.Outcome == AllowWithFlag && slices.Contains(noteRules, d.PolicyName) && d.DocsURL == docsOfRules+"#"+d.PolicyName
}

func (r *recordReader) decision() Decision {
	return Decision{
		Outcome:          Outcome(r.Text("policy_decision", maxName)),
		Reason:           r.Text("decision_reason", maxStored),
		Source:           Source(r.Text("decision_source", maxName)),
		PolicyName:       r.Text("policy_name", maxName),
		PolicyVersion:    r.Text("policy_version", maxName),
		KillSwitchActive: r.Bool("kill_switch_active"),
		PauseReason:      r.Text("pause_reason", maxStored),
		Remediation:      r.Text("remediation", maxStored),
		DocsURL:          r.Text("docs_url", maxStored),
		Mode:             Mode(r.Text("evaluation_mode", maxName)),
		Shadow:           Outcome(r.Text("shadow_decision", maxName)),
		EstimatedCost:    r.money("estimated_cost_usd"),
		AutoPaused:       r.Bool("auto_paused"),
		Matched:          r.matchedRules(),
	}
}

// Halted returns the decision to send while the kill switch is active, whatever was decided before:
// nothing that was allowed may still start. A denial keeps its reason and also says that the switch
// is active, because a client would otherwise assume that it was lifted.
func (d Decision) Halted(k *KillSwitch) Decision {
	if !k.Active {
		return d
	}
	if d.Outcome != Deny {
		stop := killSwitchMatch(k)
		d.explain(&stop)
		// It reads as Decide's own does: the switch is a rule that matched, and it is never in shadow.
		d.Outcome, d.Mode, d.Shadow = Deny, Enforce, ""
		d.matchedFirst(matchedRules([]Match{stop}, false)...)
	}
	d.KillSwitchActive, d.PauseReason = true, k.Reason
	return d
}
