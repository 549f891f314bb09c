package httpapi_test

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
)

// A chain is opened with exactly the name, environment and metadata that were sent,
// and its receipt holds the same metadata.
func TestOpenChain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		metadata := `{"planted-key":[1,-0.5,1e21,true,null,"\u00e9 \ud83d\ude00 \u2028 \" \\ / \b"],"` +
			`é":{"":{}},"nested":` + strings.Repeat(`{"a":[`, 30) + strings.Repeat(`]}`, 30) + `}`
		tests := []struct {
			name, body, wantName, wantExternal, wantEnvironment, wantMetadata string
		}{
			{"a name", `{"name":"invoice-run"}`, "invoice-run", "", "production", "null"},
			{"an identifier alone", `{"external_chain_id":"run-7"}`, "run-7", "run-7", "production", "null"},
			{"an identifier beside null", `{"name":null,"external_chain_id":"run-8","environment":null,"metadata":null,"policy_config":null,"fallback_approvers":null}`, "run-8", "run-8", "production", "null"},
			{"both", `{"name":"n","external_chain_id":"a\nb\tc"}`, "n", "a\nb\tc", "production", "null"},
			{"an environment", `{"name":"n","environment":"staging – Zürich"}`, "n", "", "staging – Zürich", "null"},
			{"the longest names", `{"name":"` + long[:400] + `","external_chain_id":"` + long[:400] + `"}`, long[:400], long[:400], "production", "null"},
			{"an organization to ignore", `{"name":"n","organization_id":"` + s.rival.id + `"}`, "n", "", "production", "null"},
			{"an organization of any kind", `{"name":"n","organization_id":{"planted-a":[]}}`, "n", "", "production", "null"},
			{"metadata", `{"name":"n","metadata":` + metadata + `}`, "n", "", "production", metadata},
			{"empty metadata", `{"name":"n","metadata":{}}`, "n", "", "production", "{}"},
			{"the largest metadata", `{"name":"n","metadata":{"a":"` + strings.Repeat("x", 16384-len(`{"a":""}`)) + `"}}`, "n", "", "production", `{"a":"` + strings.Repeat("x", 16384-len(`{"a":""}`)) + `"}`},
			{"limits of its own", `{"name":"n","policy_config":{"financial_approval_threshold_usd":0.5,"cumulative_financial_threshold_usd":null,` +
				`"external_domains_allowlist":["example.com"],"high_risk_agents":["a"],"approval_timeout_hours":1,"chain_timeout_seconds":60},` +
				`"fallback_approvers":["planted-a@example.com"]}`, "n", "", "production", "null"},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				got := s.post(t, s.acme.agent, "/v1/chains", test.body).expect(t, http.StatusCreated).without(t, s.rival.id, s.acme.id)
				opened := decode[chain](t, got)
				if got.header.Get("Location") != "/v1/chains/"+opened.ID {
					t.Errorf("Location is %s", got.header.Get("Location"))
				}
				external := ""
				if opened.ExternalID != nil {
					external = *opened.ExternalID
				}
				if opened.Name != test.wantName || external != test.wantExternal || opened.Environment != test.wantEnvironment {
					t.Errorf("opened as %q, %q, %q", opened.Name, external, opened.Environment)
				}
				if !bytes.Equal(canonical(t, opened.Metadata), canonical(t, []byte(test.wantMetadata))) {
					t.Errorf("metadata came back as %s", opened.Metadata)
				}
				if opened.Status != "active" || opened.ReceiptID != nil || opened.CompletedAt != nil || opened.Actions != 0 {
					t.Errorf("a new chain is %s", got.body)
				}
				if found := s.get(t, s.acme.agent, "/v1/chains/"+opened.ID).expect(t, http.StatusOK); !bytes.Equal(found.body, withoutKey(withoutLease(got.body))) {
					t.Errorf("found as %s, opened as %s", found.body, got.body)
				}
				sealed := s.complete(t, s.acme.agent, opened.ID, "")
				if metadata := decode[receipt](t, &answer{body: sealed.Receipt}).Metadata; !bytes.Equal(canonical(t, metadata), canonical(t, []byte(test.wantMetadata))) {
					t.Errorf("the receipt holds the metadata %s", metadata)
				}
			})
		}
	})
}

// canonical is an independent RFC 8785.
func canonical(t *testing.T, data []byte) []byte {
	t.Helper()
	if string(data) == "null" {
		return data // which the library does not take for a document
	}
	out, err := jcs.Transform(data)
	if err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return out
}

