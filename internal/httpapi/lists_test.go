package httpapi_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"
)

// Every list returns each element once and in order, whatever the page size.
func TestLists(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		const chains = 9
		var opened, sealed, recorded []string
		for i := range chains {
			id := s.open(t, s.acme.agent, fmt.Sprintf(`{"name":"n%d"}`, i))
			opened = append(opened, id)
			sealed = append(sealed, *s.complete(t, s.acme.agent, id, "").ReceiptID)
		}
		last := s.open(t, s.acme.agent, `{"name":"events"}`)
		opened = append(opened, last)
		for range chains {
			recorded = append(recorded, s.record(t, s.acme.agent, last, anAction).EventID)
		}
		slices.Reverse(opened) // newest first
		slices.Reverse(sealed)
		for _, limit := range []int{2, 3, 9, 200} {
			check := func(path string, want []string, id func(map[string]any) string) {
				t.Helper()
				var got []string
				for _, item := range everyPage[map[string]any](t, s, s.acme.admin, path, limit) {
					got = append(got, id(item))
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s in pages of %d lists %d elements, want %d, or in another order", routeName(path), limit, len(got), len(want))
				}
			}
			member := func(name string) func(map[string]any) string {
				return func(item map[string]any) string { return item[name].(string) }
			}
			check("/v1/chains", opened, member("id"))
			check("/v1/receipts", sealed, member("receipt_id"))
			check("/v1/chains/"+last+"/events", recorded, member("id"))
			check("/v1/api-keys", []string{
				s.acme.admin.id.String(), s.acme.member.id.String(), s.acme.agent.id.String(), s.acme.other.id.String(), s.acme.revoked.id.String(),
			}, member("key_id"))
		}
		for path := range map[string]bool{"/v1/chains": true, "/v1/receipts": true} {
			if got := decode[page[any]](t, s.get(t, s.rival.admin, path).expect(t, http.StatusOK)); len(got.Data) != 0 || got.Next != nil {
				t.Errorf("an empty list is %+v", got)
			}
		}
	})
}

// Chains can be filtered by status, environment and external id, and an agent still
// sees only its own.
func TestChainFilters(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		open := func(key credential, body string) string { return s.open(t, key, body) }
		awkward := "a b&c=d/é%"
		staging := open(s.acme.agent, `{"name":"a","environment":"staging"}`)
		done := open(s.acme.agent, `{"name":"b","environment":"staging","external_chain_id":"x"}`)
		failed := open(s.acme.agent, `{"name":"c","external_chain_id":"x"}`)
		others := open(s.acme.other, `{"name":"d","external_chain_id":"`+awkward+`"}`)
		s.complete(t, s.acme.agent, done, "")
		s.complete(t, s.acme.agent, failed, `{"outcome":"failed"}`)
		tests := []struct {
			query         url.Values
			member, agent []string
		}{
			{url.Values{}, []string{others, failed, done, staging}, []string{failed, done, staging}},
			{url.Values{"status": {"active"}}, []string{others, staging}, []string{staging}},
			{url.Values{"status": {"completed"}}, []string{done}, []string{done}},
			{url.Values{"status": {"failed"}}, []string{failed}, []string{failed}},
			{url.Values{"status": {"auto_paused"}}, nil, nil},
			{url.Values{"environment": {"staging"}}, []string{done, staging}, []string{done, staging}},
			{url.Values{"environment": {"Staging"}}, nil, nil},
			{url.Values{"external_chain_id": {"x"}}, []string{failed, done}, []string{failed, done}},
			{url.Values{"external_chain_id": {awkward}}, []string{others}, nil},
			{url.Values{"external_chain_id": {"x"}, "environment": {"staging"}, "status": {"completed"}}, []string{done}, []string{done}},
			{url.Values{"external_chain_id": {"x' OR 1=1 --"}}, nil, nil},
			{url.Values{"limit": {"2"}}, []string{others, failed}, []string{failed, done}},
		}
		for _, test := range tests {
			t.Run(test.query.Encode(), func(t *testing.T) {
				for key, want := range map[credential][]string{s.acme.member: test.member, s.acme.agent: test.agent} {
					var got []string
					for _, c := range decode[page[chain]](t, s.get(t, key, "/v1/chains?"+test.query.Encode()).expect(t, http.StatusOK)).Data {
						got = append(got, c.ID)
					}
					if !slices.Equal(got, want) {
						t.Errorf("found %d chains, want %d, or in another order", len(got), len(want))
					}
				}
			})
		}
		// A cursor keeps its place under a filter.
		first := decode[page[chain]](t, s.get(t, s.acme.member, "/v1/chains?external_chain_id=x&limit=1"))
		second := decode[page[chain]](t, s.get(t, s.acme.member, "/v1/chains?external_chain_id=x&limit=1&cursor="+*first.Next))
		if first.Data[0].ID != failed || second.Data[0].ID != done {
			t.Error("pages under a filter repeat or skip")
		}
	})
}
