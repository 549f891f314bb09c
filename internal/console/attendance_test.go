package console_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"countersign/internal/ledger"
)

// A reviewer sees in the list and on the page whether somebody still waits for the
// decision. To look at it is not to wait for it.
func TestReviewersSeeWhoWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	member, here := w.signedIn(t, w.acme, ledger.RoleMember), page(asked.ID)
	agent := w.signedIn(t, w.acme, ledger.RoleAgent)
	says := func(text string) {
		t.Helper()
		for _, path := range []string{"/", "/approvals"} {
			member.get(t, path).expect(t, http.StatusOK, ">"+text+"<")
		}
		member.get(t, here).expect(t, http.StatusOK, "the agent "+text)
		// An agent's own page says nothing of it, and to open it is no poll.
		agent.get(t, "/approvals").expect(t, http.StatusOK, here).without(t, "has never asked", "is waiting<", "last asked")
		agent.get(t, here).expect(t, http.StatusOK).without(t, "has never asked", "is waiting<", "last asked")
	}
	says("has never asked for the decision")
	if _, err := w.service.Approval(t.Context(), w.caller(t, w.acme), asked.ID, 0); err != nil {
		t.Fatal(err)
	}
	says("is waiting")
	w.elapsed.Store(int64(4*time.Minute + time.Second))
	says("last asked 4 min ago, may have given up")
	member.post(t, here+"/deny", decision(asked, "")).expect(t, http.StatusSeeOther)
	member.get(t, here).expect(t, http.StatusOK, "Agent last asked").without(t, "may have given up")
}

// The page says who may decide: anyone, or those whom the rule names and, once it has
// escalated, the organization's fallback approvers, who then can.
func TestThePageSaysWhoMayDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, page(w.waits(t, w.acme, payment).ID)).expect(t, http.StatusOK, "any member or admin", ">Approve<")

	w.settings(t, w.acme, `{"approval_timeout_hours":2,"fallback_approvers":["ceo@example.com"]}`)
	w.govern(t, w.acme, `["the controller"]`)
	asked := w.waits(t, w.acme, harmless)
	chief := w.signedInWith(t, w.acme, w.key(t, w.acme, "ceo@example.com", ledger.RoleMember))
	for _, person := range []*browser{member, chief} {
		person.get(t, page(asked.ID)).expect(t, http.StatusOK, "the controller, and once it has escalated also ceo@example.com").without(t, ">Approve<")
	}
	w.elapsed.Store(int64(time.Hour))
	if _, err := w.service.AdvanceApproval(t.Context(), asked.ID); err != nil {
		t.Fatal(err)
	}
	member.get(t, page(asked.ID)).expect(t, http.StatusOK, "the controller, and since it escalated also ceo@example.com").without(t, ">Approve<")
	chief.get(t, page(asked.ID)).expect(t, http.StatusOK, ">Approve<")
	chief.post(t, page(asked.ID)+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
}

// Admins are told on the pages of approvals and settings when an escalation would
// reach nobody, and what to do; others are not, and it ends when somebody is told.
func TestAdminsAreToldThatEscalationsReachNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	const said = "Nobody is notified when an approval escalates"
	for _, path := range []string{"/approvals", "/settings"} {
		admin.get(t, path).expect(t, http.StatusOK, said, "name no fallback approvers", "<code>approval.escalated</code>", "/settings#fallback", "<code>--smtp-url-file</code>")
	}
	member.get(t, "/approvals").expect(t, http.StatusOK).without(t, said)
	w.settings(t, w.acme, `{"fallback_approvers":["ceo@example.com"]}`)
	admin.get(t, "/settings").expect(t, http.StatusOK, said, "but the server has no mail server", "<code>--smtp-url-file</code>").without(t, "/settings#fallback")
	admin.post(t, "/webhooks", url.Values{"url": {"https://hooks.example.com/x"}, "events": {"approval.escalated"}, "once": {"once"}}).expect(t, http.StatusCreated)
	for _, path := range []string{"/approvals", "/settings"} {
		admin.get(t, path).expect(t, http.StatusOK).without(t, said)
	}
}
