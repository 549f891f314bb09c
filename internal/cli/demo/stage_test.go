package demo

import "testing"

// The demo prints colour codes only if colours are enabled.
func TestColours(t *testing.T) {
	t.Parallel()
	plain, coloured := &stage{}, &stage{colours: true}
	if text := plain.paint(red, "no"); text != "no" {
		t.Errorf("without colours: %q", text)
	}
	if text := coloured.paint(red, "no"); text != "\x1b[31mno\x1b[0m" {
		t.Errorf("with colours: %q", text)
	}
}