// The same request with the same idempotency key finds the chain that it opened. A
// different request or another caller gets a conflict.
func TestOpenChainAgain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		open := func(key credential, idempotencyKey, body string) *answer {
			return s.do(t, call{
				method: http.MethodPost, path: "/v1/chains", key: key.text, body: []byte(body),
				header: http.Header{"Idempotency-Key": {idempotencyKey}},
			})
		}
		const body = `{"name":"n","metadata":{"b":1,"a":[2]},"environment":"e","fallback_approvers":["a@example.com"],"policy_config":{"chain_timeout_seconds":1}}`
		first := decode[chain](t, open(s.acme.agent, "planted-k1", body).expect(t, http.StatusCreated))
		before := s.database.dump(t)
		// The same in other words.
		for _, again := range []string{body, strings.ReplaceAll(body, `"b":1,"a":[2]`, ` "a" : [2.0] , "b":1e0`)} {
			if got := decode[chain](t, open(s.acme.agent, "planted-k1", again).expect(t, http.StatusCreated)); got.ID != first.ID {
				t.Errorf("opened a second chain")
			}
		}
		for name, other := range map[string]string{
			"name":        strings.Replace(body, `"name":"n"`, `"name":"m"`, 1),
			"identifier":  strings.Replace(body, `"name":"n"`, `"name":"n","external_chain_id":"n"`, 1),
			"metadata":    strings.Replace(body, `"b":1`, `"b":2`, 1),
			"environment": strings.Replace(body, `"environment":"e"`, `"environment":"f"`, 1),
			"approvers":   strings.Replace(body, "a@example.com", "b@example.com", 1),
			"limits":      strings.Replace(body, `"chain_timeout_seconds":1`, `"chain_timeout_seconds":2`, 1),
		} {
			t.Run("another "+name, func(t *testing.T) {
				open(s.acme.agent, "planted-k1", other).refuse(t, http.StatusConflict, "idempotency_conflict").without(t, first.ID, planted)
			})
		}
		if s.database.dump(t) != before {
			t.Error("repeats and conflicts changed what is stored")
		}
		for name, other := range map[string]*answer{
			"another header":       open(s.acme.agent, "planted-k2", body),
			"another case":         open(s.acme.agent, "PLANTED-k1", body),
			"another organization": open(s.rival.agent, "planted-k1", body),
			"another agent's key":  open(s.acme.other, "planted-k1", body),
			"an admin's key":       open(s.acme.admin, "planted-k1", body),
			"no header":            s.post(t, s.acme.agent, "/v1/chains", body),
		} {
			if got := decode[chain](t, other.expect(t, http.StatusCreated)); got.ID == first.ID {
				t.Errorf("%s found the first chain", name)
			}
		}
		s.complete(t, s.acme.agent, first.ID, "")
		if now := decode[chain](t, open(s.acme.agent, "planted-k1", body).expect(t, http.StatusCreated)); now.ID != first.ID || now.Status != "completed" {
			t.Errorf("a repeat after completion says %+v", now)
		}
	})
}

// However many send the same request at once, one chain is opened.
//
//countersign:race
func TestOpenChainTogether(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		answers := together(16, func(int) *answer {
			return s.do(t, call{
				method: http.MethodPost, path: "/v1/chains", key: s.acme.agent.text, body: []byte(`{"name":"n"}`),
				header: http.Header{"Idempotency-Key": {"planted-k"}},
			})
		})
		ids := make(map[string]bool)
		for _, got := range answers {
			ids[decode[chain](t, got.expect(t, http.StatusCreated)).ID] = true
		}
		if list := decode[page[chain]](t, s.get(t, s.acme.admin, "/v1/chains")); len(ids) != 1 || len(list.Data) != 1 {
			t.Errorf("%d ids were answered, %d chains are there", len(ids), len(list.Data))
		}
	})
}

var leaseMember = regexp.MustCompile(`"fast_path_lease":\{[^}]*\}`)

// withoutLease is an answer as it is when no lease is granted.
func withoutLease(body []byte) []byte {
	return leaseMember.ReplaceAll(body, []byte(`"fast_path_lease":null`))
}

var bindingMember = regexp.MustCompile(`"binding_key":"[^"]*",`)

// withoutKey is the answer to the opening of a chain as everyone else sees the chain.
func withoutKey(body []byte) []byte { return bindingMember.ReplaceAll(body, nil) }
