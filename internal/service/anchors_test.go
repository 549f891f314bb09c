package service_test

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/testdb"
)

// The server's own look at the ledger tells of an anchor that was made and is gone.
func TestLooksMissAnchors(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		done(t, s.Jobs().SaveAnchor(t.Context(), &ledger.Anchor{
			Org: s.who.admin.Org, Kind: ledger.SubjectHead, Subject: s.receipts[0].UUID, Sequence: 1,
			Method: ledger.MethodTSA, Standing: ledger.AnchorVerified, Proof: []byte("proof"),
		}))
		s.checkRound(s.Service)
		s.wantTold("with its anchor")
		done(t, s.exec("DELETE FROM anchors"))
		s.checkRound(s.Service)
		s.wantTold("without its anchor", "anchors ")
		s.checkRound(s.Service)
		s.wantTold("told before")
	})
}
