package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

type policySet struct {
	Version   string  `json:"version"`
	Format    string  `json:"format"`
	InForce   bool    `json:"in_force"`
	FastPath  bool    `json:"fast_path"`
	Count     int     `json:"rule_count"`
	CreatedBy *string `json:"created_by"`
	Document  string  `json:"document"`
	Rules     []struct {
		Name, When, Decision, Reason, Mode string
	} `json:"rules"`
}

type policyList struct {
	page[policySet]
	Current string `json:"current"`
}

// put puts a policy set, written in a language.
func (s *stack) put(t *testing.T, key credential, contentType, body string) *answer {
	t.Helper()
	return s.sendPolicy(t, key, http.MethodPut, "/v1/policies", contentType, body)
}

func (s *stack) sendPolicy(t *testing.T, key credential, method, path, contentType, body string) *answer {
	t.Helper()
	return s.do(t, call{method: method, path: path, key: key.text, body: []byte(body), header: http.Header{"Content-Type": {contentType}}})
}

const (
	yamlSet = `# what nobody may do at night
rules:
  - name: planted-no-deletes
    when: action.action_name == "delete_user"
    decision: deny
    reason: users are never deleted
`
	jsonSet = `{"rules":[{"reason":"users are never deleted","decision":"deny","name":"planted-no-deletes","when":"action.action_name == \"delete_user\""}]}`
)

// A policy set can be put as YAML or JSON; the same rules in the other language are
// the same version.
func TestPolicies(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		list := func() policyList {
			return decode[policyList](t, s.get(t, s.acme.member, "/v1/policies").expect(t, http.StatusOK))
		}
		none := list()
		if len(none.Data) != 0 || !strings.HasPrefix(none.Current, "v0+") {
			t.Errorf("without a set of its own, the list is %+v", none)
		}
		builtin := decode[policySet](t, s.get(t, s.acme.member, "/v1/policies/"+none.Current).expect(t, http.StatusOK))
		if !builtin.InForce || builtin.Version != none.Current || builtin.CreatedBy != nil || len(builtin.Rules) != 0 {
			t.Errorf("the built-in set is %+v", builtin)
		}
		first := decode[policySet](t, s.put(t, s.acme.admin, "application/yaml", yamlSet).expect(t, http.StatusOK))
		if !strings.HasPrefix(first.Version, "v1+") || first.Document != yamlSet || first.Format != "yaml" || !first.InForce || first.Count != 1 ||
			first.Rules[0].Name != "planted-no-deletes" || first.Rules[0].Mode != "enforce" || *first.CreatedBy != "first admin" {
			t.Errorf("put as %+v", first)
		}
		before := s.database.dump(t)
		for _, contentType := range []string{"application/x-yaml", "text/yaml; charset=utf-8", "Application/YAML"} {
			if again := decode[policySet](t, s.put(t, s.acme.admin, contentType, yamlSet).expect(t, http.StatusOK)); again.Version != first.Version {
				t.Errorf("put again as %s, it is %s", contentType, again.Version)
			}
		}
		if same := decode[policySet](t, s.put(t, s.acme.admin, "application/json", jsonSet).expect(t, http.StatusOK)); same.Version != first.Version || same.Document != yamlSet {
			t.Errorf("the same rules in another language became %+v", same)
		}
		if s.database.dump(t) != before {
			t.Error("putting what is in force changed what is stored")
		}
		second := decode[policySet](t, s.put(t, s.acme.admin, "application/json; charset=utf-8", `{"fast_path":true,"rules":[]}`).expect(t, http.StatusOK))
		if !strings.HasPrefix(second.Version, "v2+") || !second.FastPath || second.Format != "json" {
			t.Errorf("the second is %+v", second)
		}
		now := list()
		if len(now.Data) != 2 || now.Data[0].Version != second.Version || !now.Data[0].InForce || now.Data[1].InForce || now.Current != second.Version {
			t.Errorf("the list is %+v", now)
		}
		for _, path := range []string{first.Version, strings.Replace(first.Version, "+", "%2B", 1)} {
			found := decode[policySet](t, s.get(t, s.acme.member, "/v1/policies/"+path).expect(t, http.StatusOK))
			if found.Document != yamlSet || found.InForce || found.Version != first.Version {
				t.Errorf("%s is %+v", path, found)
			}
		}
		for _, path := range []string{"v1+000000000000", "v3+" + first.Version[3:], "v1", "v1%20" + first.Version[3:], "v01+" + first.Version[3:], "planted-version"} {
			s.get(t, s.acme.member, "/v1/policies/"+path).refuse(t, http.StatusNotFound, "not_found")
		}
		if org := decode[map[string]any](t, s.get(t, s.acme.member, "/v1/organization")); org["policy_version"] != second.Version {
			t.Errorf("the organization is under %v", org["policy_version"])
		}
		pages := everyPage[policySet](t, s, s.acme.member, "/v1/policies", 1)
		if len(pages) != 2 || pages[1].Version != first.Version {
			t.Errorf("pages hold %d sets", len(pages))
		}
	})
}

