package httpapi_test

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// callers are all the ways in which a request can come with a key or without
// one, in the order of the rules' columns. Fixtures are of acme and were made by
// its agent.
func callers(s *stack) []struct{ name, key string } {
	return []struct{ name, key string }{
		{"no key", ""},
		{"malformed key", s.acme.admin.text[:20]},
		{"unknown key", unknownKey()},
		{"revoked key", s.acme.revoked.text},
		{"agent", s.acme.agent.text},
		{"another agent", s.acme.other.text},
		{"member", s.acme.member.text},
		{"admin", s.acme.admin.text},
		{"another organization's admin", s.rival.admin.text},
	}
}

// accessRule says what each caller is answered on a route.
type accessRule struct {
	body     string
	statuses [9]int
}

var (
	everyone    = [9]int{200, 200, 200, 200, 200, 200, 200, 200, 200}
	ownChain    = [9]int{401, 401, 401, 401, 200, 404, 200, 200, 404}
	anyAgent    = [9]int{401, 401, 401, 401, 200, 200, 200, 200, 200}
	creates     = [9]int{401, 401, 401, 401, 201, 201, 201, 201, 201}
	members     = [9]int{401, 401, 401, 401, 403, 403, 200, 200, 200}
	memberOwned = [9]int{401, 401, 401, 401, 403, 403, 200, 200, 404}
	admins      = [9]int{401, 401, 401, 401, 403, 403, 403, 200, 200}
	adminMakes  = [9]int{401, 401, 401, 401, 403, 403, 403, 201, 201}
	adminOwned  = [9]int{401, 401, 401, 401, 403, 403, 403, 200, 404}
	adminQueues = [9]int{401, 401, 401, 401, 403, 403, 403, 202, 404}
	adminAsks   = [9]int{401, 401, 401, 401, 403, 403, 403, 202, 202}
	adminIssues = [9]int{401, 401, 401, 401, 403, 403, 403, 201, 404}
	adminUnset  = [9]int{401, 401, 401, 401, 403, 403, 403, 403, 404} // evidence is not exported
	adminFinds  = [9]int{401, 401, 401, 401, 403, 403, 403, 404, 404} // there is none
	nobody      = [9]int{404, 404, 404, 404, 404, 404, 404, 404, 404} // nothing was signed, or there is no Slack app
	adminDrops  = [9]int{401, 401, 401, 401, 403, 403, 403, 204, 404}
)

// noHash is a hash of nothing that is stored.
var noHash = "sha256:" + strings.Repeat("0", 64)

