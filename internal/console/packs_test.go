package console_test

import (
	"net/http"
	"net/url"
	"testing"

	"countersign/internal/ledger"
)

// An organization without a policy set is offered the starter set, with its rules to
// read; an admin puts it in force. The offer is gone afterwards, and replaces no other
// set.
func TestStarterPoliciesAreOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	const pack, offer, put = "/policies/packs/starter", `href="/policies/packs/starter"`, "Put these rules in force"
	for _, page := range []string{"/", "/policies"} {
		admin.get(t, page).expect(t, http.StatusOK, offer, "Review and put in force", "shell commands")
		member.get(t, page).expect(t, http.StatusOK, offer, "See the rules").without(t, "Review and put in force")
	}
	admin.get(t, pack).expect(t, http.StatusOK, "SQL that writes", "require approval", put)
	member.get(t, pack).expect(t, http.StatusOK, "SQL that writes", "Only admins").without(t, put)
	w.signedIn(t, w.acme, ledger.RoleAgent).get(t, pack).expect(t, http.StatusForbidden)
	for _, name := range []string{"other", "starter.cases", "..%2fstarter"} {
		admin.get(t, "/policies/packs/"+name).expect(t, http.StatusNotFound)
		admin.post(t, "/policies/packs/"+name, nil).expect(t, http.StatusNotFound)
	}

	admin.post(t, pack, nil).expect(t, http.StatusSeeOther)
	admin.post(t, pack, nil).expect(t, http.StatusSeeOther) // a second click
	admin.get(t, "/policies").expect(t, http.StatusOK, "In force: <code>v1&#43;", "mail to others").without(t, offer, "v2&#43;")
	admin.get(t, "/").expect(t, http.StatusOK).without(t, offer)
	admin.get(t, pack).expect(t, http.StatusOK, "already has a policy set").without(t, put)
	shell := `{"agent_name":"clerk","action_type":"tool_call","action_name":"bash","payload":{"command":"ls"}}`
	if event := w.record(t, w.acme, w.open(t, w.acme, "tidy"), shell); event.Status != ledger.EventAwaiting {
		t.Errorf("under the starter set, a shell command is %s", event.Status)
	}

	rival := w.signedIn(t, w.rival, ledger.RoleAdmin)
	rival.get(t, pack).expect(t, http.StatusOK, put)
	rival.post(t, "/policies", url.Values{"document": {rules}, "format": {"yaml"}, "replaces": {"0"}}).expect(t, http.StatusSeeOther)
	rival.post(t, pack, nil).expect(t, http.StatusConflict, "Nothing was changed", "has a policy set by now").without(t, put)
	rival.get(t, "/policies").expect(t, http.StatusOK, "no-deletes").without(t, "mail to others")
}
