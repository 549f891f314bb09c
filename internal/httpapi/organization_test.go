package httpapi_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A patch changes the settings that it names and no others, for its own organization
// only.
func TestOrganizationSettings(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		read := func() map[string]any {
			return decode[map[string]any](t, s.get(t, s.acme.member, "/v1/organization").expect(t, http.StatusOK).without(t, s.acme.id))
		}
		want := read()
		defaults := map[string]any{
			"slug": "acme", "name": "acme", "evaluation_mode": "enforce", "financial_approval_threshold_usd": 5000.0,
			"cumulative_financial_threshold_usd": 10000.0, "external_domains_allowlist": nil, "high_risk_agents": []any{},
			"approval_timeout_hours": 24.0, "fallback_approvers": []any{}, "two_person_approval": false,
			"fail_modes": map[string]any{"safe": "allow", "default": "deny"}, "budgets": []any{},
			"auto_pause": map[string]any{"max_events": 10000.0, "max_duration_seconds": 86400.0, "max_tokens": 10000000.0},
		}
		for name, value := range defaults {
			if diff := cmp.Diff(value, want[name]); diff != "" {
				t.Errorf("default of %s (-want +got):\n%s", name, diff)
			}
		}
		steps := []struct{ name, body, member, now string }{
			{"nothing", `{}`, "name", `"acme"`},
			{"its own slug", `{"slug":"acme"}`, "slug", `"acme"`},
			{"a name", `{"name":"Acme – Zürich"}`, "name", `"Acme – Zürich"`},
			{"shadow", `{"evaluation_mode":"shadow"}`, "evaluation_mode", `"shadow"`},
			{"no threshold", `{"financial_approval_threshold_usd":0}`, "financial_approval_threshold_usd", `0`},
			{"a threshold in cents", `{"financial_approval_threshold_usd":1234.56}`, "financial_approval_threshold_usd", `1234.56`},
			{"the largest threshold", `{"cumulative_financial_threshold_usd":1e15}`, "cumulative_financial_threshold_usd", `1000000000000000`},
			{"an empty allowlist", `{"external_domains_allowlist":[]}`, "external_domains_allowlist", `[]`},
			{"an allowlist", `{"external_domains_allowlist":["example.com","xn--bcher-kva.example","localhost"]}`, "external_domains_allowlist", `["example.com","xn--bcher-kva.example","localhost"]`},
			{"an allowlist in the script of its owner", `{"external_domains_allowlist":["b\u00fccher.example","Shop.B\u00dcCHER.example"]}`, "external_domains_allowlist", `["xn--bcher-kva.example","shop.xn--bcher-kva.example"]`},
			{"no allowlist", `{"external_domains_allowlist":null}`, "external_domains_allowlist", `null`},
			{"agents", `{"high_risk_agents":["研究者","b"]}`, "high_risk_agents", `["研究者","b"]`},
			{"no agents", `{"high_risk_agents":[]}`, "high_risk_agents", `[]`},
			{"a second", `{"approval_timeout_hours":0.0002777777777777778}`, "approval_timeout_hours", `0.0002777777777777778`},
			{"a year", `{"approval_timeout_hours":8760}`, "approval_timeout_hours", `8760`},
			{"approvers", `{"fallback_approvers":["a@example.com","b.c+d@example.com"]}`, "fallback_approvers", `["a@example.com","b.c+d@example.com"]`},
			{"two persons", `{"two_person_approval":true}`, "two_person_approval", `true`},
			{"one person", `{"two_person_approval":false}`, "two_person_approval", `false`},
			{"fail modes", `{"fail_modes":{"llm":"deny"}}`, "fail_modes", `{"llm":"deny"}`},
			{"no fail modes", `{"fail_modes":{}}`, "fail_modes", `{}`},
			{"no budgets", `{"budgets":[]}`, "budgets", `[]`},
			{"one limit", `{"auto_pause":{"max_events":1}}`, "auto_pause", `{"max_events":1,"max_duration_seconds":86400,"max_tokens":10000000}`},
			{"all limits", `{"auto_pause":{"max_events":1000000,"max_duration_seconds":315360000,"max_tokens":2147483647000}}`, "auto_pause",
				`{"max_events":1000000,"max_duration_seconds":315360000,"max_tokens":2147483647000}`},
		}
		for _, step := range steps {
			t.Run(step.name, func(t *testing.T) {
				var now any
				if err := json.Unmarshal([]byte(step.now), &now); err != nil {
					t.Fatal(err)
				}
				want[step.member] = now
				got := decode[map[string]any](t, s.patch(t, s.acme.admin, step.body).expect(t, http.StatusOK).without(t, s.acme.id))
				want["policy_version"] = got["policy_version"] // TestEveryVersionIsFound is about it
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("answered (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(want, read()); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
			})
		}
		rival := decode[map[string]any](t, s.get(t, s.rival.member, "/v1/organization"))
		for name, value := range defaults {
			if name != "slug" && name != "name" && !cmp.Equal(rival[name], value) {
				t.Errorf("another organization's %s changed", name)
			}
		}
	})
}

// Changes made at once do not undo each other.
//
//countersign:race
func TestSettingsTogether(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		changes := map[string]any{
			"name": "together", "evaluation_mode": "shadow", "financial_approval_threshold_usd": 1.0, "cumulative_financial_threshold_usd": 2.0,
			"high_risk_agents": []any{"a"}, "approval_timeout_hours": 3.0, "two_person_approval": true, "external_domains_allowlist": []any{"example.com"},
		}
		var bodies []string
		for name, value := range maps.All(changes) {
			bodies = append(bodies, string(encode(t, map[string]any{name: value})))
		}
		for _, got := range together(len(bodies), func(i int) *answer { return s.patch(t, s.acme.admin, bodies[i]) }) {
			got.expect(t, http.StatusOK)
		}
		got := decode[map[string]any](t, s.get(t, s.acme.member, "/v1/organization"))
		for name, value := range changes {
			if !cmp.Equal(got[name], value) {
				t.Errorf("%s is %v, want %v", name, got[name], value)
			}
		}
	})
}

// A chain keeps the fail modes that it was opened with.
func TestChainKeepsFailModes(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		before := s.open(t, s.acme.agent, `{"name":"before"}`)
		s.patch(t, s.acme.admin, `{"fail_modes":{"default":"deny"}}`).expect(t, http.StatusOK)
		after := s.open(t, s.acme.agent, `{"name":"after"}`)
		for id, want := range map[string]string{
			before: `{"default":"deny","safe":"allow"}`,
			after:  `{"default":"deny"}`,
		} {
			if got := decode[chain](t, s.get(t, s.acme.agent, "/v1/chains/"+id)); string(got.FailModes) != want {
				t.Errorf("fail modes are %s, want %s", got.FailModes, want)
			}
		}
	})
}
