package logsign

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// A recheck ends when the log was loaded after it was requested. One that is requested while a round
// has the log in its hands is left for the next round, because what it is about may have happened
// after the log was read.
func TestRecheckDuringARound(t *testing.T) {
	t.Parallel()
	signer := New(Config{Clock: time.Now}, uuid.New())
	org := ledger.OrgID{UUID: uuid.New()}
	log := &signedLog{record: &store.TransparencyLog{Org: org}}
	round := func(during func()) {
		if !slices.Equal(signer.toLoad(), []ledger.OrgID{org}) {
			t.Error("the round does not load the log")
		}
		during()
		signer.loaded(log)
	}
	signer.Recheck(org)
	signer.toLoad() // a round that fails
	round(func() { signer.Recheck(org) })
	round(func() {})
	if left := signer.toLoad(); len(left) > 0 {
		t.Errorf("after all rounds %d rechecks are left", len(left))
	}
}
