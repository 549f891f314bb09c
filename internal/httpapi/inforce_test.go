package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

// Another setting that decides is another policy version, and every version that stands
// in a decision or a receipt is found, with the settings that it covers, also under later
// settings and sets. Receipts from before still verify.
func TestEveryVersionIsFound(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		steps := []struct{ setting, shows string }{
			{`{}`, ``},
			{`{"financial_approval_threshold_usd":777}`, `"financial_approval_threshold_usd":777`},
			{`{"high_risk_agents":["intern"]}`, `"high_risk_agents":["intern"]`},
			{`{"budgets":[{"name":"day","scope":"organization","window":"day","limit_usd":9,"decision":"deny"}]}`, `"limit":"9"`},
			{`{"evaluation_mode":"shadow","budgets":[]}`, `"evaluation_mode":"shadow"`},
			{`{"auto_pause":{"max_events":50}}`, `"max_events":50`},
			{`{"external_domains_allowlist":["example.com"]}`, `"external_domains_allowlist":["example.com"]`},
		}
		versions, receipts := []string{}, []string{}
		for _, step := range steps {
			s.patch(t, s.acme.admin, step.setting).expect(t, http.StatusOK)
			id := s.open(t, s.acme.agent, `{"name":"versions"}`)
			s.record(t, s.acme.agent, id, anAction)
			sealed := s.complete(t, s.acme.agent, id, "")
			made := decode[told](t, s.get(t, s.acme.member, "/v1/receipts/"+*sealed.ReceiptID).expect(t, http.StatusOK))
			versions, receipts = append(versions, made.Version), append(receipts, *sealed.ReceiptID)
		}
		put := s.do(t, call{method: http.MethodPut, path: "/v1/policies", key: s.acme.admin.text, body: []byte(`{"rules":[]}`), header: http.Header{"Content-Type": {"application/json"}}}).expect(t, http.StatusOK)
		type policy struct {
			Version  string         `json:"version"`
			InForce  bool           `json:"in_force"`
			Settings map[string]any `json:"settings"`
		}
		current := decode[policy](t, put)
		if in := decode[struct{ Current string }](t, s.get(t, s.acme.member, "/v1/policies")); in.Current != current.Version {
			t.Errorf("%s is put, and %s is in force", current.Version, in.Current)
		}
		s.patch(t, s.acme.admin, `{"name":"Another name","abandon_after_hours":5}`).expect(t, http.StatusOK)
		seen := map[string]bool{}
		for i, version := range append(versions, current.Version) {
			if seen[version] {
				t.Errorf("step %d has the version %s once more", i+1, version)
			}
			seen[version] = true
			answer := s.get(t, s.acme.member, "/v1/policies/"+version).expect(t, http.StatusOK)
			found := decode[policy](t, answer)
			if found.Version != version || found.InForce != (version == current.Version) {
				t.Errorf("%s is found as %+v", version, found)
			}
			if i < len(steps) && !strings.Contains(string(answer.body), steps[i].shows) {
				t.Errorf("%s does not show %s: %s", version, steps[i].shows, answer.body)
			}
		}
		for _, unknown := range []string{"v0+ffffffffffff", "v1+ffffffffffff", "v2+" + current.Version[3:], "v01" + current.Version[2:], "v+", "x"} {
			s.get(t, s.acme.member, "/v1/policies/"+unknown).refuse(t, http.StatusNotFound, "not_found")
		}
		s.get(t, s.rival.member, "/v1/policies/"+versions[1]).refuse(t, http.StatusNotFound, "not_found")
		for _, id := range receipts {
			if got := s.get(t, credential{}, "/v1/receipts/"+id+"/verify"); !strings.Contains(string(got.body), `"valid":true`) {
				t.Errorf("a receipt from before: %s", got.body)
			}
		}
	})
}

// A chain's answers say which limits are in force: of the client's and the organization's
// the tighter ones.
func TestChainShowsItsLimits(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		s.patch(t, s.acme.admin, `{"financial_approval_threshold_usd":1000,"external_domains_allowlist":["example.com","b.example.org"],"high_risk_agents":["intern"],"approval_timeout_hours":8}`).expect(t, http.StatusOK)
		const config = `{"financial_approval_threshold_usd":3000,"cumulative_financial_threshold_usd":2500,"external_domains_allowlist":["a.example.com","example.org"],
			"high_risk_agents":["temp"],"approval_timeout_hours":2,"chain_timeout_seconds":600,"cumulative_financial_threshold_action":"deny","notify":"boss@example.com"}`
		const want = `"effective_limits":{"approval_timeout_hours":2,"auto_pause":{"max_duration_seconds":86400,"max_events":10000,"max_tokens":10000000},"chain_timeout_seconds":600,` +
			`"cumulative_financial_threshold_action":"deny","cumulative_financial_threshold_usd":2500,"external_domains_allowlist":["b.example.org","a.example.com"],` +
			`"financial_approval_threshold_usd":1000,"high_risk_agents":["intern","temp"]}`
		opened := s.post(t, s.acme.agent, "/v1/chains", `{"name":"limits","policy_config":`+config+`}`).expect(t, http.StatusCreated)
		id := decode[chain](t, opened).ID
		for name, answer := range map[string]*answer{
			"opened": opened, "read": s.get(t, s.acme.agent, "/v1/chains/"+id), "listed": s.get(t, s.acme.member, "/v1/chains"),
		} {
			if !strings.Contains(string(answer.body), want) {
				t.Errorf("%s: %s", name, answer.body)
			}
		}
		pay := func(amount string) decision {
			return s.record(t, s.acme.agent, id, `{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":`+amount+`}}`)
		}
		for range 3 {
			pay("900")
		}
		if d := pay("1"); d.Decision != "deny" || d.ApprovalID != nil {
			t.Errorf("above the cumulative threshold: %+v", d)
		}
		s.patch(t, s.acme.admin, `{"financial_approval_threshold_usd":10}`).expect(t, http.StatusOK)
		if got := s.get(t, s.acme.agent, "/v1/chains/"+id); !strings.Contains(string(got.body), `"financial_approval_threshold_usd":10,`) {
			t.Errorf("the limits are not those of now: %s", got.body)
		}
		s.complete(t, s.acme.agent, id, "")
		if got := s.get(t, s.acme.agent, "/v1/chains/"+id); !strings.Contains(string(got.body), `"effective_limits":null`) {
			t.Errorf("a sealed chain has limits: %s", got.body)
		}
		for body, pointer := range map[string]string{
			`{"name":"x","policy_config":{"notify":"#channel"}}`:                             "/policy_config/notify",
			`{"name":"x","policy_config":{"notify":["boss@example.com","nobody"]}}`:          "/policy_config/notify",
			`{"name":"x","policy_config":{"cumulative_financial_threshold_action":"allow"}}`: "/policy_config/cumulative_financial_threshold_action",
		} {
			refused := s.post(t, s.acme.agent, "/v1/chains", body).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
			if got := refused.pointers(); len(got) != 1 || got[0] != pointer {
				t.Errorf("%s: faults at %v", body, got)
			}
		}
	})
}
