package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
)

// filled is the settings page's form as a browser would send it unchanged.
func filled(t *testing.T, b *browser) url.Values {
	t.Helper()
	return fieldsIn(b.get(t, "/settings").expect(t, http.StatusOK).body)
}

// fieldsIn returns what a browser would send of the form in a page.
func fieldsIn(body string) url.Values {
	form := make(url.Values)
	for _, input := range regexp.MustCompile(`<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"([^>]*)>`).FindAllStringSubmatch(body, -1) {
		if !strings.Contains(input[0], `type="checkbox"`) && !strings.Contains(input[0], `type="radio"`) || strings.Contains(input[3], "checked") {
			form.Set(input[1], input[2])
		}
	}
	for _, choice := range regexp.MustCompile(`(?s)<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>`).FindAllStringSubmatch(body, -1) {
		if chosen := regexp.MustCompile(`<option value="([^"]*)" selected`).FindStringSubmatch(choice[2]); chosen != nil {
			form.Set(choice[1], chosen[1])
		}
	}
	for _, area := range regexp.MustCompile(`(?s)<textarea[^>]*name="([^"]+)"[^>]*>\n(.*?)</textarea>`).FindAllStringSubmatch(body, -1) {
		form.Set(area[1], area[2])
	}
	return form
}

func (w *world) settingsOf(t *testing.T, of *tenant) ledger.Settings {
	t.Helper()
	org, err := w.service.Organization(t.Context(), w.callerOf(t, of, ledger.RoleAdmin))
	if err != nil {
		t.Fatal(err)
	}
	return org.Settings
}

// The settings form changes what was edited, overwrites no concurrent change, and a
// refused form changes nothing.
func TestSettingsAreChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	money := cmp.Comparer(func(a, b ledger.Money) bool { return a.Cmp(b) == 0 })
	before := w.settingsOf(t, w.acme)
	admin.post(t, "/settings", filled(t, admin)).expect(t, http.StatusSeeOther)
	if diff := cmp.Diff(before, w.settingsOf(t, w.acme), money); diff != "" {
		t.Fatalf("a form sent unchanged changes (-before +after):\n%s", diff)
	}
	form := filled(t, admin)
	for name, value := range map[string]string{
		"single": "250.50", "cumulative": "1000", "listed": "yes", "allowlist": "example.com\r\n\r\n  example.org ", "high_risk": "treasurer",
		"timeout": "0.5", "fallback": "lead@example.com", "two_person": "yes", "evaluation_mode": "shadow",
		"max_events": "7", "max_seconds": "60", "max_tokens": "1000", "fail_modes": "financial: deny\r\ndefault: deny",
		"abandon": "48.5", "fast_path": "get\r\n list ", "evidence_export": "admins", "slack_channel": "C0123456789",
	} {
		form.Set(name, value)
	}
	admin.post(t, "/settings", form).expect(t, http.StatusSeeOther)
	admin.get(t, "/settings?saved=yes").expect(t, http.StatusOK, "Saved. The settings apply", "250.5", "example.org")
	want := ledger.Settings{
		EvaluationMode: ledger.Shadow, FinancialThreshold: ledger.MoneyOf(250.5), CumulativeThreshold: ledger.MoneyOf(1000),
		ExternalDomainsAllowlist: []string{"example.com", "example.org"}, HighRiskAgents: []string{"treasurer"}, ApprovalTimeoutHours: 0.5,
		FallbackApprovers: []string{"lead@example.com"}, TwoPersonApproval: true, FailModes: map[string]string{"financial": "deny", "default": "deny"},
		FastPathActions: []string{"get", "list"}, AbandonAfterHours: 48.5, EvidenceExport: ledger.ExportAdmins, SlackChannel: "C0123456789",
		AutoPause: ledger.AutoPause{MaxEvents: 7, MaxDurationSeconds: 60, MaxTokens: 1000},
	}
	if diff := cmp.Diff(want, w.settingsOf(t, w.acme), money); diff != "" {
		t.Errorf("the settings differ (-want +got):\n%s", diff)
	}
	// What another admin changed meanwhile is not overwritten.
	admin.post(t, "/settings", form).expect(t, http.StatusUnprocessableEntity, "Nothing was saved, because somebody changed the settings")

	for name, c := range map[string]struct{ value, says string }{
		"single": {"a lot", "Financial approval threshold usd must"}, "cumulative": {"-1", "Cumulative financial threshold usd must"}, "timeout": {"", "Approval timeout hours must"},
		"allowlist": {"not a domain", "must be a domain"}, "fallback": {"nobody", "must be an e-mail address"}, "max_events": {"1.5", "Auto pause max events must"},
		"fail_modes": {"financial", "a colon"}, "evaluation_mode": {"loose", "Evaluation mode must"}, "name": {"", "Name is required"},
		"abandon": {"0", "Abandon after hours must"}, "fast_path": {"get\r\ndelete", "must be one of get, list"},
		"slack_channel": {"#general", "must be the id of a Slack channel"},
	} {
		bad := filled(t, admin)
		bad.Set(name, c.value)
		admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, c.says, "treasurer")
	}
	bad := filled(t, admin)
	bad.Set("high_risk", hostile+"</textarea>")
	bad.Set("single", hostile)
	admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, "&lt;script&gt;").without(t, "<script>", "<img src=x")
	if diff := cmp.Diff(want, w.settingsOf(t, w.acme), money); diff != "" {
		t.Errorf("a refused form changed the settings (-want +got):\n%s", diff)
	}
}

// Settings as large as a request of the API can contain are saved from the form, and so is a policy
// set of the largest size, whatever script it is written in. A larger form is refused, and the
// settings' page says where larger settings are changed.
func TestLargestFormsAreSaved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	list := func(name string) string {
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf("%q", fmt.Sprintf(name, i))
		}
		return "[" + strings.Join(names, ",") + "]"
	}
	w.settings(t, w.acme, fmt.Sprintf(`{"external_domains_allowlist":%s,"high_risk_agents":%s}`,
		list(strings.Repeat(strings.Repeat("d", 59)+".", 4)+"x%04d"), list(strings.Repeat("ж", 190)+"%04d")))
	before := w.settingsOf(t, w.acme)
	form := filled(t, admin)
	for name := range form { // as browsers do
		form.Set(name, strings.ReplaceAll(form.Get(name), "\n", "\r\n"))
	}
	form.Set("cumulative", "77")
	admin.post(t, "/settings", form).expect(t, http.StatusSeeOther)
	after := w.settingsOf(t, w.acme)
	if after.CumulativeThreshold.String() != "77" || !slices.Equal(after.HighRiskAgents, before.HighRiskAgents) || !slices.Equal(after.ExternalDomainsAllowlist, before.ExternalDomainsAllowlist) {
		t.Error("the settings are not what was sent")
	}
	form = filled(t, admin)
	form.Set("allowlist", strings.Repeat("d", 4<<20))
	admin.post(t, "/settings", form).expect(t, http.StatusRequestEntityTooLarge, "PATCH /v1/organization")

	line := "# " + strings.Repeat("ж", 3) + "\r\n"
	const largest = 256 << 10
	set := strings.Repeat(line, (largest-len(rules))/(len(line)-1)) + rules
	admin.post(t, "/policies", url.Values{"document": {set}, "format": {"yaml"}, "replaces": {"0"}}).expect(t, http.StatusSeeOther)
	admin.post(t, "/policies", url.Values{"document": {set + line}, "format": {"yaml"}, "replaces": {"1"}}).expect(t, http.StatusUnprocessableEntity, "at most 262144")
}