var accessRules = map[string]accessRule{
	"POST /v1/chains":                                                   {`{"name":"access"}`, creates},
	"GET /v1/chains":                                                    {"", anyAgent},
	"GET /v1/chains/{chain_id}":                                         {"", ownChain},
	"POST /v1/chains/{chain_id}/events":                                 {anAction, ownChain},
	"GET /v1/chains/{chain_id}/events":                                  {"", memberOwned},
	"POST /v1/chains/{chain_id}/events/{event_id}/outcome":              {`{"outcome":"succeeded"}`, ownChain},
	"POST /v1/chains/{chain_id}/events/batch":                           {aReport, ownChain},
	"POST /v1/chains/{chain_id}/complete":                               {"", ownChain},
	"POST /v1/chains/{chain_id}/resume":                                 {"", adminOwned},
	"GET /v1/chains/{chain_id}/approval-status":                         {"", ownChain},
	"GET /v1/approvals":                                                 {"", anyAgent},
	"GET /v1/approvals/{approval_id}":                                   {"", ownChain},
	"POST /v1/approvals/{approval_id}/approve":                          {"", memberOwned},
	"POST /v1/approvals/{approval_id}/cancel":                           {"", ownChain},
	"POST /v1/approvals/{approval_id}/deny":                             {"", memberOwned},
	"GET /v1/chains/{chain_id}/receipt":                                 {"", ownChain},
	"GET /v1/receipts":                                                  {"", members},
	"GET /v1/receipts/{receipt_id}":                                     {"", memberOwned},
	"GET /v1/receipts/{receipt_id}/bundle":                              {"", adminUnset},
	"GET /v1/receipts/{receipt_id}/verify":                              {"", everyone},
	"GET /v1/verification/v2/approvals/{approval_id}":                   {"", memberOwned},
	"GET /v1/verification/v2/receipts/{receipt_id}":                     {"", memberOwned},
	"GET /v1/verification/v2/ledger":                                    {"", admins},
	"POST /v1/verification/v2/anchors":                                  {"", adminAsks},
	"GET /v1/public-verification-tokens":                                {"", admins},
	"POST /v1/public-verification-tokens":                               {`{"artifact_type":"receipt","artifact_id":"{receipt_id}"}`, adminIssues},
	"POST /v1/public-verification-tokens/{token_id}/revoke":             {"", adminOwned},
	"GET /public/v2/verify/{opaque_token}":                              {"", everyone},
	"POST /public/v2/verify/{opaque_token}":                             {`{"hash":"` + noHash + `"}`, everyone},
	"POST /public/v2/verify/{opaque_token}/compare":                     {`{"hash":"` + noHash + `"}`, everyone},
	"GET /v1/shares":                                                    {"", admins},
	"POST /v1/shares":                                                   {`{"receipt_id":"{receipt_id}"}`, adminUnset},
	"POST /v1/shares/{share_id}/revoke":                                 {"", adminFinds},
	"GET /public/shares/{share}":                                        {"", nobody},
	"GET /public/approvals/{approval_id}":                               {"", everyone},
	"GET /v1/approvals/{approval_id}/verify":                            {"", everyone},
	"GET /v1/signing-keys":                                              {"", admins},
	"POST /v1/signing-keys":                                             {`{"name":"access"}`, adminMakes},
	"POST /v1/signing-keys/{key_id}/retire":                             {"", adminOwned},
	"POST /v1/signing-keys/{key_id}/revoke":                             {"", adminOwned},
	"POST /v1/signing-keys/{key_id}/confirm":                            {"", adminOwned},
	"POST /v1/signing-keys/{key_id}/retract":                            {"", adminOwned},
	"GET /v1/organization":                                              {"", members},
	"PATCH /v1/organization":                                            {`{"two_person_approval":true}`, admins},
	"GET /v1/budgets":                                                   {"", members},
	"GET /v1/policies":                                                  {"", members},
	"PUT /v1/policies":                                                  {`{"rules":[],"fast_path":true}`, admins},
	"GET /v1/policies/{version}":                                        {"", memberOwned},
	"POST /v1/policies/check":                                           {`{"rules":[]}`, members},
	"POST /v1/policies/simulate":                                        {`{"policy":{"rules":[]}}`, admins},
	"GET /v1/kill-switch":                                               {"", members},
	"POST /v1/kill-switch/activate":                                     {`{"reason":"access"}`, admins},
	"POST /v1/kill-switch/deactivate":                                   {"", admins},
	"GET /v1/webhooks":                                                  {"", admins},
	"POST /v1/webhooks":                                                 {`{"url":"https://hooks.example.com/access"}`, adminMakes},
	"DELETE /v1/webhooks/{webhook_id}":                                  {"", adminDrops},
	"POST /v1/webhooks/{webhook_id}/test":                               {"", adminOwned},
	"GET /v1/webhooks/{webhook_id}/deliveries":                          {"", adminOwned},
	"POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": {"", adminQueues},
	"GET /v1/audit-log":                                                 {"", admins},
	"POST /v1/slack/interactions":                                       {"payload={}", nobody},
	"GET /v1/api-keys":                                                  {"", admins},
	"POST /v1/api-keys":                                                 {`{"name":"access","role":"agent"}`, adminMakes},
	"PATCH /v1/api-keys/{key_id}":                                       {`{"sign_in_as":null}`, adminOwned},
	"POST /v1/api-keys/{key_id}/revoke":                                 {"", adminOwned},
	"POST /v1/api-keys/{key_id}/rotate":                                 {`{"overlap_seconds":600}`, adminOwned},
	"GET /.well-known/countersign/log-keys":                             {"", everyone},
	"GET /public/log/{log_id}/checkpoint":                               {"", nobody},
	"GET /public/log/{log_id}/tile/{level}/{number...}":                 {"", nobody},
	"GET /healthz":                                                      {"", everyone},
	"GET /readyz":                                                       {"", everyone},
	"GET /openapi.json":                                                 {"", everyone},
	"GET /openapi.yaml":                                                 {"", everyone},
	"GET /verify":                                                       {"", everyone},
	"GET /docs":                                                         {"", everyone},
	"GET /docs/{asset}":                                                 {"", everyone},
	"GET /docs/guides":                                                  {"", everyone},
	"GET /docs/guides/{name...}":                                        {"", everyone},
}

