package sqlite

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Parameters that are too long for SQLite's 32-bit lengths are refused.
func TestParametersAreBounded(t *testing.T) {
	t.Parallel()
	part := strings.Repeat("x", 1<<20)
	args := slices.Repeat([]any{part}, maxParameters/len(part)+1)
	if err := (&statement{connection: &connection{}}).bind(args); !errors.Is(err, errTooBig) {
		t.Errorf("bound %d bytes: %v", len(args)*len(part), err)
	}
}
