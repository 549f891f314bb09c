package policy

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/canon"
)

// A policy set parsed from its canonical form is the same set with the same hash.
func TestCanonicalReadsBackToTheSameSet(t *testing.T) {
	t.Parallel()
	documents := map[string]string{
		"empty":     "rules: []",
		"realistic": realistic,
		"all fields": `
fast_path: true
rules:
  - name: "ümläut \"quoted\" 😀"
    when: |
      action.amount_usd > 1 &&
        action.agent_name == 'é'
    decision: require_approval
    reason: "tab\tand\nline"
    remediation: ask
    docs_url: https://wiki.example/a?b=c
    mode: shadow
    approvers: [b@acme.example, a]
`,
	}
	for name, document := range documents {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, err := Parse([]byte(document), YAML)
			if err != nil {
				t.Fatal(err)
			}
			text := set.Canonical()
			if again, err := canon.Canonicalize(text); err != nil || !bytes.Equal(again, text) {
				t.Errorf("not canonical (%v):\n%s\nwant\n%s", err, text, again)
			}
			if set.Hash() != sha256.Sum256(text) {
				t.Error("the hash is not that of the canonical text")
			}
			back, err := Parse(text, JSON)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(set.Rules(), back.Rules()); diff != "" {
				t.Errorf("rules (-put +read back):\n%s", diff)
			}
			if back.Hash() != set.Hash() {
				t.Error("the hash changed on the way")
			}
		})
	}
}

// The canonical form omits defaults, but keeps an explicit fast_path.
func TestCanonicalLeavesOutDefaults(t *testing.T) {
	t.Parallel()
	const plain = `{"rules":[{"decision":"deny","name":"a","reason":"r","when":"true"}]}`
	for _, document := range []string{
		plain,
		`{"rules": [{"name": "a", "mode": "enforce", "when": "true", "decision": "deny", "reason": "r"}]}`,
	} {
		set, err := Parse([]byte(document), JSON)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(set.Canonical()); got != plain {
			t.Errorf("got %s, want %s", got, plain)
		}
	}
	set, err := Parse([]byte(`{"rules": [], "fast_path": false}`), JSON)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(set.Canonical()); got != `{"fast_path":false,"rules":[]}` {
		t.Errorf("got %s: what is said about the fast path is part of the set", got)
	}
}