// Every route has a rule that says which callers may use it, and answers each caller
// by that rule.
func TestAccess(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		rules := make(map[string]bool)
		for _, route := range s.api.Routes() {
			name := route.Method + " " + route.Pattern
			rule, ok := accessRules[name]
			if !ok {
				t.Errorf("%s: add a rule that says who may call it", name)
				continue
			}
			rules[name] = true
			fixture := fixtureOf(t, s, name)
			for i, caller := range callers(s) {
				t.Run(name+"/"+caller.name, func(t *testing.T) {
					checkAccess(t, s, call{method: route.Method, path: route.Pattern, key: caller.key, body: bodyOf(rule.body)}, fixture, rule.statuses[i])
				})
			}
		}
		for name := range accessRules {
			if !rules[name] {
				t.Errorf("%s: a rule for a route that is not there", name)
			}
		}
	})
}

func checkAccess(t *testing.T, s *stack, c call, fixture *strings.Replacer, want int) {
	pattern, template := c.path, string(c.body)
	c.path, c.body = fixture.Replace(pattern), bodyOf(fixture.Replace(template))
	if want < http.StatusBadRequest {
		s.do(t, c).expect(t, want)
		return
	}
	before := s.database.dump(t)
	got := s.do(t, c).expect(t, want)
	if s.database.dump(t) != before {
		t.Error("a refused request changed what is stored")
	}
	got.without(t, s.acme.id, s.rival.id, s.acme.admin.text[4:20], "access")
	if want == http.StatusNotFound {
		c.path, c.body = unknownFixture.Replace(pattern), bodyOf(unknownFixture.Replace(template))
		if unknown := s.do(t, c).expect(t, want); unknown.anonymous() != got.anonymous() {
			t.Errorf("what is not the caller's can be told from what does not exist:\n%s\n%s", got.body, unknown.body)
		}
	}
}

// fixtureOf makes what a route's path names: sealed where the route reads a
// receipt, open where it writes.
func fixtureOf(t *testing.T, s *stack, name string) *strings.Replacer {
	t.Helper()
	agent := s.acme.agent
	chainID, eventID, receiptID := "", "", ""
	tokens := strings.Contains(name, "public")
	shares := strings.Contains(name, "shares")
	if strings.Contains(name, "{chain_id}") || strings.Contains(name, "{receipt_id}") || tokens || shares {
		chainID = s.open(t, agent, `{"name":"fixture"}`)
		eventID = s.record(t, agent, chainID, anAction).EventID
	}
	if (strings.Contains(name, "receipt") || tokens || shares) && chainID != "" {
		receiptID = *s.complete(t, agent, chainID, "").ReceiptID
	}
	made := []string{"{share_id}", uuid.NewString(), "{share}", unknownToken()}
	switch {
	case strings.Contains(name, "{approval_id}"):
		made = append(made, "{approval_id}", s.ask(t, agent, s.open(t, agent, `{"name":"fixture"}`)))
	case strings.Contains(name, "{version}"):
		put := s.put(t, s.acme.admin, "application/json", `{"rules":[],"fast_path":false}`).expect(t, http.StatusOK)
		made = append(made, "{version}", decode[policySet](t, put).Version)
	case strings.Contains(name, "{webhook_id}"):
		created := s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/"}`).expect(t, http.StatusCreated)
		id := decode[webhook](t, created).ID
		tested := s.post(t, s.acme.admin, "/v1/webhooks/"+id+"/test", "").expect(t, http.StatusOK)
		made = append(made, "{webhook_id}", id, "{delivery_id}", decode[delivery](t, tested).ID)
	case strings.HasSuffix(name, "/resume"):
		s.patch(t, s.acme.admin, `{"auto_pause":{"max_events":1}}`).expect(t, http.StatusOK)
		s.record(t, agent, chainID, anAction)
		s.patch(t, s.acme.admin, `{"auto_pause":{"max_events":10000}}`).expect(t, http.StatusOK)
	}
	if strings.Contains(name, "signing-keys/") {
		body := ""
		if strings.HasSuffix(name, "/confirm") || strings.HasSuffix(name, "/retract") {
			public := ledger.HashToken(uuid.NewString())
			body = `{"public_key":"` + base64.StdEncoding.EncodeToString(public[:]) + `"}`
		}
		made = append(made, "{key_id}", decode[signingKey](t, s.post(t, s.acme.admin, "/v1/signing-keys", body).expect(t, http.StatusCreated)).ID)
	}
	if tokens {
		issued := s.issue(t, s.acme.admin, "receipt", receiptID)
		made = append(made, "{token_id}", issued.ID, "{opaque_token}", issued.Token)
	}
	key := s.named(t, s.acme.slug, "member", "")
	return strings.NewReplacer(append(made, "{chain_id}", chainID, "{event_id}", eventID, "{receipt_id}", receiptID,
		"{key_id}", key.id.String(), "{asset}", "docs.css", "{name...}", "policies")...)
}

