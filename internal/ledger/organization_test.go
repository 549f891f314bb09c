package ledger

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A slug is 1 to 63 lower-case letters, digits and inner hyphens.
func TestCheckSlug(t *testing.T) {
	t.Parallel()
	for _, slug := range []string{"a", "0", "acme", "acme-2", strings.Repeat("a", 63)} {
		if err := CheckSlug(slug); err != nil {
			t.Errorf("%q is refused: %v", slug, err)
		}
	}
	for _, slug := range []string{"", "-a", "a-", "A", "a_b", "a b", "é", `a"b`, "a\n", strings.Repeat("a", 64)} {
		if err := CheckSlug(slug); err == nil {
			t.Errorf("%q is taken", slug)
		}
	}
}

// A patch of an organization replaces the settings that it names and keeps all others.
func TestPatchReplacesWhatIsNamed(t *testing.T) {
	t.Parallel()
	before := Organization{Slug: "acme", Name: "Acme", Settings: DefaultSettings()}
	cases := []struct {
		name, body string
		change     func(*Organization)
	}{
		{"nothing", `{}`, func(*Organization) {}},
		{"name", `{"name":"Other"}`, func(o *Organization) { o.Name = "Other" }},
		{"its own slug", `{"slug":"acme"}`, func(*Organization) {}},
		{"mode", `{"evaluation_mode":"shadow"}`, func(o *Organization) { o.Settings.EvaluationMode = Shadow }},
		{"threshold", `{"financial_approval_threshold_usd":0}`, func(o *Organization) { o.Settings.FinancialThreshold = Money{} }},
		{"cumulative", `{"cumulative_financial_threshold_usd":0.1}`, func(o *Organization) { o.Settings.CumulativeThreshold = MoneyOf(0.1) }},
		{"domains", `{"external_domains_allowlist":["example.com"]}`, func(o *Organization) { o.Settings.ExternalDomainsAllowlist = []string{"example.com"} }},
		{"no domain", `{"external_domains_allowlist":[]}`, func(o *Organization) { o.Settings.ExternalDomainsAllowlist = []string{} }},
		{"domains off", `{"external_domains_allowlist":null}`, func(*Organization) {}},
		{"agents", `{"high_risk_agents":["Trader"]}`, func(o *Organization) { o.Settings.HighRiskAgents = []string{"Trader"} }},
		{"timeout", `{"approval_timeout_hours":0.5}`, func(o *Organization) { o.Settings.ApprovalTimeoutHours = 0.5 }},
		{"approvers", `{"fallback_approvers":["a@example.com"]}`, func(o *Organization) { o.Settings.FallbackApprovers = []string{"a@example.com"} }},
		{"two persons", `{"two_person_approval":true}`, func(o *Organization) { o.Settings.TwoPersonApproval = true }},
		{"fast path", `{"fast_path_actions":["get","count"]}`, func(o *Organization) { o.Settings.FastPathActions = []string{"get", "count"} }},
		{"export", `{"evidence_export":"admins"}`, func(o *Organization) { o.Settings.EvidenceExport = ExportAdmins }},
		{"Slack channel", `{"slack_channel":"C0123456789"}`, func(o *Organization) { o.Settings.SlackChannel = "C0123456789" }},
		{"no Slack channel", `{"slack_channel":null}`, func(*Organization) {}},
		{"abandonment", `{"abandon_after_hours":0.5}`, func(o *Organization) { o.Settings.AbandonAfterHours = 0.5 }},
		{"no fast path", `{"fast_path_actions":[]}`, func(o *Organization) { o.Settings.FastPathActions = []string{} }},
		{"fail modes", `{"fail_modes":{"default":"deny"}}`, func(o *Organization) { o.Settings.FailModes = map[string]string{"default": "deny"} }},
		{"auto-pause in part", `{"auto_pause":{"max_events":7}}`, func(o *Organization) { o.Settings.AutoPause.MaxEvents = 7 }},
		{"auto-pause", `{"auto_pause":{"max_duration_seconds":8,"max_tokens":9}}`, func(o *Organization) {
			o.Settings.AutoPause.MaxDurationSeconds, o.Settings.AutoPause.MaxTokens = 8, 9
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := before
			c.change(&want)
			got, err := before.Patch(parse(t, c.body))
			if err != nil {
				t.Fatal(faultsOf(t, err))
			}
			if diff := cmp.Diff(want, got, sameMoney); diff != "" {
				t.Errorf("organization (-want +got):\n%s", diff)
			}
		})
	}
}

