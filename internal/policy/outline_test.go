package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The outline of a document has the same content as the compiled set, without the cost of
// compiling. A condition that was put under other limits is shown unchanged.
func TestOutlineSaysWhatTheSetDoes(t *testing.T) {
	t.Parallel()
	document := []byte(`{"fast_path":true,"rules":[{"name":"a","when":"chain.tokens > 5","decision":"deny","reason":"r"},{"name":"b","when":"true","decision":"require_approval","reason":"r","approvers":["x"]}]}`)
	set, err := ParseStored(document, JSON)
	if err != nil {
		t.Fatal(err)
	}
	outline, err := ReadStored(document, JSON)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(set.Rules(), outline.Rules()); diff != "" {
		t.Error(diff)
	}
	if allowed, given := outline.FastPath(); !allowed || !given || string(outline.Canonical()) != string(set.Canonical()) {
		t.Errorf("fast path %t %t, canonical %s", allowed, given, outline.Canonical())
	}
	if _, err := ReadStored([]byte(`{"rules":[{"name":"a"}]}`), JSON); err == nil {
		t.Error("a document that is no set has an outline")
	}
	if outline, err = ReadStored([]byte(`{"rules":[{"name":"a","when":"no such thing","decision":"deny","reason":"r"}]}`), JSON); err != nil || len(outline.Rules()) != 1 {
		t.Errorf("a condition is compiled: %v", err)
	}
}
