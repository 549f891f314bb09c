package console

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/notify"
)

// The console does not know the package that sends notices; this holds its list
// to that one. A test message is sent by its own button.
func TestEveryKindOfNoticeIsOffered(t *testing.T) {
	t.Parallel()
	var want []string
	for _, kind := range notify.Kinds() {
		if kind != notify.WebhookTest {
			want = append(want, string(kind))
		}
	}
	if diff := cmp.Diff(want, slices.Clone(kinds)); diff != "" {
		t.Errorf("the offered kinds differ (-want +got):\n%s", diff)
	}
}