// A patch with a bad value is refused at that value and changes nothing.
func TestPatchRefuses(t *testing.T) {
	t.Parallel()
	org := Organization{Slug: "acme", Name: "Acme", Settings: DefaultSettings()}
	cases := map[string]string{ // body to the pointer of its only fault
		`{"surprise":1}`:                                     "/surprise",
		`{"slug":"other"}`:                                   "/slug",
		`{"name":""}`:                                        "/name",
		`{"name":null}`:                                      "/name",
		"{\"name\":\"a\\nb\"}":                               "/name",
		`{"evaluation_mode":1}`:                              "/evaluation_mode",
		`{"evaluation_mode":"off"}`:                          "/evaluation_mode",
		`{"evaluation_mode":null}`:                           "/evaluation_mode",
		`{"financial_approval_threshold_usd":-1}`:            "/financial_approval_threshold_usd",
		`{"cumulative_financial_threshold_usd":1e300}`:       "/cumulative_financial_threshold_usd",
		`{"external_domains_allowlist":["Example.com"]}`:     "/external_domains_allowlist",
		`{"external_domains_allowlist":["https://a.b/c"]}`:   "/external_domains_allowlist",
		`{"external_domains_allowlist":[""]}`:                "/external_domains_allowlist/0",
		`{"external_domains_allowlist":["","Example.com"]}`:  "/external_domains_allowlist/0",
		`{"high_risk_agents":"Trader"}`:                      "/high_risk_agents",
		`{"high_risk_agents":null}`:                          "/high_risk_agents",
		`{"approval_timeout_hours":0}`:                       "/approval_timeout_hours",
		`{"approval_timeout_hours":100000}`:                  "/approval_timeout_hours",
		`{"fallback_approvers":["nobody"]}`:                  "/fallback_approvers",
		`{"fallback_approvers":["A <a@example.com>"]}`:       "/fallback_approvers",
		`{"fallback_approvers":[1,"nobody"]}`:                "/fallback_approvers/0",
		`{"two_person_approval":"yes"}`:                      "/two_person_approval",
		`{"fast_path_actions":null}`:                         "/fast_path_actions",
		`{"evidence_export":null}`:                           "/evidence_export",
		`{"evidence_export":"everyone"}`:                     "/evidence_export",
		`{"slack_channel":""}`:                               "/slack_channel",
		`{"slack_channel":"#general"}`:                       "/slack_channel",
		`{"slack_channel":"D0123456789"}`:                    "/slack_channel",
		`{"slack_channel":"C0123456789\n"}`:                  "/slack_channel",
		`{"abandon_after_hours":null}`:                       "/abandon_after_hours",
		`{"abandon_after_hours":0}`:                          "/abandon_after_hours",
		`{"abandon_after_hours":-1}`:                         "/abandon_after_hours",
		`{"abandon_after_hours":0.0002}`:                     "/abandon_after_hours",
		`{"abandon_after_hours":8761}`:                       "/abandon_after_hours",
		`{"abandon_after_hours":"72"}`:                       "/abandon_after_hours",
		`{"fast_path_actions":"get"}`:                        "/fast_path_actions",
		`{"fast_path_actions":["get","delete"]}`:             "/fast_path_actions/1",
		`{"fast_path_actions":["Get"]}`:                      "/fast_path_actions/0",
		`{"fast_path_actions":["get","list","get"]}`:         "/fast_path_actions/2",
		`{"fast_path_actions":["get",1]}`:                    "/fast_path_actions/1",
		`{"fast_path_actions":["get",""]}`:                   "/fast_path_actions/1",
		`{"fail_modes":{"default":"maybe"}}`:                 "/fail_modes/default",
		`{"fail_modes":{"default":null}}`:                    "/fail_modes/default",
		`{"fail_modes":{"a\"b":"deny"}}`:                     `/fail_modes/a"b`,
		`{"fail_modes":[]}`:                                  "/fail_modes",
		`{"auto_pause":null}`:                                "/auto_pause",
		`{"auto_pause":{"max_events":0}}`:                    "/auto_pause/max_events",
		`{"auto_pause":{"max_events":1000001}}`:              "/auto_pause/max_events",
		`{"auto_pause":{"max_tokens":1.5}}`:                  "/auto_pause/max_tokens",
		`{"auto_pause":{"max_duration_seconds":null}}`:       "/auto_pause/max_duration_seconds",
		`{"auto_pause":{"more":1}}`:                          "/auto_pause/more",
		`{"fallback_approvers":[` + manyAddresses(21) + `]}`: "/fallback_approvers",
	}
	for body, pointer := range cases {
		t.Run(body[:min(len(body), 60)], func(t *testing.T) {
			t.Parallel()
			_, err := org.Patch(parse(t, body))
			faults := faultsOf(t, err)
			if len(faults) != 1 || !strings.HasPrefix(faults[0], pointer+": ") {
				t.Errorf("faults %q, want one at %s", faults, pointer)
			}
		})
	}
	if diff := cmp.Diff(DefaultSettings(), org.Settings, sameMoney); diff != "" {
		t.Errorf("a refused patch changed the organization:\n%s", diff)
	}
}

func manyAddresses(n int) string {
	return strings.TrimSuffix(strings.Repeat(`"a@example.com",`, n), ",")
}

// Stored settings are read back unchanged, and settings that were never stored have
// their defaults.
func TestSettingsEncoding(t *testing.T) {
	t.Parallel()
	settings := DefaultSettings()
	settings.ExternalDomainsAllowlist = []string{"example.com"}
	settings.FailModes = map[string]string{"default": "deny"}
	settings.FinancialThreshold = MoneyOf(0.1)
	body, err := settings.Encode()
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := DecodeSettings(body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(settings, decoded, sameMoney); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	fresh, err := DecodeSettings([]byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultSettings(), fresh, sameMoney); diff != "" {
		t.Errorf("settings that were never stored have no defaults:\n%s", diff)
	}
	if _, err := DecodeSettings([]byte(`[`)); err == nil {
		t.Error("broken settings are read")
	}
}

// By default only obviously safe actions continue while the service is unreachable.
func TestDefaultFailModes(t *testing.T) {
	t.Parallel()
	settings := DefaultSettings()
	var modes map[string]string
	if err := json.Unmarshal(settings.CanonicalFailModes(), &modes); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"safe": "allow", "default": "deny"}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Errorf("fail modes (-want +got):\n%s", diff)
	}
}
