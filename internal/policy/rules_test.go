package policy

import (
	"fmt"
	"slices"
	"testing"

	"countersign/internal/canon"
)

// tester is the common part of tests and properties.
type tester interface {
	Helper()
	Fatal(args ...any)
}

// parse parses a set with one denying rule for each condition. A rule is named by its condition or,
// if that is too long or taken, by its number.
func parse(tb tester, conditions ...string) *Set {
	tb.Helper()
	set, err := Parse(documentOf(tb, conditions), JSON)
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

func documentOf(tb tester, conditions []string) []byte {
	tb.Helper()
	var list []canon.Value
	for i, when := range conditions {
		name := fmt.Sprint(i)
		if len(when) <= maxName && !slices.Contains(conditions[:i], when) {
			name = when
		}
		list = append(list, textObject(tb, "name", name, "when", when, "decision", "deny", "reason", "r"))
	}
	document, err := canon.ObjectValue(canon.Member{Name: "rules", Value: canon.ArrayValue(list...)})
	if err != nil {
		tb.Fatal(err)
	}
	return document.Append(nil)
}

func textObject(tb tester, pairs ...string) canon.Value {
	tb.Helper()
	var members []canon.Member
	for i := 0; i < len(pairs); i += 2 {
		v, err := canon.StringValue(pairs[i+1])
		if err != nil {
			tb.Fatal(err)
		}
		members = append(members, canon.Member{Name: pairs[i], Value: v})
	}
	v, err := canon.ObjectValue(members...)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// wantHits requires that all rules of the set apply, or none, and that none fails.
func wantHits(t *testing.T, set *Set, in *Input, all bool) {
	t.Helper()
	applied := make(map[string]bool)
	for _, hit := range matchAll(set, in) {
		applied[hit.Rule.When] = true
		if hit.Failed != nil {
			t.Errorf("%s: %v", hit.Rule.When, hit.Failed)
		}
	}
	for _, r := range set.Rules() {
		if applied[r.When] != all {
			t.Errorf("%s: applies %v, want %v", r.When, applied[r.When], all)
		}
	}
}
