package policy

import (
	"countersign/internal/canon"
)

// Case is one test of a policy set: an action, its context, and the expected decision.
type Case struct {
	Name string
	// Action is an action as a client records it. Chain and Organization are null if the case uses
	// the defaults.
	Action, Chain, Organization canon.Value
	// Used is an object with the used part of the organization's budgets by name, or null.
	Used   canon.Value
	Expect Expect
}

// Expect is the expected decision of a case.
type Expect struct {
	PolicyDecision string
	// PolicyName is nil if any is fine, and empty if no policy may be named.
	PolicyName *string
	// Status is empty if any is fine.
	Status string
}

// maxCases bounds the cases in a file.
const maxCases = 1000

var statuses = []string{"allowed", "flagged", "awaiting_approval", "denied"}

// ParseCases parses a file of cases, in YAML or JSON: {"cases": [...]}. It returns all of them, or
// an *Error with all problems.
func ParseCases(data []byte) ([]Case, error) {
	found, root, err := read(data, YAML)
	if err != nil {
		return nil, err
	}
	d := decoder{problems: found}
	cases := d.cases(root)
	if err := found.err(); err != nil {
		return nil, err
	}
	return cases, nil
}

func (d *decoder) cases(root *node) []Case {
	if !d.isA(root, canon.Object, "the document must be an object with \"cases\"") {
		return nil
	}
	for _, m := range root.members {
		if m.name.value != "cases" {
			d.refuse(m.name, "unknown field %q: a file of cases has cases alone", m.name.value)
		}
	}
	list := root.get("cases")
	if list == nil {
		d.refuse(root, "cases is missing")
		return nil
	}
	if !d.isA(list, canon.Array, "cases must be a list") {
		return nil
	}
	if len(list.items) == 0 || len(list.items) > maxCases {
		d.refuse(list, "cases must have 1 to %d entries", maxCases)
		return nil
	}
	cases := make([]Case, 0, len(list.items))
	names := make(map[string]bool)
	for i, item := range list.items {
		d.rule = label(item, "cases", i)
		c := d.decodeCase(item)
		if names[c.Name] && c.Name != "" {
			d.refuse(item.get("name"), "another case has this name: rename one of them")
		}
		names[c.Name] = true
		cases = append(cases, c)
	}
	return cases
}

func (d *decoder) decodeCase(n *node) Case {
	var c Case
	if !d.isA(n, canon.Object, "a case must be an object") {
		return c
	}
	for _, m := range n.members {
		switch m.name.value {
		case "name":
			c.Name = d.line(m.value, "name", maxText)
		case "action":
			c.Action = d.object(m.value, "action")
		case "chain":
			c.Chain = d.object(m.value, "chain")
		case "organization":
			c.Organization = d.object(m.value, "organization")
		case "budgets_used":
			c.Used = d.object(m.value, "budgets_used")
		case "expect":
			c.Expect = d.expect(m.value)
		default:
			d.refuse(m.name, "unknown field %q: a case has name, action, chain, organization, budgets_used and expect", m.name.value)
		}
	}
	d.require(n, "name", "action", "expect")
	return c
}

func (d *decoder) expect(n *node) Expect {
	var e Expect
	if !d.isA(n, canon.Object, "expect must be an object with policy_decision") {
		return e
	}
	for _, m := range n.members {
		switch m.name.value {
		case "policy_decision":
			e.PolicyDecision = d.oneOf(m.value, "policy_decision", decisions)
		case "policy_name":
			e.PolicyName = new(string)
			if m.value.kind != canon.Null {
				*e.PolicyName = d.line(m.value, "policy_name", maxText)
			}
		case "status":
			e.Status = d.oneOf(m.value, "status", statuses)
		default:
			d.refuse(m.name, "unknown field %q: expect has policy_decision, policy_name and status", m.name.value)
		}
	}
	d.require(n, "policy_decision")
	return e
}

func (d *decoder) object(n *node, field string) canon.Value {
	if !d.isA(n, canon.Object, field+" must be an object") {
		return canon.Value{}
	}
	return d.json(n)
}

// json converts a node to a JSON value.
func (d *decoder) json(n *node) canon.Value {
	switch n.kind {
	case canon.Object:
		members := make([]canon.Member, 0, len(n.members))
		for _, m := range n.members {
			members = append(members, canon.Member{Name: m.name.value, Value: d.json(m.value)})
		}
		return d.made(n)(canon.ObjectValue(members...))
	case canon.Array:
		items := make([]canon.Value, 0, len(n.items))
		for _, item := range n.items {
			items = append(items, d.json(item))
		}
		return canon.ArrayValue(items...)
	case canon.String:
		return d.made(n)(canon.StringValue(n.value))
	case canon.Null:
		return canon.Value{}
	default:
		// YAML has more forms of numbers than JSON.
		v, err := canon.Parse([]byte(n.value))
		if err != nil {
			d.refuse(n, "this number is not one of JSON: write it with digits alone, or put it in quotes")
		}
		return v
	}
}

func (d *decoder) made(n *node) func(canon.Value, error) canon.Value {
	return func(v canon.Value, err error) canon.Value {
		if err != nil {
			d.refuse(n, "no JSON value: %v", err)
		}
		return v
	}
}
