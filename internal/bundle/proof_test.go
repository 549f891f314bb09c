package bundle

import (
	"strings"
	"testing"
)

// TestMalformedNotes promises that a note with one line that is no signature cannot be read
// at all, whatever the other lines say: verifiers that skip such lines would disagree.
func TestMalformedNotes(t *testing.T) {
	t.Parallel()
	f := newLogFixture(t, "log", "log", 2)
	proof, err := ParseProof(f.bundles[1].LogProof)
	if err != nil {
		t.Fatal(err)
	}
	good := proof.Checkpoint
	if noteLines(good) == nil {
		t.Fatal("a good note cannot be read")
	}
	for name, note := range map[string]string{
		"another dash":            strings.Replace(good, "\n— ", "\n- ", 1),
		"a letter after the dash": strings.Replace(good, "\n— ", "\n—F", 1),
		"a control character":     strings.Replace(good, "\n", "\t\n", 1),
		"101 signatures":          good + strings.Repeat(good[strings.LastIndex(good, "\n— ")+1:], 101),
		"no signature":            good[:strings.LastIndex(good, "\n\n")+2],
	} {
		if noteLines(note) != nil {
			t.Errorf("%s: the note was read", name)
		}
	}
}
