package service

import (
	"encoding/binary"
	"testing"
	"time"

	"countersign/internal/ledger"
)

// The recorded grants of organizations are bounded, and a forgotten grant counts as recent for all
// organizations: a stop waits too often rather than too briefly.
func TestRecentGrantsAreBounded(t *testing.T) {
	t.Parallel()
	org := func(n int) (id ledger.OrgID) {
		binary.BigEndian.PutUint64(id.UUID[:], uint64(n))
		return id
	}
	now := time.Now()
	var g recentGrants
	for n := range 3*maxRecentGrants + 7 {
		at := now.Add(time.Duration(n) * time.Microsecond)
		g.note(org(n), at)
		if len(g.last) > maxRecentGrants {
			t.Fatalf("%d organizations are remembered", len(g.last))
		}
	}
	for n := range 3*maxRecentGrants + 7 {
		at := now.Add(time.Duration(n) * time.Microsecond)
		if !g.since(org(n), at.Add(-1)) {
			t.Fatalf("the grant of organization %d is forgotten", n)
		}
	}
	later := now.Add(ledger.LeaseRunOut + time.Minute)
	g.note(org(1), later)
	if g.since(org(2), later.Add(-ledger.LeaseRunOut)) || !g.since(org(1), later.Add(-ledger.LeaseRunOut)) {
		t.Error("a grant counts for another organization, or for too long")
	}
	for n := range maxRecentGrants {
		g.note(org(n), later.Add(time.Hour))
	}
	g.note(org(maxRecentGrants), later.Add(2*time.Hour))
	if len(g.last) != 1 || g.since(org(1), later.Add(2*time.Hour-ledger.LeaseRunOut)) {
		t.Errorf("%d organizations are remembered when all but one are long past", len(g.last))
	}
}
