package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"countersign/internal/testdb"
)

// The document describes what the service takes: null in place of a member that may be left out,
// times in any zone, leases of any length. The referee finds a request that it does not describe.
func TestDocumentTakesWhatTheServiceTakes(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	id := s.open(t, s.acme.agent, `{"name":"taken"}`)
	for name, c := range map[string]struct {
		key    credential
		path   string
		body   string
		status int
	}{
		"a key that expires in another zone": {s.acme.admin, "/v1/api-keys", `{"role":"agent","expires_at":"2999-01-01T00:00:00+02:00"}`, http.StatusCreated},
		"a key that expires without millis":  {s.acme.admin, "/v1/api-keys", `{"role":"agent","expires_at":"2999-01-01T00:00:00Z"}`, http.StatusCreated},
		"a cancellation without a comment":   {s.acme.agent, "/v1/approvals/" + s.ask(t, s.acme.agent, id) + "/cancel", `{"comment":null}`, http.StatusOK},
		"nothing was found":                  {s.acme.agent, "/v1/chains/" + id + "/events", action(`,"found":{"categories":null,"amount_usd":null,"external_domains":null,"records_modified":null}`), http.StatusOK},
		"a long lease":                       {s.acme.agent, "/v1/chains/" + id + "/events/batch", report(local + keyed + `,"lease_id":"` + strings.Repeat("x", 401) + `"`), http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			s.post(t, c.key, c.path, c.body).expect(t, c.status)
		})
	}
	s.patch(t, s.acme.admin, `{"budgets":[{"name":"b","scope":"agent","match":null,"window":"day","limit_usd":1,"limit_cost_usd":null,"limit_tokens":null,"decision":"deny"}]}`).expect(t, http.StatusOK)
	s.get(t, s.acme.admin, "/v1/chains?environment=a%09b").expect(t, http.StatusOK)
}

// What the service refuses for its form alone, the document refuses too, so that a client made from
// it finds the fault before it sends anything.
func TestDocumentRefusesWhatTheServiceRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	r, err := theReferee()
	if err != nil {
		t.Fatal(err)
	}
	id := s.open(t, s.acme.agent, `{"name":"refused"}`)
	token := s.issue(t, s.acme.admin, "receipt", *s.seal(t, s.acme.agent, "sealed").ReceiptID)
	rule := func(more string) string {
		return `{"rules":[{"name":"r","when":"true","decision":"require_approval","reason":"r"` + more + `}]}`
	}
	budget := func(more string) string {
		return `{"budgets":[{"name":"b","scope":"agent","window":"day","decision":"deny"` + more + `}]}`
	}
	for name, c := range map[string]struct{ method, path, body string }{
		"a remediation of null":         {http.MethodPut, "/v1/policies", rule(`,"remediation":null`)},
		"an empty remediation":          {http.MethodPut, "/v1/policies", rule(`,"remediation":""`)},
		"a link of null":                {http.MethodPut, "/v1/policies", rule(`,"docs_url":null`)},
		"no approvers":                  {http.MethodPost, "/v1/policies/check", rule(`,"approvers":[]`)},
		"an approver without a name":    {http.MethodPost, "/v1/policies/check", rule(`,"approvers":[""]`)},
		"a simulation since a word":     {http.MethodPost, "/v1/policies/simulate", `{"policy":{"rules":[]},"since":"yesterday"}`},
		"a category in capitals":        {http.MethodPatch, "/v1/organization", `{"fail_modes":{"Financial":"deny"}}`},
		"a budget without a limit":      {http.MethodPatch, "/v1/organization", budget("")},
		"a budget with a limit of null": {http.MethodPatch, "/v1/organization", budget(`,"limit_usd":null`)},
		"a budget with two limits":      {http.MethodPatch, "/v1/organization", budget(`,"limit_usd":1,"limit_tokens":1`)},
		"a budget's name of two lines":  {http.MethodPatch, "/v1/organization", strings.Replace(budget(`,"limit_usd":1`), `"b"`, `"b\nc"`, 1)},
		"a budget for two lines":        {http.MethodPatch, "/v1/organization", budget(`,"limit_usd":1,"match":["a\nb"]`)},
		"a key for an agent of two":     {http.MethodPost, "/v1/api-keys", `{"role":"agent","agents":["a\nb"]}`},
		"a reason of two lines":         {http.MethodPost, "/v1/public-verification-tokens/" + token.ID + "/revoke", `{"reason":"a\nb"}`},
		"a huge amount found":           {http.MethodPost, "/v1/chains/" + id + "/events", action(`,"found":{"amount_usd":1000000000000001}`)},
		"an empty domain found":         {http.MethodPost, "/v1/chains/" + id + "/events", action(`,"found":{"external_domains":[""]}`)},
	} {
		t.Run(name, func(t *testing.T) {
			sent := call{method: c.method, path: c.path, key: s.acme.admin.text, body: []byte(c.body)}
			s.do(t, sent).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
			if judged, err := r.judgeJSON(t, c.method, c.path, c.body); !judged || err == nil {
				t.Errorf("the document takes %s", c.body)
			}
		})
	}
}
