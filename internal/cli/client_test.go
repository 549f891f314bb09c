package cli

import (
	"encoding/json"
	"testing"
)

// An error that names no address stays as it is.
func TestWithoutURL(t *testing.T) {
	t.Parallel()
	var unreadable json.SyntaxError
	if got := WithoutURL(&unreadable); got != error(&unreadable) {
		t.Errorf("an error that names no address became %v", got)
	}
}
