package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checkMembers holds an answer against what a step wants of it.
func checkMembers(t *testing.T, where string, got *answer, step *decisionStep) {
	t.Helper()
	var answered any
	if len(step.Want)+len(step.Absent) > 0 {
		answered = decode[any](t, got)
	}
	for name, want := range step.Want {
		path, part := strings.CutSuffix(name, "~")
		found, ok := memberAt(answered, path)
		text, _ := found.(string)
		switch {
		case !ok:
			t.Errorf("%s: there is no %s: %s", where, path, got.body)
		case part && !strings.Contains(text, want.(string)):
			t.Errorf("%s: %s is %q, which has no %q in it", where, path, text, want)
		case !part && !cmp.Equal(found, want):
			t.Errorf("%s: %s is %v, want %v", where, path, found, want)
		}
	}
	for _, path := range step.Absent {
		if found, ok := memberAt(answered, path); ok {
			t.Errorf("%s: %s is %v, and should not be there", where, path, found)
		}
	}
}

func memberAt(value any, path string) (any, bool) {
	for name := range strings.SplitSeq(path, ".") {
		switch inner := value.(type) {
		case map[string]any:
			member, ok := inner[name]
			if !ok {
				return nil, false
			}
			value = member
		case []any:
			var index int
			if _, err := fmt.Sscanf(name, "%d", &index); err != nil || index >= len(inner) {
				return nil, false
			}
			value = inner[index]
		default:
			return nil, false
		}
	}
	return value, true
}
