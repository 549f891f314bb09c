package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
)

// An admin activates the kill switch with a reason and a confirmation. Every page of
// the organization then says so until it is deactivated.
func TestAdminStopsEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "stopped", `{}`)
	receipt := w.complete(t, w.acme, chain)
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	stranger := w.signedIn(t, w.rival, ledger.RoleAdmin)
	const banner = "The kill switch is active."
	admin.get(t, "/kill-switch").expect(t, http.StatusOK, "Not active", "Activate the kill switch").without(t, banner)
	for _, c := range []struct {
		form url.Values
		says string
	}{
		{url.Values{"reason": {"odd transfers"}}, "tick the box"},
		{url.Values{"confirm": {"yes"}}, "Reason is required"},
		{url.Values{"confirm": {"yes"}, "reason": {"  "}}, "Reason is required"},
		{url.Values{"confirm": {"yes"}, "reason": {strings.Repeat("x", 501)}}, "Reason must"},
	} {
		admin.post(t, "/kill-switch/activate", c.form).expect(t, http.StatusUnprocessableEntity, c.says, c.form.Get("reason")).without(t, banner)
	}
	sure := url.Values{"confirm": {"yes"}, "reason": {hostile}}
	admin.post(t, "/kill-switch/activate", sure).expect(t, http.StatusSeeOther)
	for _, path := range []string{"/", "/approvals", "/kill-switch", "/check", "/chains/" + chain.String(), "/receipts/" + receipt.String()} {
		member.get(t, path).expect(t, http.StatusOK, banner, "&lt;script&gt;", `role="alert"`).without(t, "<script>", "<img src=x")
	}
	member.get(t, "/chains/nonsense").expect(t, http.StatusNotFound, banner)
	member.get(t, "/kill-switch").expect(t, http.StatusOK, "Only admins").without(t, "/kill-switch/deactivate")
	stranger.get(t, "/").expect(t, http.StatusOK).without(t, banner)
	w.browser(t).get(t, "/").expect(t, http.StatusOK).without(t, banner)
	if event := w.record(t, w.acme, w.open(t, w.acme, "after"), harmless); event.Status != ledger.EventDenied {
		t.Errorf("an action is %s while everything is stopped", event.Status)
	}

	admin.post(t, "/kill-switch/deactivate", fieldsIn(admin.get(t, "/kill-switch").body)).expect(t, http.StatusUnprocessableEntity, "tick the box", banner)
	admin.post(t, "/kill-switch/deactivate", sureToDeactivate(t, admin)).expect(t, http.StatusSeeOther)
	admin.get(t, "/kill-switch").expect(t, http.StatusOK, "Not active", "Deactivated by").without(t, banner)
}

// sureToDeactivate returns the form that deactivates the kill switch, with its box ticked.
func sureToDeactivate(t *testing.T, admin *browser) url.Values {
	t.Helper()
	form := fieldsIn(admin.get(t, "/kill-switch").expect(t, http.StatusOK).body)
	form.Set("confirm", "yes")
	return form
}

// A page that was opened during one stop does not lift a later one: its reader has not seen why that one was
// begun.
func TestStalePageLiftsNoLaterStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	first, second := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleAdmin)
	w.stop(t, w.acme, "a drill")
	stale := sureToDeactivate(t, first)
	second.post(t, "/kill-switch/deactivate", sureToDeactivate(t, second)).expect(t, http.StatusSeeOther)
	w.elapsed.Add(int64(time.Minute))
	w.stop(t, w.acme, "a real incident")
	first.post(t, "/kill-switch/deactivate", stale).expect(t, http.StatusConflict, "Nothing was changed", "activated again", "a real incident")
	first.post(t, "/kill-switch/deactivate", url.Values{"confirm": {"yes"}}).expect(t, http.StatusConflict, "Nothing was changed", "a real incident")
	first.get(t, "/").expect(t, http.StatusOK, "The kill switch is active.")
	first.post(t, "/kill-switch/deactivate", sureToDeactivate(t, first)).expect(t, http.StatusSeeOther)
	first.post(t, "/kill-switch/deactivate", stale).expect(t, http.StatusSeeOther) // there is nothing to lift
	first.get(t, "/").expect(t, http.StatusOK).without(t, "The kill switch is active.")
}

