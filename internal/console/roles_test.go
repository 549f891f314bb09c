package console_test

import (
	"net/http"
	"strings"
	"testing"

	"countersign/internal/console"
	"countersign/internal/ledger"
)

// Every form is held to its role and to this site, whatever its fields say.
func TestFormsByRoleAndSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	roles := map[ledger.Role]*browser{
		ledger.RoleAgent: w.signedIn(t, w.acme, ledger.RoleAgent), ledger.RoleMember: w.signedIn(t, w.acme, ledger.RoleMember), ledger.RoleAdmin: w.signedIn(t, w.acme, ledger.RoleAdmin),
	}
	id := asked.ID.String()
	fill := strings.NewReplacer("{approval_id}", id, "{chain_id}", asked.Chain.String(), "{key_id}", id, "{token_id}", id, "{webhook_id}", id)
	open := map[string]bool{"/sign-in": true, "/sign-in/sso": true, "/sign-out": true, "/check": true}
	members := map[string]bool{"/approvals/{approval_id}/approve": true, "/approvals/{approval_id}/deny": true}
	forms := 0
	for _, pattern := range console.New(console.Config{Service: w.service}).Patterns() {
		path := fill.Replace(pattern)
		if open[pattern] || !takesForms(t, w, path) {
			continue
		}
		forms++
		w.browser(t).post(t, path, nil).expect(t, http.StatusUnauthorized)
		roles[ledger.RoleAgent].post(t, path, nil).expect(t, http.StatusForbidden)
		if !members[pattern] {
			roles[ledger.RoleMember].post(t, path, nil).expect(t, http.StatusForbidden, "for admins")
		}
		for _, site := range []string{"cross-site", "same-site"} {
			roles[ledger.RoleAdmin].send(t, http.MethodPost, path, nil, http.Header{"Sec-Fetch-Site": {site}}).expect(t, http.StatusForbidden, "another site")
		}
	}
	if forms < 14 {
		t.Errorf("found %d forms", forms)
	}
}

func takesForms(t *testing.T, w *world, path string) bool {
	t.Helper()
	return strings.Contains(w.browser(t).send(t, http.MethodDelete, path, nil, http.Header{}).Header.Get("Allow"), http.MethodPost)
}

// The administration pages are for admins; members read only the policies and the
// kill switch.
func TestAdminPagesByRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member, agent := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.acme, ledger.RoleAgent)
	for path, forMembers := range map[string]int{
		"/policies": http.StatusOK, "/kill-switch": http.StatusOK, "/settings": http.StatusForbidden, "/api-keys": http.StatusForbidden,
		"/public-links": http.StatusForbidden, "/signing-keys": http.StatusForbidden, "/webhooks": http.StatusForbidden, "/audit-log": http.StatusForbidden,
	} {
		w.browser(t).get(t, path).expect(t, http.StatusUnauthorized)
		agent.get(t, path).expect(t, http.StatusForbidden)
		member.get(t, path).expect(t, forMembers).without(t, `aria-label="Administration"`)
		admin.get(t, path).expect(t, http.StatusOK, `aria-label="Administration"`)
	}
}
