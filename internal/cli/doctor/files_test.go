package doctor

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

// A data folder that others can enter is a fault where whoever asks can close it, or others can write to
// it. Where only another user could close it, as on a volume of Kubernetes, it is a warning without a
// command that would fail.
func TestOpenDataFolder(t *testing.T) {
	t.Parallel()
	const root, owner, other = 0, 1000, 65532
	for _, test := range []struct {
		mode        fs.FileMode
		owner, user int
		want        string
	}{
		{0o755, owner, owner, findingFailed},
		{0o755, owner, root, findingFailed},
		{0o775, root, root, findingFailed},
		{0o775, root, other, findingWarning},
		{0o755, owner, other, findingWarning},
		{0o777, root, other, findingFailed},
	} {
		t.Run(fmt.Sprintf("%04o of %d for %d", test.mode, test.owner, test.user), func(t *testing.T) {
			t.Parallel()
			got := openFolder("/data", test.mode, test.owner, test.user)
			if got.Status != test.want || strings.Contains(got.Detail, "chmod") != (test.want == findingFailed) {
				t.Errorf("%s: %s", got.Status, got.Detail)
			}
		})
	}
}
