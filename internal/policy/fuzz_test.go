package policy

import (
	"errors"
	"testing"
)

// FuzzParse: every document is accepted or refused with a place inside it, and an accepted one
// survives a round trip and an evaluation.
func FuzzParse(f *testing.F) {
	f.Add([]byte(realistic), true)
	f.Add([]byte(rule+"|\n    action.amount_usd > 1 &&\n    action.x"), true)
	f.Add([]byte(rule+`"'\ud83d\ude00' == \"a\" \`), true)
	f.Add([]byte(rule+">2-\r\n   a.b\u2028"), true)
	f.Add([]byte(rule+"'it''s"), true)
	f.Add([]byte("\ufeffrules: [&a [*a], !!x {? [] : 1}]"), true)
	f.Add([]byte(`{"rules": [{"name": "a", "when": "'\ud83d\ude00' != action.x", "decision": "deny", "reason": "r"}]}`), false)
	f.Add([]byte(`{"rules": [], "fast_path": true}`), false)
	f.Fuzz(func(t *testing.T, document []byte, yaml bool) {
		format := JSON
		if yaml {
			format = YAML
		}
		set, err := Parse(document, format)
		if err != nil {
			wantPlaces(t, err, newSource(document))
			return
		}
		back, err := Parse(set.Canonical(), JSON)
		if err != nil {
			t.Fatalf("the canonical form is refused: %v", err)
		}
		if back.Hash() != set.Hash() {
			t.Error("the hash changed on the way through the canonical form")
		}
		if hits := matchAll(set, payment(t)); len(hits) > len(set.rules) {
			t.Errorf("%d hits for %d rules", len(hits), len(set.rules))
		}
	})
}

// Every fault in a file of cases has a place inside the file.
func FuzzParseCases(f *testing.F) {
	f.Add([]byte("cases:\n- {name: a, action: {payload: {x: 1}}, expect: {policy_decision: deny}}"))
	f.Add([]byte("cases:\n- {name: a, action: {n: 0x1F, t: 2026-01-01, ~: .inf}, expect: {policy_name: null}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := ParseCases(data); err != nil {
			wantPlaces(t, err, newSource(data))
		}
	})
}

func wantPlaces(t *testing.T, err error, text *source) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) || len(refused.Problems) == 0 || len(refused.Problems) > maxProblems {
		t.Fatalf("got %v, want an *Error with 1 to %d problems", err, maxProblems)
	}
	for _, p := range refused.Problems {
		if p.Line < 1 || p.Column < 1 || p.Line > len(text.starts) || p.Detail == "" {
			t.Errorf("no place in the document: %+v", p)
		}
	}
}
