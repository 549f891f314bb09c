package sqlite

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// SQLite counts in 32 bits: a length that does not fit would reach it as another.
func TestParametersAreBounded(t *testing.T) {
	t.Parallel()
	part := strings.Repeat("x", 1<<20)
	args := slices.Repeat([]any{part}, maxParameters/len(part)+1)
	if err := (&statement{connection: &connection{}}).bind(args); !errors.Is(err, errTooBig) {
		t.Errorf("bound %d bytes: %v", len(args)*len(part), err)
	}
}