var unknownFixture = strings.NewReplacer("{chain_id}", uuid.NewString(), "{event_id}", uuid.NewString(),
	"{receipt_id}", uuid.NewString(), "{key_id}", uuid.NewString(), "{approval_id}", uuid.NewString(),
	"{share_id}", uuid.NewString(), "{share}", unknownToken(), "{log_id}", strings.Repeat("0", 32), "{level}", "0", "{number...}", "000",
	"{webhook_id}", uuid.NewString(), "{delivery_id}", uuid.NewString(), "{version}", "v9+0123456789ab", "{token_id}", uuid.NewString(), "{opaque_token}", unknownToken())

// One organization's objects are in no answer that another gets, an agent's in
// none that another agent gets, and an address needs all its parts right.
func TestOrganizationsAreApart(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		mine := s.seal(t, s.acme.agent, "planted-acme")
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"asked"}`))
		theirs := s.seal(t, s.rival.agent, "planted-rival")
		for _, path := range []string{"/v1/chains", "/v1/receipts", "/v1/api-keys", "/v1/organization", "/v1/chains?external_chain_id=x",
			"/v1/approvals", "/v1/approvals?chain_id=" + mine.ID, "/v1/policies", "/v1/webhooks", "/v1/audit-log",
			"/v1/public-verification-tokens", "/v1/signing-keys", "/v1/verification/v2/ledger"} {
			s.get(t, s.rival.admin, path).expect(t, http.StatusOK).
				without(t, mine.ID, *mine.ReceiptID, asked, "planted-acme", "planted-note", s.acme.id, s.rival.id, s.acme.agent.id.String(), s.acme.slug)
		}
		s.get(t, s.acme.other, "/v1/chains").expect(t, http.StatusOK).without(t, mine.ID, "planted-acme")
		s.get(t, s.acme.other, "/v1/approvals").expect(t, http.StatusOK).without(t, asked, "planted-note")
		for name, id := range map[string]string{"chains": mine.ID, "receipts": *mine.ReceiptID} {
			s.get(t, s.acme.member, "/v1/"+name+"/"+id).expect(t, http.StatusOK)
			s.get(t, s.acme.member, "/v1/"+name+"/"+strings.ToUpper(id)).expect(t, http.StatusOK)
		}
		for _, path := range []string{"/v1/chains/" + theirs.ID, "/v1/receipts/" + *theirs.ReceiptID, "/v1/verification/v2/receipts/" + *theirs.ReceiptID, "/v1/chains/" + *mine.ReceiptID, "/v1/receipts/" + mine.ID} {
			s.get(t, s.acme.admin, path).refuse(t, http.StatusNotFound, "not_found")
		}
	})
}
