package policy

import (
	"cel.dev/cel-go/interpreter"

	"countersign/internal/canon"
)

// affordable aborts the evaluation of a rule that is about to read too much at once, in the same
// way as the library's cost limit. An error would not be enough: some functions treat it as "no",
// and the rule would pass.
func affordable(size, limit int) {
	if size > limit {
		panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: "too much at once"})
	}
}

// comparison is one deep comparison of two JSON values.
type comparison struct {
	looked int
}

func (c *comparison) values(a, b canon.Value) bool {
	c.looked++
	affordable(c.looked, maxLooked)
	if a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case canon.Array:
		return c.arrays(a.Items(), b.Items())
	case canon.Object:
		return c.objects(a.Members(), b.Members())
	default:
		return a.Bool() == b.Bool() && a.Float() == b.Float() && a.Str() == b.Str()
	}
}

func (c *comparison) arrays(a, b []canon.Value) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !c.values(a[i], b[i]) {
			return false
		}
	}
	return true
}

// objects relies on members having a fixed order.
func (c *comparison) objects(a, b []canon.Member) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || !c.values(a[i].Value, b[i].Value) {
			return false
		}
	}
	return true
}
