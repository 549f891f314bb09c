package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const someBudgets = `{"budgets":[
	{"name":"all","scope":"organization","window":"month","limit_usd":100,"decision":"deny"},
	{"name":"none yet","scope":"organization","window":"day","limit_tokens":5,"decision":"deny"},
	{"name":"agents","scope":"agent","match":["a","b","c"],"window":"day","limit_usd":50,"decision":"require_approval"},
	{"name":"keys","scope":"key","window":"day","limit_usd":1000,"decision":"deny"}]}`

func payOf(agent string, dollars float64) string {
	return fmt.Sprintf(`{"agent_name":%q,"action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":%v}}`, agent, dollars)
}

// Budgets are set, decide, and are listed with what is used of them, in pages of any size,
// to members of the organization alone. Events say what they took.
func TestBudgets(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		before := decode[map[string]any](t, s.get(t, s.acme.member, "/v1/organization"))
		set := decode[map[string]any](t, s.patch(t, s.acme.admin, someBudgets).expect(t, http.StatusOK))
		if before["policy_version"] == set["policy_version"] || len(set["budgets"].([]any)) != 4 {
			t.Errorf("under other budgets the version is %v, with %v", set["policy_version"], set["budgets"])
		}
		chain := s.open(t, s.acme.agent, `{"name":"spending"}`)
		for _, c := range []struct {
			agent   string
			dollars float64
			want    string
			by      string
		}{
			{"b", 30, "allow", ""}, {"a", 20, "allow", ""}, {"a", 30.5, "require_approval", "budget:agents"}, {"c", 20, "deny", "budget:all"},
		} {
			got := decode[map[string]any](t, s.post(t, s.acme.agent, "/v1/chains/"+chain+"/events", payOf(c.agent, c.dollars)).expect(t, http.StatusOK))
			by, _ := got["policy_name"].(string)
			if got["policy_decision"] != c.want || got["policy_version"] != set["policy_version"] || by != c.by {
				t.Errorf("%v USD of %s: %v, want %s by %q", c.dollars, c.agent, got, c.want, c.by)
			}
		}
		for _, limit := range []int{1, 2, 200} {
			var got []string
			for _, use := range everyPage[map[string]any](t, s, s.acme.member, "/v1/budgets", limit) {
				got = append(got, fmt.Sprintf("%v %v %v/%v %v waiting, %v left", use["name"], use["value"], use["used"], use["limit"], use["waiting"], use["left"]))
			}
			want := []string{
				"all <nil> 80.5/100 30.5 waiting, 19.5 left", "none yet <nil> 0/5 0 waiting, 5 left",
				"agents a 50.5/50 30.5 waiting, 0 left", "agents b 30/50 0 waiting, 20 left",
				"keys a agent 80.5/1000 30.5 waiting, 919.5 left",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("in pages of %d (-want +got):\n%s", limit, diff)
			}
		}
		if got := decode[page[any]](t, s.get(t, s.rival.member, "/v1/budgets").expect(t, http.StatusOK)); len(got.Data) != 0 {
			t.Errorf("another organization sees %v", got.Data)
		}
		events := decode[page[map[string]any]](t, s.get(t, s.acme.member, "/v1/chains/"+chain+"/events").expect(t, http.StatusOK))
		for i, want := range []int{3, 3, 3, 0} {
			took, _ := events.Data[i]["budgets"].([]any)
			if len(took) != want {
				t.Errorf("event %d took of %v, want of %d budgets", i, took, want)
			}
		}
		s.get(t, s.acme.member, "/v1/policies/"+strings.ReplaceAll(set["policy_version"].(string), "+", "%2B")).expect(t, http.StatusOK)
	})
}

// A set asks about budgets that there are: it is refused where one is missing, and no
// budget that the set in force asks about can be taken away.
func TestRulesAboutBudgets(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		set := `{"rules":[{"name":"reserve","when":"action.amount_usd > budget(\"agents\").left - 10.0","decision":"deny","reason":"ten dollars stay"}]}`
		s.put(t, s.acme.admin, "application/json", set).expect(t, http.StatusUnprocessableEntity)
		s.patch(t, s.acme.admin, someBudgets).expect(t, http.StatusOK)
		s.put(t, s.acme.admin, "application/json", set).expect(t, http.StatusOK)
		s.patch(t, s.acme.admin, `{"budgets":[]}`).expect(t, http.StatusUnprocessableEntity)
		chain := s.open(t, s.acme.agent, `{"name":"spending"}`)
		for _, c := range []struct {
			agent   string
			dollars float64
			want    string
		}{
			{"a", 30, "allow"}, {"a", 10.5, "deny"}, {"a", 10, "allow"}, {"a", 0.5, "deny"}, {"b", 40, "allow"}, {"stranger", 20, "allow"},
		} {
			if got := s.record(t, s.acme.agent, chain, payOf(c.agent, c.dollars)); got.Decision != c.want {
				t.Errorf("%v USD of %s: %s, want %s", c.dollars, c.agent, got.Decision, c.want)
			}
		}
		s.put(t, s.acme.admin, "application/json", `{"rules":[]}`).expect(t, http.StatusOK)
		s.patch(t, s.acme.admin, `{"budgets":[]}`).expect(t, http.StatusOK)
	})
}
