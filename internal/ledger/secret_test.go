package ledger

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const planted = "planted-plaintext"

// Reveal returns the text of a secret.
func TestSecretRevealsWhatItHolds(t *testing.T) {
	t.Parallel()
	if got := NewSecret(planted).Reveal(); got != planted {
		t.Errorf("Reveal() = %q, want %q", got, planted)
	}
	if got := (Secret{}).Reveal(); got != "" {
		t.Errorf("zero Reveal() = %q, want the empty text", got)
	}
}

// Two secrets are equal when their texts are.
func TestSecretEqual(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		a, b Secret
		want bool
	}{
		{"same text", NewSecret(planted), NewSecret(planted), true},
		{"another text of the same length", NewSecret("aaaa"), NewSecret("aaab"), false},
		{"a prefix", NewSecret("aaaa"), NewSecret("aaa"), false},
		{"zero and empty", Secret{}, NewSecret(""), true},
		{"zero and not empty", Secret{}, NewSecret("a"), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := test.a.Equal(test.b); got != test.want {
				t.Errorf("Equal = %v, want %v", got, test.want)
			}
			if got := cmp.Equal(test.a, test.b); got != test.want {
				t.Errorf("cmp.Equal = %v, want %v", got, test.want)
			}
		})
	}
}

// A secret prints as redacted with every formatting verb.
func TestSecretPrintsRedactedWithEveryVerb(t *testing.T) {
	t.Parallel()
	secret := NewSecret(planted)
	for _, verb := range []string{
		"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%b", "%o", "%U", "%e", "%t", "%c", "%40s", "%.3s", "%y",
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			for _, value := range []any{secret, &secret} {
				if got := fmt.Sprintf(verb, value); got != redacted {
					t.Errorf("Sprintf(%q, %T) = %q, want %q", verb, value, got, redacted)
				}
			}
		})
	}
	for name, got := range map[string]string{
		"String": secret.String(), "GoString": secret.GoString(), "Sprint": fmt.Sprint(secret), "Sprintln": strings.TrimSpace(fmt.Sprintln(secret)),
	} {
		if got != redacted {
			t.Errorf("%s = %q, want %q", name, got, redacted)
		}
	}
}

type holder struct {
	Open   Secret
	hidden Secret // fmt reads it without calling its methods
	List   []Secret
	Named  map[string]Secret
}

func newHolder() holder {
	secret := NewSecret(planted)
	return holder{Open: secret, hidden: secret, List: []Secret{secret}, Named: map[string]Secret{"one": secret}}
}

// A secret inside another value stays hidden in logs, JSON, XML, printed values and
// comparisons.
func TestSecretStaysHiddenInsideOtherValues(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	held := newHolder()
	for _, handler := range []slog.Handler{slog.NewTextHandler(&logged, nil), slog.NewJSONHandler(&logged, nil)} {
		slog.New(handler).Info("event", "secret", held.Open, "holder", held, "pointer", &held)
	}
	encoded, err := json.Marshal(held)
	if err != nil {
		t.Fatalf("json.Marshal: %v", err)
	}
	element, err := xml.Marshal(held.Open)
	if err != nil {
		t.Fatalf("xml.Marshal: %v", err)
	}
	outputs := map[string]string{
		"slog": logged.String(), "json": string(encoded), "xml": string(element),
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		outputs[verb] = fmt.Sprintf(verb, held)
		outputs[verb+" of a pointer"] = fmt.Sprintf(verb, &held)
	}
	inHex := fmt.Sprintf("%x", planted)
	for name, output := range outputs {
		if strings.Contains(output, planted) || strings.Contains(output, inHex) {
			t.Errorf("%s gives the secret away", name)
		}
		if !strings.Contains(output, "redacted") {
			t.Errorf("%s = %q, want it to say redacted", name, output)
		}
	}
	if diff := cmp.Diff(held.Open, NewSecret("another")); diff == "" || strings.Contains(diff, planted) {
		t.Errorf("cmp.Diff finds no difference, or gives the secret away")
	}
}

// A secret in JSON is a string that says it was redacted.
func TestSecretMarshalsToAReadableValue(t *testing.T) {
	t.Parallel()
	encoded, err := json.Marshal(map[string]any{"secret": NewSecret(planted)})
	if err != nil {
		t.Fatal(err)
	}
	var decoded map[string]string
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"secret": redacted}, decoded); diff != "" {
		t.Errorf("decoded JSON differs (-want +got):\n%s", diff)
	}
}
