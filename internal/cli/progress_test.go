package cli

import (
	"countersign/internal/servicetest"
	"testing"
)

// A progress bar is drawn on a terminal only.
func TestProgressBar(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		done, total int64
		want        string
	}{
		{0, 0, "x [..............................] 0/0"},
		{1, 2, "x [###############...............] 1/2"},
		{5, 4, "x [##############################] 5/4"},
	} {
		if got := bar("x", test.done, test.total); got != test.want {
			t.Errorf("bar(%d, %d) = %q", test.done, test.total, got)
		}
	}
	var out servicetest.Buffer
	silent := NewProgress(&out, "x")
	silent.Show(1, 2)
	silent.Clear()
	if out.String() != "" {
		t.Errorf("something other than a terminal was shown %q", out.String())
	}
}
