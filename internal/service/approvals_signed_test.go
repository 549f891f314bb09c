package service_test

import (
	"path/filepath"
	"testing"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// The timeout of an approval is signed and anchored, also if its chain is completed before a worker has
// recorded the timeout: its verification says so, and the receipt's evidence can be exported.
func TestTimeoutThatACompletionRecordsIsSigned(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		g := &governed{t: t, db: db, store: db.Open(t), ring: ring, clock: newClock()}
		marks := must[*keyring.LogMarks](t)(keyring.OpenLogMarks(filepath.Join(t.TempDir(), "heads.logs"), ring))
		g.Service = serve(t, service.Config{
			Store: g.store, Keys: ring, Secrets: ring, Clock: g.clock.Now, Anchoring: []string{ledger.MethodTSA}, Timestamps: believer{},
			LogKeys: ring, LogMarks: marks, Signing: &service.Signing{Keys: ring, Instance: "log.example.com"}, Alone: true,
		})
		g.who = newTenant(t, g.Service, "acme")
		g.settings(`{"evidence_export":"admins"}`)
		chain := g.open("refunds")
		late := g.ask(chain)
		g.clock.Advance(time.Hour)
		waiting := g.ask(chain)
		g.clock.Set(time.UnixMilli(int64(g.view(late).ExpiresAt)))
		receipt := g.complete(chain).State.Receipt
		checkStatus(t, g.view(late), ledger.ApprovalTimedOut)
		checkStatus(t, g.view(waiting), ledger.ApprovalCancelled)

		v := must[*ledger.Verification](t)(g.VerifyApproval(t.Context(), g.who.member, late))
		if v.Signature.Standing != ledger.StandingValid {
			t.Errorf("its signature is %+v", v.Signature)
		}
		anchors := 0
		for _, job := range g.claim(time.Second, 100) {
			if job.Kind == service.JobAnchor {
				anchors++
			}
		}
		if anchors != 1 {
			t.Errorf("%d anchors are queued, want one for the timeout", anchors)
		}
		g.SignRound(t.Context())
		if _, err := g.Bundle(t.Context(), g.who.admin, *receipt, true); err != nil {
			t.Errorf("its evidence cannot be exported: %v", err)
		}
	})
}
