package cli

import "testing"

// Control and invisible characters are shown as escapes.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain ü": "plain ü", "a\x1b[2Jb": `a\u001b[2Jb`, "\u202e": `\u202e`, "\U000e0041": `\U000e0041`, "cut here": "cut here",
		"漢 🙂": "漢 🙂", "\u034f\u3164\u2800": `\u034f\u3164\u2800`, "\ufe01\U000e0123": `\ufe01\U000e0123`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
