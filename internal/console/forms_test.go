package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"countersign/internal/ledger"
)

// A refused form for a new key keeps the role and the expiry that were chosen. Otherwise the
// corrected form would create a key that never expires.
func TestRefusedKeyKeepsItsChoices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, `<option value="agent" selected>`, `<option value="" selected>never`)
	for _, chosen := range []struct{ role, days string }{{"member", "7"}, {"admin", "365"}, {"agent", ""}} {
		form := admin.fill(t, "/api-keys", url.Values{"name": {strings.Repeat("n", 201)}, "role": {chosen.role}, "days": {chosen.days}})
		admin.post(t, "/api-keys", form).
			expect(t, http.StatusUnprocessableEntity, `<option value="`+chosen.role+`" selected>`, `<option value="`+chosen.days+`" selected>`)
	}
}

// The forms take every text that the API takes, in any script. The encoding of a form makes
// such a text up to twelve times as long as its number of characters.
func TestFormsTakeTheLongestTexts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	webhook := url.Values{"url": {"https://hooks.example/" + strings.Repeat("a/", 900)}, "description": {strings.Repeat("界", 200)}, "events": {
		"chain.completed", "chain.auto_paused", "approval.requested", "approval.escalated", "approval.decided", "approval.timed_out",
		"kill_switch.activated", "kill_switch.deactivated", "ledger.tamper_found",
	}}
	admin.post(t, "/webhooks", admin.fill(t, "/webhooks", webhook)).expect(t, http.StatusCreated, webhook.Get("description"))
	reason := strings.Repeat("界", 500)
	admin.post(t, "/kill-switch/activate", url.Values{"confirm": {"yes"}, "reason": {reason}}).expect(t, http.StatusSeeOther)
	admin.get(t, "/kill-switch").expect(t, http.StatusOK, reason)
}

// A page can have several forms. After one was sent and the browser went back to the page, the
// others still work.
func TestFormsOfOnePageAreIndependent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.exports(t, w.acme, ledger.ExportAdmins)
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)

	form := admin.fill(t, "/api-keys", url.Values{"overlap": {"600"}})
	for _, role := range []ledger.Role{ledger.RoleMember, ledger.RoleAgent} {
		here := "/api-keys/" + w.acme.keys[role].Record.ID.String()
		for path, status := range map[string]int{here + "/sign-in": http.StatusCreated, here + "/rotate": http.StatusOK} {
			shownOnce(t, admin.post(t, path, form).expect(t, status).without(t, "was already sent"))
			admin.post(t, path, form).expect(t, status, "was already sent")
		}
	}

	receipt := w.complete(t, w.acme, w.open(t, w.acme, "shared"))
	form = admin.fill(t, "/receipts/"+receipt.String(), url.Values{
		"receipt_id": {receipt.String()}, "artifact_type": {"receipt"}, "artifact_id": {receipt.String()},
	})
	for _, days := range []string{"7", "30"} {
		form.Set("days", days)
		for _, path := range []string{"/public-links", "/public-links/shares"} {
			shownOnce(t, admin.post(t, path, form).expect(t, http.StatusCreated))
			admin.post(t, path, form).expect(t, http.StatusCreated, "already created and shown")
		}
	}
}
