package tlog

import (
	"crypto/rand"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
)

// Lines of several keys are kept side by side, the newer of two by one key, and what is no
// signature line is refused.
func TestMergeCosignatures(t *testing.T) {
	t.Parallel()
	keys := make(map[string]note.Signer)
	for _, name := range []string{"log", "w1", "w2", "w2 again"} {
		skey, _, err := note.GenerateKey(rand.Reader, strings.Fields(name)[0])
		if err != nil {
			t.Fatal(err)
		}
		if keys[name], err = note.NewSigner(skey); err != nil {
			t.Fatal(err)
		}
	}
	sign := func(text, name string) string {
		signed, err := note.Sign(&note.Note{Text: text}, keys[name])
		if err != nil {
			t.Fatal(err)
		}
		return string(signed)
	}
	line := func(text, name string) string { return strings.TrimPrefix(sign(text, name), text+"\n") }
	const text = "log\n1\nAAAA\n"
	checkpoint, w1, w2, other := sign(text, "log"), line(text, "w1"), line(text, "w2"), line(text, "w2 again")
	newer := line("later\n", "w1") // another signature by the same key
	for name, test := range map[string]struct{ older, newer, want string }{
		"none":                       {"", "", ""},
		"first":                      {"", w1, w1},
		"another":                    {w1, w2, w1 + w2},
		"the same key":               {w1 + w2, newer, w2 + newer},
		"another key of the name":    {w2, other, w2 + other},
		"nothing new":                {w1, "", w1},
		"no line":                    {w1, "hello\n", "refused"},
		"another note":               {w1, "\n" + w2, "refused"},
		"without its newline":        {"", strings.TrimSuffix(w1, "\n"), "refused"},
		"kept lines that are broken": {"hello\n", w1, "refused"},
	} {
		got, err := MergeCosignatures([]byte(checkpoint), []byte(test.older), []byte(test.newer))
		if (err != nil) != (test.want == "refused") || err == nil && string(got) != test.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, test.want)
		}
	}
	if got := CountCosignatures([]byte(w1 + w2)); got != 2 {
		t.Errorf("%d lines", got)
	}
}
