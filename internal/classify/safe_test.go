package classify

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"countersign/internal/canon"
)

type safeVectors struct {
	SafeVerbs      []string `json:"safe_verbs"`
	UnsafeWords    []string `json:"unsafe_words"`
	Connectives    []string `json:"connectives"`
	StatementWords []string `json:"statement_words"`
	QueryWords     []string `json:"query_words"`
	Cases          []struct {
		Name   string `json:"name"`
		Action struct {
			ActionType string          `json:"action_type"`
			ActionName string          `json:"action_name"`
			Payload    json.RawMessage `json:"payload"`
			Metadata   json.RawMessage `json:"metadata"`
		} `json:"action"`
		Allowed []string `json:"allowed"`
		Opaque  bool     `json:"opaque"`
		Safe    bool     `json:"safe"`
	} `json:"cases"`
}

// Go and Python consider the same actions obviously safe, with the same words.
func TestObviouslySafeVectors(t *testing.T) {
	t.Parallel()
	var vectors safeVectors
	readVectors(t, "safe.json", &vectors)
	if len(vectors.Cases) < 120 {
		t.Fatalf("only %d cases", len(vectors.Cases))
	}
	for _, c := range []struct {
		name      string
		want, got []string
	}{
		{"safe verbs", vectors.SafeVerbs, slices.Sorted(slices.Values(SafeVerbs))},
		{"unsafe words", vectors.UnsafeWords, slices.Sorted(maps.Keys(unsafeWords))},
		{"connectives", vectors.Connectives, slices.Sorted(maps.Keys(connectives))},
		{"statement words", vectors.StatementWords, slices.Sorted(maps.Keys(statements))},
		{"query words", vectors.QueryWords, slices.Sorted(maps.Keys(queries))},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	for _, c := range vectors.Cases {
		payload := parse(t, c.Action.Payload)
		facts := Classify(Input{
			ActionType: c.Action.ActionType, ActionName: c.Action.ActionName, Payload: payload, Metadata: parse(t, c.Action.Metadata),
		})
		allowed := c.Allowed
		if allowed == nil {
			allowed = vectors.SafeVerbs
		}
		if got := ObviouslySafe(c.Action.ActionName, allowed, facts, c.Opaque || Opaque(payload)); got != c.Safe {
			t.Errorf("%s: safe is %v, want %v", c.Name, got, c.Safe)
		}
	}
}

// TestSafeNamesStayNarrow: every verb of a category is on the list, a second verb makes any name
// unsafe, and so does a first word that is not allowed.
func TestSafeNamesStayNarrow(t *testing.T) {
	t.Parallel()
	for word, meaning := range words {
		if meaning.kind == wordAct && !unsafeWords[word] {
			t.Errorf("%s is a verb that acts, and not among the unsafe words", word)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		parts := []string{rapid.SampledFrom(SafeVerbs).Draw(t, "first")}
		parts = append(parts, rapid.SliceOfN(rapid.SampledFrom([]string{"user", "order", "all", "7"}), 0, 2).Draw(t, "between")...)
		safe := strings.Join(parts, "_")
		if !nameIsSafe(safe, SafeVerbs) {
			t.Fatalf("%s is not safe", safe)
		}
		verb := rapid.SampledFrom(slices.Sorted(maps.Keys(unsafeWords))).Draw(t, "verb")
		separator := rapid.SampledFrom([]string{"_", "-", ".", " ", "/", "__"}).Draw(t, "separator")
		for _, name := range []string{safe + separator + verb, safe + separator + strings.ToUpper(verb), safe + strings.ToUpper(verb[:1]) + verb[1:], verb + separator + safe} {
			if nameIsSafe(name, SafeVerbs) {
				t.Fatalf("%s is safe", name)
			}
		}
	})
}

// TestDepthVectors: what is nested too deeply is reported as unseen.
func TestDepthVectors(t *testing.T) {
	t.Parallel()
	var vectors struct {
		MaxDepth int `json:"max_depth"`
		Cases    []struct {
			Name       string `json:"name"`
			Containers int    `json:"containers"`
			Kind       string `json:"kind"`
			Found      bool   `json:"found"`
			Unseen     bool   `json:"unseen"`
		} `json:"cases"`
	}
	readVectors(t, "depth.json", &vectors)
	if vectors.MaxDepth != canon.MaxDepth || len(vectors.Cases) == 0 {
		t.Fatalf("the vectors speak of a depth of %d", vectors.MaxDepth)
	}
	for _, c := range vectors.Cases {
		v := parse(t, []byte(`{"amount_usd":5}`))
		for i := c.Containers - 1; i >= 0; i-- {
			if c.Kind == "object" || c.Kind == "mixed" && i%2 == 1 {
				v = objectOf(t, "a", v)
			} else {
				v = canon.ArrayValue(v)
			}
		}
		payload := objectOf(t, "x", v)
		facts := Classify(Input{ActionName: "get_it", Payload: payload})
		if found := facts.Amount != nil; found != c.Found || facts.Unseen != c.Unseen {
			t.Errorf("%s: found %v, unseen %v", c.Name, found, facts.Unseen)
		}
		if ObviouslySafe("get_it", SafeVerbs, facts, false) {
			t.Errorf("%s: obviously safe", c.Name)
		}
		if _, err := canon.Parse(payload.Append(nil)); (err != nil) != c.Unseen {
			t.Errorf("%s: reading it gives %v", c.Name, err)
		}
	}
}

func objectOf(t *testing.T, name string, v canon.Value) canon.Value {
	t.Helper()
	object, err := canon.ObjectValue(canon.Member{Name: name, Value: v})
	if err != nil {
		t.Fatal(err)
	}
	return object
}
