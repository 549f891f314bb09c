package httpapi_test

import "strings"

// badSettings are changes of an organization that are refused; null removes
// nothing, but for the one list that it turns off.
var badSettings = []badField{
	{"slug is another", `{"slug":"planted-slug"}`, []string{"/slug"}},
	{"slug is null", `{"slug":null}`, []string{"/slug"}},
	{"name is null", `{"name":null}`, []string{"/name"}},
	{"name is empty", `{"name":""}`, []string{"/name"}},
	{"name is too long", `{"name":"` + long + `"}`, []string{"/name"}},
	{"name has a control character", `{"name":"planted-\r"}`, []string{"/name"}},
	{"mode is null", `{"evaluation_mode":null}`, []string{"/evaluation_mode"}},
	{"mode is another word", `{"evaluation_mode":"planted-off"}`, []string{"/evaluation_mode"}},
	{"single threshold is null", `{"financial_approval_threshold_usd":null}`, []string{"/financial_approval_threshold_usd"}},
	{"single threshold is negative", `{"financial_approval_threshold_usd":-0.01}`, []string{"/financial_approval_threshold_usd"}},
	{"single threshold is a text", `{"financial_approval_threshold_usd":"planted-1"}`, []string{"/financial_approval_threshold_usd"}},
	{"cumulative threshold is null", `{"cumulative_financial_threshold_usd":null}`, []string{"/cumulative_financial_threshold_usd"}},
	{"cumulative threshold is too large", `{"cumulative_financial_threshold_usd":1000000000000001}`, []string{"/cumulative_financial_threshold_usd"}},
	{"domains are a text", `{"external_domains_allowlist":"planted-a.example"}`, []string{"/external_domains_allowlist"}},
	{"a domain in upper case", `{"external_domains_allowlist":["Planted-a.example"]}`, []string{"/external_domains_allowlist"}},
	{"a domain with a port", `{"external_domains_allowlist":["planted-a.example:443"]}`, []string{"/external_domains_allowlist"}},
	{"a domain with a star", `{"external_domains_allowlist":["*.planted-a.example"]}`, []string{"/external_domains_allowlist"}},
	{"a domain with what no name has", `{"external_domains_allowlist":["planted-a\u2100.example"]}`, []string{"/external_domains_allowlist"}},
	{"a domain with invisible characters", `{"external_domains_allowlist":["planted\u200c-a.example"]}`, []string{"/external_domains_allowlist"}},
	{"too many domains", `{"external_domains_allowlist":` + manyAgents + `}`, []string{"/external_domains_allowlist"}},
	{"agents are null", `{"high_risk_agents":null}`, []string{"/high_risk_agents"}},
	{"agents hold a number", `{"high_risk_agents":["a",2]}`, []string{"/high_risk_agents/1"}},
	{"too many agents", `{"high_risk_agents":` + manyAgents + `}`, []string{"/high_risk_agents"}},
	{"timeout is null", `{"approval_timeout_hours":null}`, []string{"/approval_timeout_hours"}},
	{"timeout is zero", `{"approval_timeout_hours":0}`, []string{"/approval_timeout_hours"}},
	{"timeout is more than a year", `{"approval_timeout_hours":8760.5}`, []string{"/approval_timeout_hours"}},
	{"approvers are null", `{"fallback_approvers":null}`, []string{"/fallback_approvers"}},
	{"an approver is no address", `{"fallback_approvers":["planted-a@"]}`, []string{"/fallback_approvers"}},
	{"two persons is null", `{"two_person_approval":null}`, []string{"/two_person_approval"}},
	{"two persons is a number", `{"two_person_approval":2}`, []string{"/two_person_approval"}},
	{"fail modes are null", `{"fail_modes":null}`, []string{"/fail_modes"}},
	{"fail modes are a text", `{"fail_modes":"planted-deny"}`, []string{"/fail_modes"}},
	{"a fail mode is another word", `{"fail_modes":{"default":"planted-maybe"}}`, []string{"/fail_modes/default"}},
	{"a fail mode is null", `{"fail_modes":{"default":null}}`, []string{"/fail_modes/default"}},
	{"a category is no word", `{"fail_modes":{"Not A Word":"deny"}}`, []string{"/fail_modes/Not A Word"}},
	{"too many fail modes", `{"fail_modes":{` + manyModes() + `}}`, []string{"/fail_modes"}},
	{"limits are null", `{"auto_pause":null}`, []string{"/auto_pause"}},
	{"limits are a list", `{"auto_pause":[1]}`, []string{"/auto_pause"}},
	{"a limit is null", `{"auto_pause":{"max_events":null}}`, []string{"/auto_pause/max_events"}},
	{"a limit is zero", `{"auto_pause":{"max_events":0}}`, []string{"/auto_pause/max_events"}},
	{"a limit is a fraction", `{"auto_pause":{"max_tokens":1.5}}`, []string{"/auto_pause/max_tokens"}},
	{"a limit is too large", `{"auto_pause":{"max_duration_seconds":315360001}}`, []string{"/auto_pause/max_duration_seconds"}},
	{"a limit is unknown", `{"auto_pause":{"max_planted":1}}`, []string{"/auto_pause/max_planted"}},
	{"budgets are null", `{"budgets":null}`, []string{"/budgets"}},
	{"a budget is a text", `{"budgets":["planted-b"]}`, []string{"/budgets/0"}},
	{"a budget without a limit", `{"budgets":[{"name":"planted-b","scope":"agent","window":"day","decision":"deny"}]}`, []string{"/budgets/0"}},
	{"a budget of another window", `{"budgets":[{"name":"planted-b","scope":"agent","window":"week","limit_usd":1,"decision":"deny"}]}`, []string{"/budgets/0/window"}},
	{"what the service says", `{"policy_version":"planted-v1"}`, []string{"/policy_version"}},
	{"when it was made", `{"created_at":"2026-01-01T00:00:00.000Z"}`, []string{"/created_at"}},
	{"one good, one bad", `{"name":"planted-a","approval_timeout_hours":"x"}`, []string{"/approval_timeout_hours"}},
}

func manyModes() string {
	var modes []string
	for i := range 51 {
		modes = append(modes, `"m`+strings.Repeat("x", i)+`":"deny"`)
	}
	return strings.Join(modes, ",")
}