// A policy set can be checked without storing anything, and YAML and JSON of the
// same rules have one hash.
func TestCheckPolicy(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		before := s.database.dump(t)
		type check struct {
			Valid  bool
			Rules  int
			SHA256 string `json:"canonical_sha256"`
		}
		inYAML := decode[check](t, s.sendPolicy(t, s.acme.member, http.MethodPost, "/v1/policies/check", "application/yaml", yamlSet).expect(t, http.StatusOK))
		inJSON := decode[check](t, s.sendPolicy(t, s.acme.member, http.MethodPost, "/v1/policies/check", "application/json", jsonSet).expect(t, http.StatusOK))
		if !inYAML.Valid || inYAML.Rules != 1 || inYAML != inJSON {
			t.Errorf("checked as %+v and %+v", inYAML, inJSON)
		}
		if s.database.dump(t) != before {
			t.Error("a check changed what is stored")
		}
	})
}

// A policy set that cannot be used is refused with the line of each problem, and
// nothing is stored.
func TestBadPolicies(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		rule := func(members string) string { return `{"rules":[{"name":"n",` + members + `}]}` }
		large := `{"rules":[]}` + strings.Repeat(" ", 256<<10)
		tests := []struct {
			name, contentType, body string
			status                  int
			code                    string
		}{
			{"no rules", "application/json", `{}`, 422, "invalid_request"},
			{"not JSON", "application/json", `planted-a`, 422, "invalid_request"},
			{"not YAML", "application/yaml", "rules: [planted-a", 422, "invalid_request"},
			{"a name twice", "application/json", `{"rules":[],"rules":[]}`, 422, "invalid_request"},
			{"an alias", "application/yaml", "a: &x []\nrules: *x\n", 422, "invalid_request"},
			{"an unknown member", "application/json", `{"rules":[],"planted_name":1}`, 422, "invalid_request"},
			{"no condition", "application/json", rule(`"decision":"deny","reason":"r"`), 422, "invalid_request"},
			{"an unknown variable", "application/json", rule(`"when":"action.nothing == 1","decision":"deny","reason":"r"`), 422, "invalid_request"},
			{"no boolean", "application/json", rule(`"when":"1","decision":"deny","reason":"r"`), 422, "invalid_request"},
			{"another decision", "application/json", rule(`"when":"true","decision":"maybe","reason":"r"`), 422, "invalid_request"},
			{"approvers of a denial", "application/json", rule(`"when":"true","decision":"deny","reason":"r","approvers":["a"]`), 422, "invalid_request"},
			{"no type", "", `{"rules":[]}`, 415, "unsupported_media_type"},
			{"a text", "text/plain", `{"rules":[]}`, 415, "unsupported_media_type"},
			{"another charset", "application/yaml; charset=latin1", `rules: []`, 415, "unsupported_media_type"},
			{"too large", "application/json", large, 413, "too_large"},
			{"empty", "application/yaml", "", 400, "invalid_json"},
		}
		var refusals []refusal
		for _, test := range tests {
			for path, method := range map[string]string{"/v1/policies": http.MethodPut, "/v1/policies/check": http.MethodPost} {
				c := call{method: method, path: path, key: s.acme.admin.text, body: []byte(test.body), header: http.Header{"Content-Type": {test.contentType}}}
				if test.status == http.StatusRequestEntityTooLarge {
					c.header.Set("Expect", "100-continue")
				}
				refusals = append(refusals, refusal{path + ", " + test.name, c, test.status, test.code, nil})
				if c.chunked = true; test.status == http.StatusRequestEntityTooLarge {
					c.header = http.Header{"Content-Type": {test.contentType}}
					refusals = append(refusals, refusal{path + ", chunked, " + test.name, c, test.status, test.code, nil})
				}
			}
		}
		checkRefusals(t, s, refusals)
		got := s.put(t, s.acme.admin, "application/yaml", "rules:\n  - name: n\n    when: action.nothing\n    decision: deny\n    reason: r\n").
			refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		if len(got.problem.Errors) != 1 || !strings.Contains(got.problem.Errors[0].Detail, "line 3") {
			t.Errorf("the problem is not placed: %s", got.body)
		}
		s.get(t, s.acme.member, "/v1/policies/check").refuse(t, http.StatusMethodNotAllowed, "method_not_allowed")
	})
}

