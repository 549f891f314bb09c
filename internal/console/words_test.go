package console

import "testing"

// Every character that a browser hides or obeys is shown as an escape, so that a reviewer sees what
// an agent or a model reads.
func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"two\nlines, ü 漢 🙂":       "two\nlines, ü 漢 🙂",
		"\u202e000,9":             `\u202e000,9`,
		"a\u200bb\u2028\x1b":      `a\u200bb\u2028\u001b`,
		"tag \U000e0041":          `tag \U000e0041`,
		"joined\u034f":            `joined\u034f`,
		"filled\u3164\u115f":      `filled\u3164\u115f`,
		"blank\u2800":             `blank\u2800`,
		"bytes\ufe01\U000e0123":   `bytes\ufe01\U000e0123`,
		"mongolian\u180b\u17b4":   `mongolian\u180b\u17b4`,
		"reserved \U000e0fff end": `reserved \U000e0fff end`,
	} {
		if got := visible(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
