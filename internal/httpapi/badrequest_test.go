package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// lists are the routes that answer in pages.
func lists(chainID string) map[string]string {
	return map[string]string{
		"chains":   "/v1/chains",
		"events":   "/v1/chains/" + chainID + "/events",
		"receipts": "/v1/receipts",
		"api-keys": "/v1/api-keys",

		"approvals": "/v1/approvals",
		"policies":  "/v1/policies",
		"webhooks":  "/v1/webhooks",
		"audit-log": "/v1/audit-log",

		"tokens":       "/v1/public-verification-tokens",
		"signing-keys": "/v1/signing-keys",
	}
}

// A list refuses unknown parameters, bad limits and filters, and any cursor that it
// did not issue itself.
func TestBadQueries(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"queries"}`)
		for range 2 {
			s.record(t, s.acme.agent, id, anAction)
			s.seal(t, s.acme.agent, "queries")
		}
		s.ask(t, s.acme.agent, id)
		s.put(t, s.acme.admin, "application/json", `{"rules":[]}`).expect(t, http.StatusOK)
		s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/"}`).expect(t, http.StatusCreated)
		s.issue(t, s.acme.admin, "receipt", *s.seal(t, s.acme.agent, "queries").ReceiptID)
		cursors := make(map[string]string)
		for name, path := range lists(id) {
			cursors[name] = *decode[page[any]](t, s.get(t, s.acme.admin, path+"?limit=1")).Next
		}
		var refusals []refusal
		add := func(list, query string, pointers ...string) {
			c := call{method: http.MethodGet, path: lists(id)[list] + "?" + query, key: s.acme.admin.text}
			refusals = append(refusals, refusal{list + " " + query[:min(len(query), 60)], c, http.StatusUnprocessableEntity, "invalid_request", pointers})
		}
		for list := range lists(id) {
			for _, limit := range []string{"0", "-1", "201", "abc", "1.5", "1e2", "%20", "", "99999999999999999999", "%00"} {
				add(list, "limit="+limit, "/limit")
			}
			add(list, "limit=1&limit=2", "/limit")
			for _, cursor := range []string{"", "planted-cursor", "%00", "!!", cursors[list] + "%0A", cursors[list] + "A", cursors[list][1:], strings.Repeat("A", 1000)} {
				add(list, "cursor="+cursor, "/cursor")
			}
			add(list, "cursor="+cursors[list]+"&cursor="+cursors[list], "/cursor")
			for other, cursor := range cursors {
				if other != list {
					add(list, "cursor="+cursor, "/cursor")
				}
			}
			add(list, "planted_name=planted-value", "/planted_name")
			add(list, "Limit=1", "/Limit")
			add(list, "limit=0&cursor=x&y=z", "/y", "/limit", "/cursor")
			add(list, "limit=1;cursor=planted-x", "/")
			add(list, "limit=%zz", "/")
		}
		for _, filter := range []string{"status", "environment", "external_chain_id"} {
			add("chains", filter+"=", "/"+filter)
			add("chains", filter+"=a%00b", "/"+filter)
			add("chains", filter+"=%ff", "/"+filter)
			add("chains", filter+"="+strings.Repeat("a", 201), "/"+filter)
			add("chains", filter+"=active&"+filter+"=active", "/"+filter)
			add("receipts", filter+"=active", "/"+filter)
		}
		for _, status := range []string{"active", "Pending", "planted-status", ""} {
			add("approvals", "status="+status, "/status")
		}
		for _, chain := range []string{"", "planted-chain", "urn:uuid:" + id, strings.ReplaceAll(id, "-", "")} {
			add("approvals", "chain_id="+chain, "/chain_id")
		}
		add("chains", "status=planted-done", "/status")
		add("chains", "status=Active", "/status")
		checkRefusals(t, s, refusals)
	})
}

// An Idempotency-Key header that is empty, too long, repeated or not printable ASCII
// is refused.
func TestBadIdempotencyKeys(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var refusals []refusal
		for name, keys := range map[string][]string{
			"empty":           {""},
			"too long":        {strings.Repeat("a", 201)},
			"twice":           {"planted-a", "planted-a"},
			"no ASCII":        {"planted-é"},
			"a tab within":    {"planted-\ta"},
			"no UTF-8 either": {"planted-\xff"},
		} {
			refusals = append(refusals, refusal{
				name,
				call{method: http.MethodPost, path: "/v1/chains", key: s.acme.agent.text, body: []byte(`{"name":"n"}`), header: http.Header{"Idempotency-Key": keys}},
				http.StatusUnprocessableEntity, "invalid_request", []string{"/Idempotency-Key"},
			})
		}
		checkRefusals(t, s, refusals)
	})
}