// A simulation counts what a candidate would have decided differently, and
// changes nothing.
func TestSimulatePolicy(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		for range 2 {
			id := s.open(t, s.acme.agent, `{"name":"history"}`)
			s.record(t, s.acme.agent, id, anAction)
			s.record(t, s.acme.agent, id, strings.Replace(anAction, `"search"`, `"delete_user"`, 1))
		}
		s.record(t, s.rival.agent, s.open(t, s.rival.agent, `{"name":"foreign"}`), strings.Replace(anAction, `"search"`, `"delete_user"`, 1))
		type result struct {
			Version                 string `json:"policy_version"`
			Events, Chains, Changed int
			Complete                bool
			Changes                 []struct {
				From, To string
				Count    int
			}
			Examples []struct {
				ActionName string `json:"action_name"`
				Candidate  string `json:"candidate_decision"`
				PolicyName string `json:"policy_name"`
			}
		}
		before := s.database.dump(t)
		simulate := func(body string) result {
			return decode[result](t, s.post(t, s.acme.admin, "/v1/policies/simulate", body).expect(t, http.StatusOK).without(t, "planted-query"))
		}
		sent := func(contentType, body string) result {
			return decode[result](t, s.sendPolicy(t, s.acme.admin, http.MethodPost, "/v1/policies/simulate", contentType, body).expect(t, http.StatusOK))
		}
		for name, got := range map[string]result{
			"JSON": simulate(`{"policy":` + jsonSet + `}`), "YAML in JSON": simulate(`{"policy":` + string(encode(t, yamlSet)) + `}`),
			"YAML": sent("application/yaml", yamlSet), "YAML of another name": sent("text/yaml; charset=utf-8", yamlSet),
		} {
			if got.Events != 4 || got.Chains != 2 || got.Changed != 2 || !got.Complete || !strings.HasPrefix(got.Version, "v1+") ||
				len(got.Changes) != 1 || got.Changes[0].From != "allow_with_flag" || got.Changes[0].To != "deny" || got.Changes[0].Count != 2 ||
				len(got.Examples) != 2 || got.Examples[0].ActionName != "delete_user" || got.Examples[0].PolicyName != "planted-no-deletes" {
				t.Errorf("%s: simulated %+v", name, got)
			}
		}
		if got := simulate(`{"policy":{"rules":[]}}`); got.Changed != 0 || len(got.Examples) != 0 {
			t.Errorf("the built-in rules alone would change %+v", got)
		}
		if got := simulate(`{"policy":` + jsonSet + `,"max_events":3}`); got.Events != 3 || got.Complete {
			t.Errorf("bounded, it simulated %+v", got)
		}
		if got := simulate(`{"policy":` + jsonSet + `,"since":"9999-01-01T00:00:00Z"}`); got.Events != 0 || !got.Complete {
			t.Errorf("of the future, it simulated %+v", got)
		}
		for _, refused := range []struct {
			contentType, body string
			status            int
			code              string
		}{
			{"application/yaml", "rules: [", 422, "invalid_request"},
			{"application/yaml", "policy: {rules: []}", 422, "invalid_request"},
			{"application/yaml", "", 400, "invalid_json"},
			{"application/yaml", "# " + strings.Repeat("x", 256<<10), 413, "too_large"},
			{"text/plain", yamlSet, 415, "unsupported_media_type"},
		} {
			s.sendPolicy(t, s.acme.admin, http.MethodPost, "/v1/policies/simulate", refused.contentType, refused.body).refuse(t, refused.status, refused.code)
		}
		if s.database.dump(t) != before {
			t.Error("a simulation changed what is stored")
		}
	})
}

// A rule matches a domain whichever of its two forms the rule and the action name.
func TestRulesKnowBothFormsOfADomain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		s.put(t, s.acme.admin, "application/json", `{"rules":[
			{"name":"readable","when":"action.external_domains.exists(d, d == 'b\u00fccher.example')","decision":"deny","reason":"no"},
			{"name":"looked-up","when":"action.external_domains.exists(d, d.endsWith('.xn--mnchen-3ya.example'))","decision":"deny","reason":"no"}]}`).expect(t, http.StatusOK)
		chainID := s.open(t, s.acme.agent, `{"name":"forms"}`)
		for url, want := range map[string]string{
			"https://b\u00fccher.example/": "deny", "https://xn--bcher-kva.example/": "deny", "https://bucher.example/": "allow",
			"https://a.m\u00fcnchen.example/": "deny", "https://a.xn--mnchen-3ya.example/": "deny",
		} {
			got := s.record(t, s.acme.agent, chainID, strings.Replace(anAction, `"query":"planted-query"`, `"url":"`+url+`"`, 1))
			if got.Decision != want {
				t.Errorf("%s: %s, want %s", url, got.Decision, want)
			}
		}
	})
}
