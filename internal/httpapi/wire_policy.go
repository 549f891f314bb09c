package httpapi

import (
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/service"
)

func appendPolicySummary(dst []byte, p *service.PolicyView) []byte {
	w := canon.BeginObject(dst)
	if p.Tampered {
		w.String("version", fmt.Sprint("v", p.Number))
		w.Bool("in_force", p.InForce)
		w.String("status", "tampered")
		return w.End()
	}
	writePolicy(&w, p)
	return w.End()
}

func writePolicy(w *canon.ObjectWriter, p *service.PolicyView) {
	w.String("version", p.Version)
	w.String("format", p.Format)
	w.Bool("in_force", p.InForce)
	w.Bool("fast_path", p.FastPath)
	w.Int("rule_count", int64(p.RuleCount))
	w.String("created_at", p.CreatedAt.String())
	w.StringOrNull("created_by", p.CreatedBy)
}

func appendPolicy(dst []byte, p *service.PolicyView) []byte {
	w := canon.BeginObject(dst)
	writePolicy(&w, p)
	if p.Settings == nil {
		w.Null("settings")
	} else {
		w.Raw("settings", p.Settings.DecidingSettings())
	}
	w.String("document", string(p.Document))
	rules := append(w.Name("rules"), '[')
	for i := range p.Rules {
		if i > 0 {
			rules = append(rules, ',')
		}
		rule, r := canon.BeginObject(rules), &p.Rules[i]
		rule.String("name", r.Name)
		rule.String("when", r.When)
		rule.String("decision", r.Decision)
		rule.String("reason", r.Reason)
		rule.StringOrNull("remediation", r.Remediation)
		rule.StringOrNull("docs_url", r.DocsURL)
		rule.String("mode", r.Mode)
		rule.Strings("approvers", r.Approvers)
		rules = rule.End()
	}
	w.Value(append(rules, ']'))
	return w.End()
}

func appendSimulation(dst []byte, report *service.SimulationReport) []byte {
	w := canon.BeginObject(dst)
	w.String("policy_version", report.PolicyVersion)
	w.Int("events", report.Events)
	w.Int("chains", report.Chains)
	w.Int("changed", report.Changed)
	w.Bool("complete", report.Complete)
	changes := append(w.Name("changes"), '[')
	for i, change := range report.Changes {
		if i > 0 {
			changes = append(changes, ',')
		}
		one := canon.BeginObject(changes)
		one.String("from", string(change.From))
		one.String("to", string(change.To))
		one.Int("count", change.Count)
		changes = one.End()
	}
	w.Value(append(changes, ']'))
	examples := append(w.Name("examples"), '[')
	for i := range report.Examples {
		if i > 0 {
			examples = append(examples, ',')
		}
		examples = appendExample(examples, &report.Examples[i])
	}
	w.Value(append(examples, ']'))
	return w.End()
}

func appendExample(dst []byte, c *service.ChangedDecision) []byte {
	w := canon.BeginObject(dst)
	w.String("chain_id", c.Chain.String())
	w.String("event_id", c.Event.ID.String())
	w.Int("sequence", c.Event.Sequence)
	w.String("agent_name", c.Event.Action.AgentName)
	w.String("action_type", c.Event.Action.ActionType)
	w.String("action_name", c.Event.Action.ActionName)
	w.String("recorded_at", c.Event.RecordedAt.String())
	w.String("policy_decision", string(c.Event.Decision.Outcome))
	w.String("candidate_decision", string(c.Outcome))
	w.StringOrNull("policy_name", c.PolicyName)
	w.String("decision_reason", c.Reason)
	return w.End()
}