// A text that is no id names nothing, whatever else UUID libraries would take it
// for.
func TestBadIDs(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		sealed := s.seal(t, s.acme.agent, "ids")
		id := func(valid string) []string {
			return []string{
				"x", "0", valid[:35], valid + "0", "urn:uuid:" + valid, "%7B" + valid + "%7D", strings.ReplaceAll(valid, "-", ""),
				valid[:35] + "g", valid[:8] + "0" + valid[9:], valid + "%00", "%20" + valid, valid[:35] + "%2F", "%2e%2e%2F" + valid,
				uuid.Nil.String(), uuid.NewString(), strings.Repeat("a", 4000), "%F0%9F%92%A9",
			}
		}
		var refusals []refusal
		for pattern, valid := range map[string]string{
			"GET /v1/chains/{}": sealed.ID, "GET /v1/chains/{}/events": sealed.ID, "GET /v1/chains/{}/receipt": sealed.ID,
			"POST /v1/chains/{}/events": sealed.ID, "POST /v1/chains/{}/complete": sealed.ID,
			"POST /v1/chains/" + sealed.ID + "/events/{}/outcome": sealed.ID,
			"GET /v1/receipts/{}": *sealed.ReceiptID, "GET /v1/receipts/{}/verify": *sealed.ReceiptID,
			"POST /v1/api-keys/{}/revoke": s.acme.agent.id.String(), "POST /v1/api-keys/{}/rotate": s.acme.agent.id.String(),
			"POST /v1/chains/{}/resume": sealed.ID, "GET /v1/chains/{}/approval-status": sealed.ID,
			"GET /v1/approvals/{}": sealed.ID, "POST /v1/approvals/{}/approve": sealed.ID, "POST /v1/approvals/{}/deny": sealed.ID,
			"GET /v1/verification/v2/approvals/{}": sealed.ID, "GET /v1/verification/v2/receipts/{}": *sealed.ReceiptID,
			"GET /public/approvals/{}": sealed.ID, "GET /v1/approvals/{}/verify": sealed.ID,
			"POST /v1/public-verification-tokens/{}/revoke": sealed.ID,
			"POST /v1/signing-keys/{}/retire":               sealed.ID, "POST /v1/signing-keys/{}/revoke": sealed.ID,
			"POST /v1/signing-keys/{}/confirm": sealed.ID, "POST /v1/signing-keys/{}/retract": sealed.ID,
			"DELETE /v1/webhooks/{}": sealed.ID, "POST /v1/webhooks/{}/test": sealed.ID, "GET /v1/webhooks/{}/deliveries": sealed.ID,
			"POST /v1/webhooks/" + sealed.ID + "/deliveries/{}/redeliver": sealed.ID,
		} {
			method, path, _ := strings.Cut(pattern, " ")
			for _, bad := range id(valid) {
				c := call{method: method, path: strings.Replace(path, "{}", bad, 1), key: s.acme.admin.text}
				switch {
				case strings.HasSuffix(path, "/events") && method == http.MethodPost:
					c.body = []byte(anAction)
				case strings.HasSuffix(path, "/outcome"):
					c.body = []byte(`{"outcome":"succeeded"}`)
				}
				refusals = append(refusals, refusal{routeName(pattern) + " " + bad[:min(len(bad), 50)], c, http.StatusNotFound, "not_found", nil})
			}
		}
		checkRefusals(t, s, refusals)
	})
}

// A method that a route does not serve is answered 405 with the methods that it does
// serve, HEAD with every GET.
func TestWrongMethods(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		methods := make(map[string][]string)
		for _, route := range s.api.Routes() {
			methods[route.Pattern] = append(methods[route.Pattern], route.Method)
			if route.Method == http.MethodGet {
				methods[route.Pattern] = append(methods[route.Pattern], http.MethodHead)
			}
		}
		for pattern, allowed := range methods {
			path := unknownFixture.Replace(strings.NewReplacer("{asset}", "docs.js", "{name...}", "policies").Replace(pattern))
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"} {
				if slices.Contains(allowed, method) {
					continue
				}
				got := s.do(t, call{method: method, path: path, key: s.acme.admin.text}).refuse(t, http.StatusMethodNotAllowed, "method_not_allowed")
				listed := strings.Split(got.header.Get("Allow"), ", ")
				if slices.Sort(listed); !slices.Equal(listed, slices.Sorted(slices.Values(allowed))) {
					t.Errorf("%s %s: Allow lists %v, want %v", method, pattern, listed, allowed)
				}
			}
		}
	})
}

// Every path that is no route is answered alike, without a redirect that repeats
// it.
func TestUnknownRoutes(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var refusals []refusal
		for _, path := range []string{
			"/", "/v1", "/v1/", "/v1/chains/", "//v1/chains", "/v1//chains", "/v1/./chains", "/v1/../v1/chains", "/V1/chains", "/v1/Chains",
			"/v1%2Fchains", "/v1/planted-nothing", "/planted-nothing/../v1/chains", "/favicon.ico", "/robots.txt", "/metrics", "/debug/pprof/",
			"/v2/chains", "/v1/chains/" + uuid.NewString() + "/planted-nothing", "/docs/", "/docs/../openapi.json", "/openapi.json/", "/healthz/",
			"/public", "/public/", "/public/v2/verify", "/public/v2/verify/", "/public/v2/verify/planted-a/b", "/public/v1/verify/planted-a",
			"/v1/verification/v2", "/v1/verification/v2/ledger/",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				refusals = append(refusals, refusal{method + " " + routeName(path), call{method: method, path: path, key: s.acme.admin.text}, http.StatusNotFound, "not_found", nil})
			}
		}
		checkRefusals(t, s, refusals)
	})
}
