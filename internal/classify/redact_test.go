package classify

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"countersign/internal/canon"
)

type redactions struct {
	Values []struct {
		Name   string          `json:"name"`
		Input  json.RawMessage `json:"input"`
		Output json.RawMessage `json:"output"`
	} `json:"values"`
	Texts []struct {
		Name   string `json:"name"`
		Input  string `json:"input"`
		Output string `json:"output"`
	} `json:"texts"`
}

func readRedactions(t testing.TB) redactions {
	t.Helper()
	var vectors redactions
	readVectors(t, "redaction.json", &vectors)
	if len(vectors.Values) < 60 || len(vectors.Texts) == 0 {
		t.Fatalf("only %d values and %d texts", len(vectors.Values), len(vectors.Texts))
	}
	return vectors
}

// cleaned removes secrets from a value.
func cleaned(v canon.Value) canon.Value {
	clean, _ := RedactListed(v)
	return clean
}

// The published redaction vectors are correct, and redacting again changes nothing.
func TestRedactVectors(t *testing.T) {
	t.Parallel()
	for _, vector := range readRedactions(t).Values {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			got := cleaned(parse(t, vector.Input))
			if diff := cmp.Diff(canonical(parse(t, vector.Output)), canonical(got)); diff != "" {
				t.Errorf("redacted (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(canonical(got), canonical(cleaned(got))); diff != "" {
				t.Errorf("redacting again changed it (-once +twice):\n%s", diff)
			}
		})
	}
}

// The published text redaction vectors are correct, and redacting again changes nothing.
func TestRedactTextVectors(t *testing.T) {
	t.Parallel()
	for _, vector := range readRedactions(t).Texts {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			got := RedactText(vector.Input)
			if diff := cmp.Diff(vector.Output, got); diff != "" {
				t.Errorf("redacted (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(got, RedactText(got)); diff != "" {
				t.Errorf("redacting again changed it (-once +twice):\n%s", diff)
			}
		})
	}
}

func canonical(v canon.Value) string { return string(v.Append(nil)) }

// fragments are pieces that the rules look for, so that random texts contain them often.
var fragments = []string{
	"sk_", "pk_", "eyJ", "AKIA", "csk_", "Bearer ", "bearer ", "password", "api", "key", "token", "tokens", "max_", "secret", "ssn",
	"=", ":", "\"", "'", "-", "_", ".", " ", "&", ";", ",", "\\", "[", "]", Redacted, "a", "abcdefgh", "12345678", "é", "\n", "/", "%",
	"sk-ant-", "sk-", "ASIA", "SG.", "npm_", "Basic ", "dXNlcjpwbGFjZWhvbGRlcg==", "Authorization", ": ", "Cookie", "x-api-key", "://", "@", "?",
	pemBegin, "PRIVATE KEY", "-----", "-----END ", "pwd",
}

func textOf(t *rapid.T, label string) string {
	text := ""
	for _, fragment := range rapid.SliceOfN(rapid.SampledFrom(fragments), 0, 12).Draw(t, label) {
		text += fragment
	}
	return text
}

func valueOf(t *rapid.T, depth int) canon.Value {
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	if depth == 0 {
		kind %= 4
	}
	switch kind {
	case 0:
		return canon.NullValue()
	case 1:
		return canon.BoolValue(rapid.Bool().Draw(t, "bool"))
	case 2:
		n, err := canon.NumberValue(float64(rapid.Int64Range(-1000, 1000).Draw(t, "number")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	case 3:
		return mustString(textOf(t, "text"))
	case 4:
		var items []canon.Value
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, valueOf(t, depth-1))
		}
		return canon.ArrayValue(items...)
	default:
		members := map[string]canon.Member{}
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			name := textOf(t, "name")
			members[name] = canon.Member{Name: name, Value: valueOf(t, depth-1)}
		}
		var list []canon.Member
		for _, member := range members {
			list = append(list, member)
		}
		v, err := canon.ObjectValue(list...)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Redacting any value twice gives the same result as redacting it once.
func TestRedactTwiceChangesNothingMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		once := cleaned(valueOf(t, 3))
		if diff := cmp.Diff(canonical(once), canonical(cleaned(once))); diff != "" {
			t.Errorf("(-once +twice):\n%s", diff)
		}
	})
}

// Redacting any text twice gives the same result as redacting it once.
func TestRedactTextTwiceChangesNothingMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		once := RedactText(textOf(t, "text"))
		if diff := cmp.Diff(once, RedactText(once)); diff != "" {
			t.Errorf("(-once +twice):\n%s", diff)
		}
	})
}

// TestRedactChangesNothingElse: the shape and the names stay the same, and so does everything that
// is not a string and not under a sensitive name.
func TestRedactChangesNothingElse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := valueOf(t, 3)
		sameShape(t, before, cleaned(before))
	})
}

func sameShape(t *rapid.T, before, after canon.Value) {
	if before.Kind() != after.Kind() {
		t.Fatalf("%s became %s", canonical(before), canonical(after))
	}
	if before.Kind() != canon.String && len(before.Items())+len(before.Members()) == 0 && canonical(before) != canonical(after) {
		t.Fatalf("%s became %s", canonical(before), canonical(after))
	}
	if len(before.Items()) != len(after.Items()) || len(before.Members()) != len(after.Members()) {
		t.Fatalf("%s became %s", canonical(before), canonical(after))
	}
	for i, item := range before.Items() {
		sameShape(t, item, after.Items()[i])
	}
	for i, member := range before.Members() {
		redacted := after.Members()[i]
		if redacted.Name != member.Name {
			t.Fatalf("the name %q became %q", member.Name, redacted.Name)
		}
		if redacted.Value.Str() == Redacted && (isSensitive(member.Name) || isCookie(member.Name)) {
			continue
		}
		sameShape(t, member.Value, redacted.Value)
	}
}
