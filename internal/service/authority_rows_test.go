package service_test

import (
	"strings"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// auditFinds expects the audit to find an edit by one of the checks.
func (g *governed) auditFinds(edit string, checks ...ledger.Check) {
	g.t.Helper()
	report := must[*verify.AuditReport](g.t)(g.Operator().Audit(g.t.Context(), g.who.slug, verify.AuditOptions{}))
	for _, check := range checks {
		if report.Break != nil && report.Break.Check == check {
			return
		}
	}
	g.t.Errorf("%s: the audit finds %+v, want %v", edit, report.Break, checks)
}

// lastUse is the column that is not authenticated in rows that otherwise are.
var lastUse = map[string]bool{"last_used_at": true}

// A public token whose row was changed in any column grants no access from the next request on,
// and the audit names it. An inserted token grants no access either.
func TestForgedTokensOpenNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		chain := g.open("sealed")
		g.complete(chain)
		receipt := must[*ledger.StoredReceipt](t)(g.store.ReceiptOfChain(t.Context(), chain))
		request := &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: receipt.ID.UUID}
		_, secret, err := g.IssueToken(t.Context(), g.who.admin, request, "once")
		done(t, err)
		works := func() bool {
			_, err := g.VerifyToken(t.Context(), secret.Reveal())
			if err != nil {
				checkCode(t, "a token", err, fault.CodeNotFound)
			}
			return err == nil
		}
		if !works() {
			t.Fatal("the token does not work as it is")
		}
		was := scene.last("tokens")
		scene.editEachColumn(&was, []string{"id"}, lastUse, func(edit string) {
			if works() {
				t.Errorf("%s: it still opens", edit)
			}
			if !strings.Contains(edit, "tokens.org_id") {
				g.auditFinds(edit, ledger.CheckRegistry)
			}
		})
		if !works() {
			t.Error("as it was it does not work any more")
		}
		checkIntact(t, g.Service, g.who.slug, 1)
		// Nothing can be done about one that was changed, under its key or by its id.
		done(t, scene.update("tokens SET created_at = created_at + 1"))
		_, _, err = g.IssueToken(t.Context(), g.who.admin, request, "once")
		checkCode(t, "issued again", err, fault.CodeEvidenceTampered)
		done(t, scene.update("tokens SET created_at = created_at - 1"))
		hash := ledger.HashToken("cvt_his")
		inserted := was.with(map[string]any{"id": make([]byte, 16), "hash": hash[:], "idempotency_key": nil})
		done(t, scene.insert(&inserted))
		if _, err := g.VerifyToken(t.Context(), "cvt_his"); err == nil {
			t.Error("a token that was inserted opens")
		}
	})
}

// While any column of a signing key's row was changed, including the sealed private half, nothing
// is signed and no decision is accepted, and the audit names the key.
func TestForgedSigningKeysSignNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		id := g.ask(g.open("pay"))
		was := scene.last("signing_keys")
		scene.editEachColumn(&was, []string{"org_id", "id"}, nil, func(edit string) {
			if err := g.decide(g.who.member, id, true); err == nil {
				t.Errorf("%s: a decision is signed", edit)
			}
			if status := g.view(id).Status; status != ledger.ApprovalPending {
				t.Fatalf("%s: the approval is %s", edit, status)
			}
			g.auditFinds(edit, ledger.CheckRegistry)
		})
		g.approve(id)
	})
}

// A policy set whose row was changed in any column decides nothing and is listed with its number
// only, and the audit names it.
//
//countersign:race
func TestForgedPoliciesDecideNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		g.put(denyDeploys)
		chain := g.open("deploys")
		was := scene.last("policies")
		scene.editEachColumn(&was, []string{"org_id", "number"}, nil, func(edit string) {
			fresh := g.replica() // has not compiled the set yet
			_, err := fresh.RecordEvent(t.Context(), g.who.agent, chain, step(t, "deploy", ""))
			checkCode(t, edit, err, fault.CodeEvidenceTampered)
			views, _, err := fresh.Policies(t.Context(), g.who.member, 0, 9)
			done(t, err)
			for _, view := range views {
				if !view.Tampered || view.Version != "" || view.Document != nil || len(view.Rules) > 0 {
					t.Errorf("%s: it is listed as %+v", edit, view.PolicyRecord)
				}
			}
			g.auditFinds(edit, ledger.CheckAuditLog)
		})
		if outcome := g.record(chain, step(t, "deploy", "")).Event.Status; outcome != ledger.EventDenied {
			t.Errorf("as it was, a deploy is %s", outcome)
		}
	})
}

// An anchor whose row was changed in any column counts as failed.
func TestForgedAnchorsProveNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		chain := g.open("sealed")
		g.complete(chain)
		sealed := must[*ledger.StoredReceipt](t)(g.store.ReceiptOfChain(t.Context(), chain))
		done(t, g.Jobs().SaveAnchor(t.Context(), &ledger.Anchor{
			Org: g.who.id, Kind: ledger.SubjectHead, Subject: sealed.ID.UUID, Sequence: 1, Method: ledger.MethodTSA, Digest: sealed.Hash(),
			Standing: ledger.AnchorVerified, Proof: []byte("proof"),
		}))
		standing := func() ledger.AnchorStanding {
			return must[*ledger.Verification](t)(g.VerifyReceipt(t.Context(), g.who.admin, sealed.ID)).TSA.Standing
		}
		if got := standing(); got != ledger.AnchorVerified {
			t.Fatalf("the anchor is %s", got)
		}
		was := scene.last("anchors")
		scene.editEachColumn(&was, []string{"org_id", "kind", "subject_id", "method"}, map[string]bool{"no": true}, func(edit string) {
			if got := standing(); got == ledger.AnchorVerified {
				t.Errorf("%s: the anchor is %s", edit, got)
			}
		})
		if got := standing(); got != ledger.AnchorVerified {
			t.Errorf("as it was, the anchor is %s", got)
		}
	})
}

// A cached caller is checked against its key's row on every request: after an edit of any column,
// the key can neither read nor write on any replica.
func TestRememberedCallersAreHeldAgainstTheirRows(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		made := must[*service.NewKey](t)(g.Operator().CreateKey(t.Context(), g.who.slug, &service.KeyRequest{Name: "admin", Role: ledger.RoleAdmin}))
		use := func() (reads, writes error) {
			caller, err := g.Authenticate(t.Context(), made.Text.Reveal())
			if err != nil {
				return err, err
			}
			_, reads = g.Webhooks(t.Context(), caller)
			_, writes = g.ActivateKillSwitch(t.Context(), caller, "his")
			return reads, writes
		}
		for range 2 { // the second time it is remembered
			reads, writes := use()
			done(t, reads)
			done(t, writes)
			g.deactivateKillSwitch()
		}
		var was row
		for _, r := range scene.rowsOf("api_keys") {
			if r.value("name") == "admin" {
				was = r
			}
		}
		scene.editEachColumn(&was, []string{"hash"}, lastUse, func(edit string) {
			if reads, writes := use(); reads == nil || writes == nil {
				t.Errorf("%s: it reads with %v and writes with %v", edit, reads, writes)
			}
		})
		reads, writes := use()
		done(t, reads)
		done(t, writes)
	})
}
