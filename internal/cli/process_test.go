package cli

import (
	"io"
	"strings"
	"testing"
)

// Only a line that says y or yes is a yes.
func TestAsk(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		answer string
		want   bool
	}{{"y\n", true}, {" YES \n", true}, {"n\n", false}, {"\n", false}, {"", false}, {"y", false}, {strings.Repeat("y", 200) + "\n", false}} {
		if got := Ask(strings.NewReader(test.answer), io.Discard, "Approve this?"); got != test.want {
			t.Errorf("%q is taken for %t", test.answer, got)
		}
	}
}
