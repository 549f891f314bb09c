package verify

import (
	"fmt"
	"strings"
	"testing"

	"countersign/internal/ledger"
)

// Breaks that are known are named last, each text is named once, and no more breaks are kept than are
// named.
func TestKnownBreaksAreNamedLast(t *testing.T) {
	t.Parallel()
	c := &collection{known: func(found *Tampering) (bool, error) { return strings.HasPrefix(found.Place, "known"), nil }}
	add := func(text string) {
		t.Helper()
		if err := c.add(&ledger.Break{Check: ledger.CheckAnchors, Detail: text}); err != nil {
			t.Fatal(err)
		}
	}
	named := func(first string, count int) {
		t.Helper()
		breaks := c.named()
		if len(breaks) != count || breaks[0].Detail != first {
			t.Errorf("%d are named, the first is %q; want %d and %q", len(breaks), breaks[0].Detail, count, first)
		}
	}
	add("known 0")
	add("known 0")
	named("known 0", 1)
	for i := range 10 * maxCollected {
		add(fmt.Sprint("known ", i))
	}
	named("known 0", maxCollected)
	add("new 0")
	add("new 0")
	named("new 0", maxCollected)
	if c.full() || c.named()[1].Detail != "known 0" {
		t.Errorf("the second is %q", c.named()[1].Detail)
	}
	for i := range 10 * maxCollected {
		add(fmt.Sprint("new ", i))
	}
	named("new 0", maxCollected)
	if last := c.named()[maxCollected-1].Detail; !c.full() || last != fmt.Sprint("new ", maxCollected-1) || len(c.found)+len(c.last) > 2*maxCollected {
		t.Errorf("the last of %d is %q", len(c.found)+len(c.last), last)
	}
}