// The overview shows what waits for a person, and only admins can resume a paused
// chain.
func TestOverviewShowsWhatNeedsAPerson(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"auto_pause":{"max_events":1}}`)
	member, admin := w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.acme, ledger.RoleAdmin)
	member.get(t, "/").expect(t, http.StatusOK, "Only the built-in rules apply", `<a href="/approvals">0</a>`).without(t, "Paused chains", "Waiting for a person", "evaluation mode is shadow")
	asked := w.waits(t, w.acme, payment)
	paused := w.open(t, w.acme, "runaway", `{}`, `{}`)
	resume := "/chains/" + paused.String() + "/resume"
	member.get(t, "/").expect(t, http.StatusOK, `<a href="/approvals">1</a>`, page(asked.ID), "send_payment", "Paused chains", "limit of 1 events").without(t, resume)
	member.get(t, "/chains/"+paused.String()).expect(t, http.StatusOK, "Paused automatically", "limit of 1 events").without(t, resume)
	admin.get(t, "/").expect(t, http.StatusOK, resume)
	admin.get(t, "/chains/"+paused.String()).expect(t, http.StatusOK, resume)

	member.post(t, resume, nil).expect(t, http.StatusForbidden, "for admins")
	w.signedIn(t, w.rival, ledger.RoleAdmin).post(t, resume, nil).expect(t, http.StatusNotFound)
	admin.post(t, "/chains/nonsense/resume", nil).expect(t, http.StatusNotFound)
	admin.post(t, resume, nil).expect(t, http.StatusSeeOther)
	admin.get(t, "/chains/"+paused.String()).expect(t, http.StatusOK).without(t, "Paused automatically")
	admin.post(t, resume, nil).expect(t, http.StatusConflict, "The chain is not paused")

	w.govern(t, w.acme, `["the member"]`)
	w.settings(t, w.acme, `{"evaluation_mode":"shadow"}`)
	member.get(t, "/").expect(t, http.StatusOK, "evaluation mode is shadow").without(t, "Only the built-in rules apply")
}

// The pages of a chain and of its receipt show each approval and how it ended.
func TestChainAndReceiptShowApprovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"external_domains_allowlist":["example.com"]}`)
	chain := w.open(t, w.acme, "pay-the-bills")
	for _, body := range []string{
		payment, strings.Replace(payment, "send_payment", "pay_again", 1), strings.Replace(payment, "send_payment", "pay_late", 1),
		`{"agent_name":"clerk","action_type":"tool_call","action_name":"fetch","payload":{"url":"https://elsewhere.example/x"}}`,
	} {
		w.record(t, w.acme, chain, body)
	}
	member, here := w.signedIn(t, w.acme, ledger.RoleMember), "/chains/"+chain.String()
	member.get(t, here).expect(t, http.StatusOK, "awaiting approval", ">waiting</a>", "financial_approval_threshold", "flagged", "is not on the allowlist",
		"required by the rule", "Limits in force", "approval above 5,000.00 USD", "approval above 10,000.00 USD", "<dd>example.com</dd>")
	asked, err := w.service.ChainApprovals(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin), chain)
	if err != nil || len(asked.Shown) != 3 {
		t.Fatalf("%v wait: %v", asked, err)
	}
	waiting := asked.Shown
	member.post(t, page(waiting[0].ID)+"/approve", decision(waiting[0], "")).expect(t, http.StatusSeeOther)
	member.post(t, page(waiting[1].ID)+"/deny", decision(waiting[1], "")).expect(t, http.StatusSeeOther)
	receipt := w.complete(t, w.acme, chain)
	for _, path := range []string{here, "/receipts/" + receipt.String()} {
		member.get(t, path).expect(t, http.StatusOK, page(waiting[0].ID), page(waiting[1].ID), page(waiting[2].ID),
			`"badge denied"`, `"badge cancelled"`, "pay_late").without(t, ">waiting</a>")
	}
	// The badge says how it ended, and that somebody was asked is its history.
	member.get(t, here).expect(t, http.StatusOK, `"badge allowed"`, "approval: <a href=", ">approved</a>", ">denied</a>").without(t, "awaiting approval")
}
