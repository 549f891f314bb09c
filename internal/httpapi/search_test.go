package httpapi_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"countersign/internal/testdb"
)

// The lists of chains, receipts and approvals are searched by query parameters, each alone
// and together, and a cursor keeps its place under them.
func TestSearchParameters(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		invoices := s.open(t, s.acme.agent, `{"name":"Invoice run","metadata":{"customer":42,"a b[c]":"x&y"}}`)
		asked := s.ask(t, s.acme.agent, invoices)
		payroll := s.open(t, s.acme.agent, `{"name":"Payroll run"}`)
		s.record(t, s.acme.agent, payroll, anAction)
		receipt := *s.complete(t, s.acme.agent, payroll, "").ReceiptID
		action := decode[map[string]any](t, s.get(t, s.acme.member, "/v1/approvals/"+asked).expect(t, http.StatusOK))
		tests := []struct {
			path  string
			query url.Values
			want  []string
		}{
			{"/v1/chains", url.Values{"name": {"run"}}, []string{payroll, invoices}},
			{"/v1/chains", url.Values{"name": {"RUN, invoice"}}, []string{invoices}},
			{"/v1/chains", url.Values{"metadata[customer]": {"42"}}, []string{invoices}},
			{"/v1/chains", url.Values{"metadata[a b[c]]": {"x&y"}}, []string{invoices}},
			{"/v1/chains", url.Values{"metadata[customer]": {"43"}}, nil},
			{"/v1/chains", url.Values{"decision": {"require_approval"}}, []string{invoices}},
			{"/v1/chains", url.Values{"decision": {"deny"}}, nil},
			{"/v1/chains", url.Values{"name": {"run"}, "status": {"completed"}}, []string{payroll}},
			{"/v1/chains", url.Values{"since": {"2020-01-01"}, "until": {"9999-12-31"}}, []string{payroll, invoices}},
			{"/v1/chains", url.Values{"until": {"2020-01-01T00:00:00Z"}}, nil},
			{"/v1/receipts", url.Values{"name": {"payroll"}, "decision": {"allow"}}, []string{receipt}},
			{"/v1/receipts", url.Values{"since": {"2020-01-01"}}, []string{receipt}},
			{"/v1/receipts", url.Values{"name": {"invoice"}}, nil},
			{"/v1/approvals", url.Values{"agent_name": {action["agent_name"].(string)}, "action_type": {action["action_type"].(string)}, "action_name": {action["action_name"].(string)}}, []string{asked}},
			{"/v1/approvals", url.Values{"name": {"invoice"}, "metadata[customer]": {"42"}, "status": {"pending"}}, []string{asked}},
			{"/v1/approvals", url.Values{"name": {"payroll"}}, nil},
		}
		for _, test := range tests {
			test.query.Set("limit", "1")
			var got []string
			for {
				found := decode[page[map[string]any]](t, s.get(t, s.acme.member, test.path+"?"+test.query.Encode()).expect(t, http.StatusOK))
				for _, item := range found.Data {
					id, ok := item["receipt_id"].(string)
					if test.path != "/v1/receipts" || !ok {
						id = item["id"].(string)
					}
					got = append(got, id)
				}
				if found.Next == nil {
					break
				}
				test.query.Set("cursor", *found.Next)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s?%s finds %d entries, want %d, or others", test.path, test.query.Encode(), len(got), len(test.want))
			}
		}
		if others := decode[page[any]](t, s.get(t, s.acme.other, "/v1/chains?name=run").expect(t, http.StatusOK)); len(others.Data) != 0 {
			t.Error("an agent finds chains that it did not open")
		}
	})
}

// A search refuses what is empty, too long, given twice or cannot be understood, and names
// the parameter.
func TestBadSearches(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	var refusals []refusal
	add := func(path, query string, pointers ...string) {
		c := call{method: http.MethodGet, path: path + "?" + query, key: s.acme.admin.text}
		refusals = append(refusals, refusal{path + " " + query[:min(len(query), 60)], c, http.StatusUnprocessableEntity, "invalid_request", pointers})
	}
	for _, path := range []string{"/v1/chains", "/v1/receipts", "/v1/approvals"} {
		for _, name := range []string{"name", "agent_name", "action_type", "action_name"} {
			add(path, name+"=", "/"+name)
			add(path, name+"=a%00b", "/"+name)
			add(path, name+"=%ff", "/"+name)
			add(path, name+"="+strings.Repeat("a", 201), "/"+name)
			add(path, name+"=a&"+name+"=a", "/"+name)
		}
		add(path, "name=%2C-", "/name")
		for _, moment := range []string{"", "yesterday", "2026-13-01", "2026-11-31", "1969-12-31", "2026-11-01T00:00", "2026-11-01%2000:00:00", "%00"} {
			add(path, "since="+moment, "/since")
			add(path, "until="+moment, "/until")
		}
		add(path, "since=2026-11-02&until=2026-11-01", "/until")
		add(path, "metadata=a", "/metadata")
		add(path, "metadata[a=b", "/metadata[a")
		add(path, "metadata[a]=", "/metadata[a]")
		add(path, "metadata[a]="+strings.Repeat("a", 201), "/metadata[a]")
		add(path, "metadata[%ff]=a", "/metadata")
		add(path, "metadata["+strings.Repeat("a", 201)+"]=a", "/metadata")
		add(path, "metadata[a]=1&metadata[b]=1&metadata[c]=1&metadata[d]=1&metadata[e]=1&metadata[f]=1", "/metadata")
	}
	for _, path := range []string{"/v1/chains", "/v1/receipts"} {
		for _, decision := range []string{"", "denied", "Deny", "a%00"} {
			add(path, "decision="+decision, "/decision")
		}
	}
	add("/v1/approvals", "decision=deny", "/decision")
	checkRefusals(t, s, refusals)
}
