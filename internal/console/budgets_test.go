package console_test

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
)

// Budgets are added, changed and removed on the settings page, a refused form keeps what
// was typed, and the page shows what is used.
func TestBudgetsAreEdited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	money := cmp.Comparer(func(a, b ledger.Money) bool { return a.Cmp(b) == 0 })
	check := func(want ...ledger.Budget) {
		t.Helper()
		if diff := cmp.Diff(want, w.settingsOf(t, w.acme).Budgets, money); diff != "" {
			t.Fatalf("the budgets differ (-want +got):\n%s", diff)
		}
	}
	set := func(members map[string]string) {
		t.Helper()
		form := filled(t, admin)
		for name, value := range members {
			form.Set(name, value)
		}
		admin.post(t, "/settings", form).expect(t, http.StatusSeeOther)
	}
	set(map[string]string{"budget_0_name": "daily", "budget_0_limit": "250.50"})
	limit, tokens := ledger.MoneyOf(250.5), int64(1000)
	daily := ledger.Budget{Name: "daily", Scope: ledger.ScopeOrganization, Window: ledger.WindowDay, LimitUSD: &limit, Decision: ledger.RequireApproval}
	check(daily)
	set(map[string]string{
		"budget_1_name": "tokens", "budget_1_scope": "agent", "budget_1_window": "month", "budget_1_measure": "tokens", "budget_1_limit": "1000",
		"budget_1_decision": "deny", "budget_1_match": "a\r\n b ",
	})
	monthly := ledger.Budget{Name: "tokens", Scope: ledger.ScopeAgent, Match: []string{"a", "b"}, Window: ledger.WindowMonth, LimitTokens: &tokens, Decision: ledger.Deny}
	check(daily, monthly)

	bad := filled(t, admin)
	bad.Set("budget_2_name", "typed <b>")
	admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, "limit usd must", "typed &lt;b&gt;").without(t, "typed <b>")
	bad = filled(t, admin)
	bad.Set("budget_1_limit", "a lot")
	admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, "Budgets 2 limit tokens must", "a lot")
	// A new budget without a name is a mistake. Only clearing the name of an existing one removes it.
	bad = filled(t, admin)
	bad.Set("budget_2_limit", "77.25")
	admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, "Budgets 3 name", "77.25")
	check(daily, monthly)

	// That also holds if an existing one is cleared completely, however often the form is sent.
	bad.Set("budget_0_name", "")
	bad.Set("budget_0_limit", "")
	for range 2 {
		page := admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, "name", "77.25")
		bad = fieldsIn(page.body)
	}
	check(daily, monthly)

	w.spend(t, w.acme)
	admin.get(t, "/settings").expect(t, http.StatusOK, "Use of budgets", "200.00 USD of 250.50 USD", "50.50 USD left", "agent a", "600 tokens of 1,000 tokens", "<meter")

	set(map[string]string{"budget_0_name": ""})
	check(monthly)
	set(map[string]string{"budget_0_name": ""})
	check()
}

// spend takes of both kinds of budgets.
func (w *world) spend(t *testing.T, of *tenant) {
	t.Helper()
	chain := w.open(t, of, "spending")
	w.record(t, of, chain, `{"agent_name":"a","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":200}}`)
	w.record(t, of, chain, `{"agent_name":"a","action_type":"llm_call","action_name":"complete","payload":{"model":"gpt-4o","input_tokens":600}}`)
}

// The settings page fits a phone: nothing of the bars and of the budgets' form is wider
// than the screen.
func TestBudgetsFitAPhone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"budgets":[{"name":"Everything that marketing may spend in a single day of the year","scope":"organization","window":"day","limit_usd":250.5,"decision":"deny"},
		{"name":"tokens","scope":"agent","window":"month","limit_tokens":600,"decision":"deny"}]}`)
	w.spend(t, w.acme)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleAdmin)
	b.do(t, chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile), chromedp.Navigate(w.server.URL+"/settings"))
	b.fits(t, "the settings")
	if bars := ask[int](t, b, "document.querySelectorAll('meter').length"); bars != 2 {
		t.Errorf("%d bars are shown", bars)
	}
	b.says(t, "200.00 USD of 250.50 USD", "Nothing is left until")
	b.quiet(t)
}
