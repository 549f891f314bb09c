package console_test

import (
	"net/http"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/servicetest"
)

// Known tampering stands on every page of the organization's members and admins until an
// operator acknowledges it, and on nobody else's. The page that lists it says what to do.
func TestTamperingStandsOnEveryPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	receipt := w.complete(t, w.acme, w.open(t, w.acme, "audited"))
	member, admin := w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.acme, ledger.RoleAdmin)
	agent, stranger := w.signedIn(t, w.acme, ledger.RoleAgent), w.signedIn(t, w.rival, ledger.RoleAdmin)
	const banner = "Records were changed outside the service."
	member.get(t, "/").expect(t, http.StatusOK).without(t, banner)
	member.get(t, "/tampering").expect(t, http.StatusOK, "No tampering is known").without(t, banner)

	w.store.rewrite(receipt, "audited", "altered")
	if _, err := w.service.CheckReceipt(t.Context(), receipt); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the finding is kept", func() bool {
		findings, err := w.service.Findings(t.Context(), w.callerOf(t, w.acme, ledger.RoleMember))
		return err == nil && len(findings) == 1
	})
	for _, path := range []string{"/", "/approvals", "/policies", "/kill-switch", "/check", "/tampering", "/nowhere"} {
		if path != "/nowhere" {
			member.get(t, path).expect(t, http.StatusOK, banner, "One finding of tampering is", "/tampering")
		}
		stranger.get(t, path).without(t, banner)
		agent.get(t, path).without(t, banner)
		w.browser(t).get(t, path).without(t, banner)
	}
	for _, path := range []string{"/settings", "/api-keys", "/signing-keys", "/public-links", "/webhooks", "/audit-log"} {
		admin.get(t, path).expect(t, http.StatusOK, banner)
		member.get(t, path).expect(t, http.StatusForbidden, banner)
	}
	admin.get(t, "/audit-log").expect(t, http.StatusOK, "tampering.found")
	member.get(t, "/tampering").expect(t, http.StatusOK, "signature", "/receipts/"+receipt.String(), "open", "countersign tampering acknowledge")
	agent.get(t, "/tampering").expect(t, http.StatusForbidden)
	w.browser(t).get(t, "/tampering").expect(t, http.StatusUnauthorized)
	stranger.get(t, "/tampering").expect(t, http.StatusOK, "No tampering is known").without(t, receipt.String())

	findings, err := w.service.Operator().Findings(t.Context(), "acme")
	if err != nil || len(findings) != 1 {
		t.Fatalf("%d findings: %v", len(findings), err)
	}
	if err := w.service.Operator().Acknowledge(t.Context(), findings[0], "a <b>test</b> of ours"); err != nil {
		t.Fatal(err)
	}
	member.get(t, "/").expect(t, http.StatusOK).without(t, banner)
	member.get(t, "/tampering").expect(t, http.StatusOK, "acknowledged", "a &lt;b&gt;test&lt;/b&gt; of ours").without(t, banner, "<b>test")
}
