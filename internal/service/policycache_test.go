package service

import (
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// However many sets one organization stores, those of the others stay cached, and few of its own
// do.
func TestPolicyCacheIsShared(t *testing.T) {
	t.Parallel()
	c := newPolicyCache()
	put := func(org, version int) {
		record := &store.PolicyRecord{Version: fmt.Sprint("v", version), Document: make([]byte, 256<<10)}
		c.put(numberedOrg(org), record, &ledger.Policy{Version: record.Version})
	}
	put(2, 1)
	for version := range 500 {
		put(1, version)
	}
	if c.get(numberedOrg(2), "v1") == nil {
		t.Error("a set was dropped because another organization has put many")
	}
	for version, want := range map[string]bool{"v499": true, "v498": true, "v497": false} {
		if got := c.get(numberedOrg(1), version) != nil; got != want {
			t.Errorf("%s is kept: %t, want %t", version, got, want)
		}
	}
}
