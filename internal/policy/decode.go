package policy

import (
	"fmt"
	"slices"
	"strings"

	"countersign/internal/canon"
)

const (
	modeEnforce = "enforce"
	modeShadow  = "shadow"

	requireApproval = "require_approval"
)

var (
	decisions = []string{"allow", "allow_with_flag", requireApproval, "deny"}
	modes     = []string{modeEnforce, modeShadow}
)

// decoder converts nodes to rules and reports every problem that it finds. Its results are usable
// only if there is none.
type decoder struct {
	*problems
	rule string // what problems are attributed to
	// stored says that the document is already in force. slow names its rules that would be refused
	// today.
	stored bool
	slow   map[string]bool
	// outline says that conditions are not compiled.
	outline bool
}

func (d *decoder) refuse(n *node, format string, args ...any) {
	d.report(d.rule, n.start, format, args...)
}

func (d *decoder) document(root *node) *Set {
	set := &Set{}
	if !d.isA(root, canon.Object, "the document must be an object with \"rules\"") {
		return set
	}
	var rules *node
	for _, m := range root.members {
		switch m.name.value {
		case "rules":
			rules = m.value
		case "fast_path":
			if d.isA(m.value, canon.Bool, "fast_path must be true or false") {
				allowed := m.value.value == "true"
				set.fastPath = &allowed
			}
		default:
			d.refuse(m.name, "unknown field %q: a document has rules and fast_path", m.name.value)
		}
	}
	if rules == nil {
		d.refuse(root, "rules is missing: write \"rules: []\" for none")
		return set
	}
	if d.isA(rules, canon.Array, "rules must be a list") {
		d.rules(set, rules)
	}
	return set
}

func (d *decoder) rules(set *Set, list *node) {
	if len(list.items) > MaxRules {
		d.refuse(list.items[MaxRules], "this is rule %d: a set has at most %d", MaxRules+1, MaxRules)
		return
	}
	names := make(map[string]bool, len(list.items))
	left := &budgets{newBudget(actionBounds), newBudget(stateBounds)}
	for i, item := range list.items {
		d.rule = label(item, "rules", i)
		rule := d.decodeRule(item)
		if names[rule.Name] && rule.Name != "" {
			d.refuse(item.get("name"), "another rule has this name: rename one of them")
		}
		names[rule.Name] = true
		set.rules = append(set.rules, rule)
		c := d.condition(item.get("when"), left)
		set.conditions = append(set.conditions, c)
		set.stateful = set.stateful || c != nil && c.state != nil
		set.joint = set.joint || c != nil && c.joint
		if d.slow[d.rule] {
			set.slow = append(set.slow, rule.Name)
		}
	}
	d.rule = ""
}

// label returns what the problems of an item are attributed to.
func label(item *node, list string, index int) string {
	if name := item.get("name"); name != nil && name.kind == canon.String && name.value != "" {
		return cut(name.value, maxName)
	}
	return fmt.Sprintf("%s[%d]", list, index)
}

func (d *decoder) decodeRule(n *node) Rule {
	rule := Rule{Mode: modeEnforce}
	if !d.isA(n, canon.Object, "a rule must be an object") {
		return rule
	}
	for _, m := range n.members {
		v := m.value
		switch m.name.value {
		case "name":
			rule.Name = d.line(v, "name", maxName)
		case "when":
			rule.When = d.expression(v)
		case "decision":
			rule.Decision = d.oneOf(v, "decision", decisions)
		case "reason":
			rule.Reason = d.prose(v, "reason", maxText)
		case "remediation":
			rule.Remediation = d.prose(v, "remediation", maxText)
		case "docs_url":
			rule.DocsURL = d.link(v, "docs_url")
		case "mode":
			rule.Mode = d.oneOf(v, "mode", modes)
		case "approvers":
			rule.Approvers = d.approvers(v)
		default:
			d.refuse(m.name, "unknown field %q: a rule has name, when, decision, reason, remediation, docs_url, mode and approvers", m.name.value)
		}
	}
	d.require(n, "name", "when", "decision", "reason")
	if given := n.get("approvers"); given != nil && slices.Contains(decisions, rule.Decision) && rule.Decision != requireApproval {
		d.refuse(given, "approvers only go with the decision %s: remove them", requireApproval)
	}
	return rule
}

func (d *decoder) approvers(n *node) []string {
	if !d.isA(n, canon.Array, "approvers must be a list of API key names or e-mail addresses") {
		return nil
	}
	if len(n.items) == 0 || len(n.items) > maxApprovers {
		d.refuse(n, "approvers must name 1 to %d: leave the field out if any member may approve", maxApprovers)
		return nil
	}
	var names []string
	for _, item := range n.items {
		name := d.line(item, "an approver", maxApprover)
		if slices.Contains(names, name) && name != "" {
			d.refuse(item, "this approver is named twice: remove one")
		}
		names = append(names, name)
	}
	return names
}

func (d *decoder) oneOf(n *node, field string, values []string) string {
	if n.kind != canon.String || !slices.Contains(values, n.value) {
		d.refuse(n, "%s must be one of %s", field, strings.Join(values, ", "))
	}
	return n.value
}
