package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

// badFields are bodies that are JSON and break a rule, by route. long is one
// character more than a name may have.
var (
	long       = strings.Repeat("é", 201)
	longText   = strings.Repeat("é", 2001)
	manyAgents = "[" + strings.Repeat(`"a",`, 1000) + `"a"]`
)

func action(changes string) string {
	return `{"agent_name":"a","action_type":"t","action_name":"n","payload":{}` + changes + `}`
}

type badField struct {
	name, body string
	pointers   []string
}

var badOpens = []badField{
	{"nothing", `{}`, []string{"/name"}},
	{"name is null alone", `{"name":null}`, []string{"/name"}},
	{"name is empty", `{"name":""}`, []string{"/name"}},
	{"name is empty beside an identifier", `{"name":"","external_chain_id":"x"}`, []string{"/name"}},
	{"name is a number", `{"name":17}`, []string{"/name"}},
	{"name is an object", `{"name":{"planted_name":"planted-value"}}`, []string{"/name"}},
	{"name is too long", `{"name":"` + long + `"}`, []string{"/name"}},
	{"name has two lines", `{"name":"planted-a\nb"}`, []string{"/name"}},
	{"name has an escape", `{"name":"planted-\u001b[31m"}`, []string{"/name"}},
	{"name has a C1 control", `{"name":"planted-\u0085"}`, []string{"/name"}},
	{"name has NUL", `{"name":"planted-\u0000"}`, []string{"/name"}},
	{"identifier is empty", `{"external_chain_id":""}`, []string{"/external_chain_id"}},
	{"identifier is empty beside a name", `{"name":"n","external_chain_id":""}`, []string{"/external_chain_id"}},
	{"identifier is too long", `{"name":"n","external_chain_id":"` + long + `"}`, []string{"/external_chain_id"}},
	{"identifier has NUL", `{"name":"n","external_chain_id":"planted-\u0000"}`, []string{"/external_chain_id"}},
	{"identifier as a name has two lines", `{"external_chain_id":"planted-a\nb"}`, []string{"/external_chain_id"}},
	{"environment is empty", `{"name":"n","environment":""}`, []string{"/environment"}},
	{"environment is a list", `{"name":"n","environment":["planted-a"]}`, []string{"/environment"}},
	{"environment is too long", `{"name":"n","environment":"` + long + `"}`, []string{"/environment"}},
	{"environment has a tab", `{"name":"n","environment":"planted-\t"}`, []string{"/environment"}},
	{"metadata is a list", `{"name":"n","metadata":["planted-a"]}`, []string{"/metadata"}},
	{"metadata is a text", `{"name":"n","metadata":"planted-a"}`, []string{"/metadata"}},
	{"metadata is too large", `{"name":"n","metadata":{"a":"` + strings.Repeat("x", 16384-len(`{"a":""}`)+1) + `"}}`, []string{"/metadata"}},
	{"metadata is too large once written out", `{"name":"n","metadata":{"a":"` + strings.Repeat("é", 8192) + `"}}`, []string{"/metadata"}},
	{"fallback approvers are a text", `{"name":"n","fallback_approvers":"planted-a@example.com"}`, []string{"/fallback_approvers"}},
	{"a fallback approver is no address", `{"name":"n","fallback_approvers":["planted-a"]}`, []string{"/fallback_approvers"}},
	{"a fallback approver has a name", `{"name":"n","fallback_approvers":["A <planted-a@example.com>"]}`, []string{"/fallback_approvers"}},
	{"a fallback approver is a number", `{"name":"n","fallback_approvers":[1]}`, []string{"/fallback_approvers/0"}},
	{"a fallback approver is empty", `{"name":"n","fallback_approvers":["a@example.com",""]}`, []string{"/fallback_approvers/1"}},
	{"too many fallback approvers", `{"name":"n","fallback_approvers":[` + strings.Repeat(`"a@example.com",`, 20) + `"a@example.com"]}`, []string{"/fallback_approvers"}},
	{"policy_config is a list", `{"name":"n","policy_config":[]}`, []string{"/policy_config"}},
	{"policy_config has an unknown member", `{"name":"n","policy_config":{"planted_name":"planted-a"}}`, []string{"/policy_config/planted_name"}},
	{"a threshold is negative", `{"name":"n","policy_config":{"financial_approval_threshold_usd":-1}}`, []string{"/policy_config/financial_approval_threshold_usd"}},
	{"a threshold is a text", `{"name":"n","policy_config":{"cumulative_financial_threshold_usd":"planted-5000"}}`, []string{"/policy_config/cumulative_financial_threshold_usd"}},
	{"a threshold is too large", `{"name":"n","policy_config":{"cumulative_financial_threshold_usd":1e16}}`, []string{"/policy_config/cumulative_financial_threshold_usd"}},
	{"a domain is no domain", `{"name":"n","policy_config":{"external_domains_allowlist":["https://planted-a.example/"]}}`, []string{"/policy_config/external_domains_allowlist"}},
	{"high-risk agents are an object", `{"name":"n","policy_config":{"high_risk_agents":{}}}`, []string{"/policy_config/high_risk_agents"}},
	{"too many high-risk agents", `{"name":"n","policy_config":{"high_risk_agents":` + manyAgents + `}}`, []string{"/policy_config/high_risk_agents"}},
	{"a timeout of nothing", `{"name":"n","policy_config":{"approval_timeout_hours":0}}`, []string{"/policy_config/approval_timeout_hours"}},
	{"a timeout of years", `{"name":"n","policy_config":{"approval_timeout_hours":8761}}`, []string{"/policy_config/approval_timeout_hours"}},
	{"a chain's timeout is a boolean", `{"name":"n","policy_config":{"chain_timeout_seconds":true}}`, []string{"/policy_config/chain_timeout_seconds"}},
	{"names in another case", `{"name":"n","Name":"planted-a"}`, []string{"/Name"}},
	{"several faults", `{"name":1,"environment":2,"planted_name":3}`, []string{"/environment", "/name", "/planted_name"}},
	{"an awkward name", `{"name":"n","a/b~c":1}`, []string{"/a~1b~0c"}},
}

var badActions = []badField{
	{"nothing", `{}`, []string{"/agent_name", "/action_type", "/action_name", "/payload"}},
	{"no payload", `{"agent_name":"a","action_type":"t","action_name":"n"}`, []string{"/payload"}},
	{"payload is null", `{"agent_name":"a","action_type":"t","action_name":"n","payload":null}`, []string{"/payload"}},
	{"payload is a list", `{"agent_name":"a","action_type":"t","action_name":"n","payload":["planted-a"]}`, []string{"/payload"}},
	{"payload is a text", `{"agent_name":"a","action_type":"t","action_name":"n","payload":"planted-a"}`, []string{"/payload"}},
	{"alias is null", `{"agent_name":"a","action_type":"t","action_name":"n","action_payload":null}`, []string{"/action_payload"}},
	{"alias is a number", `{"agent_name":"a","action_type":"t","action_name":"n","action_payload":1}`, []string{"/action_payload"}},
	{"payload and its alias", action(`,"action_payload":{}`), []string{"/action_payload"}},
	{"payload and its alias of null", action(`,"action_payload":null`), []string{"/action_payload"}},
	{"agent is empty", `{"agent_name":"","action_type":"t","action_name":"n","payload":{}}`, []string{"/agent_name"}},
	{"agent is null", `{"agent_name":null,"action_type":"t","action_name":"n","payload":{}}`, []string{"/agent_name"}},
	{"agent has a line break", `{"agent_name":"planted-\n","action_type":"t","action_name":"n","payload":{}}`, []string{"/agent_name"}},
	{"agent is too long", `{"agent_name":"` + long + `","action_type":"t","action_name":"n","payload":{}}`, []string{"/agent_name"}},
	{"type is a number", `{"agent_name":"a","action_type":1,"action_name":"n","payload":{}}`, []string{"/action_type"}},
	{"action has NUL", `{"agent_name":"a","action_type":"t","action_name":"planted-\u0000","payload":{}}`, []string{"/action_name"}},
	{"parent is empty", action(`,"parent_agent_name":""`), []string{"/parent_agent_name"}},
	{"parent is a boolean", action(`,"parent_agent_name":true`), []string{"/parent_agent_name"}},
	{"metadata is a text", action(`,"metadata":"planted-a"`), []string{"/metadata"}},
	{"metadata is too large", action(`,"metadata":{"a":"` + strings.Repeat("x", 16384) + `"}`), []string{"/metadata"}},
	{"idempotency key is empty", action(`,"idempotency_key":""`), []string{"/idempotency_key"}},
	{"idempotency key is too long", action(`,"idempotency_key":"` + long + `"`), []string{"/idempotency_key"}},
	{"idempotency key is a number", action(`,"idempotency_key":1`), []string{"/idempotency_key"}},
	{"idempotency key has a control character", action(`,"idempotency_key":"planted-\u007f"`), []string{"/idempotency_key"}},
	{"a time that is empty", action(`,"executed_at":""`), []string{"/executed_at"}},
	{"a time in words", action(`,"executed_at":"planted-yesterday"`), []string{"/executed_at"}},
	{"a time without a zone", action(`,"executed_at":"2026-03-04T05:06:07"`), []string{"/executed_at"}},
	{"a time with a comma", action(`,"executed_at":"2026-03-04T05:06:07,5Z"`), []string{"/executed_at"}},
	{"a time with a short hour", action(`,"executed_at":"2026-03-04T5:06:07Z"`), []string{"/executed_at"}},
	{"a time with a blank", action(`,"executed_at":"2026-03-04 05:06:07Z"`), []string{"/executed_at"}},
	{"a day that does not exist", action(`,"executed_at":"2026-02-30T05:06:07Z"`), []string{"/executed_at"}},
	{"a time before 1970", action(`,"executed_at":"1969-12-31T23:59:59Z"`), []string{"/executed_at"}},
	{"a time as a number", action(`,"executed_at":1700000000`), []string{"/executed_at"}},
	{"a decision of the client's", action(`,"policy_decision":"allow"`), []string{"/policy_decision"}},
}

var badOutcomes = []badField{
	{"nothing", `{}`, []string{"/outcome"}},
	{"outcome is null", `{"outcome":null}`, []string{"/outcome"}},
	{"outcome is empty", `{"outcome":""}`, []string{"/outcome"}},
	{"outcome is another word", `{"outcome":"planted-done"}`, []string{"/outcome"}},
	{"outcome in another case", `{"outcome":"Succeeded"}`, []string{"/outcome"}},
	{"detail is a list", `{"outcome":"failed","detail":["planted-a"]}`, []string{"/detail"}},
	{"detail is too long", `{"outcome":"failed","detail":"` + longText + `"}`, []string{"/detail"}},
	{"detail has NUL", `{"outcome":"failed","detail":"planted-\u0000"}`, []string{"/detail"}},
}

var badCompletions = []badField{
	{"outcome is another word", `{"outcome":"planted-done"}`, []string{"/outcome"}},
	{"outcome is a boolean", `{"outcome":true}`, []string{"/outcome"}},
	{"outcome is empty", `{"outcome":""}`, []string{"/outcome"}},
	{"an error of a success", `{"outcome":"completed","error":{"type":"planted-a"}}`, []string{"/error"}},
	{"an error without an outcome", `{"error":{"type":"planted-a"}}`, []string{"/error"}},
	{"an error without a type", `{"outcome":"failed","error":{}}`, []string{"/error/type"}},
	{"an error with an empty type", `{"outcome":"failed","error":{"type":""}}`, []string{"/error/type"}},
	{"an error's type with a line break", `{"outcome":"failed","error":{"type":"planted-\n"}}`, []string{"/error/type"}},
	{"an error's message is too long", `{"outcome":"failed","error":{"type":"a","message":"` + longText + `"}}`, []string{"/error/message"}},
	{"an error with a stack", `{"outcome":"failed","error":{"type":"a","stack":"planted-a"}}`, []string{"/error/stack"}},
}

var badKeys = []badField{
	{"nothing", `{}`, []string{"/role"}},
	{"role is null", `{"role":null}`, []string{"/role"}},
	{"role is another word", `{"role":"planted-owner"}`, []string{"/role"}},
	{"role is a list", `{"role":["admin"]}`, []string{"/role"}},
	{"name is empty", `{"role":"agent","name":""}`, []string{"/name"}},
	{"name is too long", `{"role":"agent","name":"` + long + `"}`, []string{"/name"}},
	{"name has a control character", `{"role":"agent","name":"planted-\b"}`, []string{"/name"}},
	{"a key of the caller's choice", `{"role":"agent","key":"planted-a"}`, []string{"/key"}},
	{"another organization", `{"role":"agent","organization_id":"planted-a"}`, []string{"/organization_id"}},
	{"agents are a text", `{"role":"agent","agents":"planted-a"}`, []string{"/agents"}},
	{"too many agents", `{"role":"agent","agents":[` + strings.Repeat(`"a",`, 100) + `"a"]}`, []string{"/agents"}},
	{"an agent is a number", `{"role":"agent","agents":["a",1]}`, []string{"/agents/1"}},
	{"an agent is empty", `{"role":"agent","agents":[""]}`, []string{"/agents/0"}},
	{"an agent is too long", `{"role":"agent","agents":["` + long + `"]}`, []string{"/agents/0"}},
	{"an agent cannot be seen", `{"role":"agent","agents":["a","\u200b\u00ad"]}`, []string{"/agents/1"}},
	{"an agent has two lines", `{"role":"agent","agents":["planted-a\nb"]}`, []string{"/agents/0"}},
	{"an agent has NUL", `{"role":"agent","agents":["planted-\u0000"]}`, []string{"/agents/0"}},
	{"owner is empty", `{"role":"agent","owner":""}`, []string{"/owner"}},
	{"owner is too long", `{"role":"agent","owner":"` + long + `"}`, []string{"/owner"}},
	{"owner has an escape", `{"role":"agent","owner":"planted-\u001b[31m"}`, []string{"/owner"}},
	{"expires_at is no time", `{"role":"agent","expires_at":"planted-90d"}`, []string{"/expires_at"}},
	{"expires_at is a number", `{"role":"agent","expires_at":1893456000}`, []string{"/expires_at"}},
	{"expires_at has passed", `{"role":"agent","expires_at":"2020-01-01T00:00:00Z"}`, []string{"/expires_at"}},
	{"sign_in_as of an agent", `{"role":"agent","sign_in_as":"planted-a"}`, []string{"/sign_in_as"}},
	{"sign_in_as is not ASCII", `{"role":"member","sign_in_as":"pl\u0430nted-a"}`, []string{"/sign_in_as"}},
	{"slack_member of an agent", `{"role":"agent","slack_member":"T1/U1"}`, []string{"/slack_member"}},
	{"slack_member without a team", `{"role":"member","slack_member":"planted-U1"}`, []string{"/slack_member"}},
	{"last_used_at of the caller's choice", `{"role":"agent","last_used_at":"2030-01-01T00:00:00Z"}`, []string{"/last_used_at"}},
}

var badKeyUpdates = []badField{
	{"nothing", `{}`, []string{"/sign_in_as"}},
	{"sign_in_as is empty", `{"sign_in_as":""}`, []string{"/sign_in_as"}},
	{"sign_in_as is a number", `{"sign_in_as":7}`, []string{"/sign_in_as"}},
	{"sign_in_as is too long", `{"sign_in_as":"` + long + `"}`, []string{"/sign_in_as"}},
	{"sign_in_as has a space", `{"sign_in_as":"planted a"}`, []string{"/sign_in_as"}},
	{"sign_in_as is not ASCII", `{"sign_in_as":"plаnted-a"}`, []string{"/sign_in_as"}},
	{"slack_member is empty", `{"slack_member":""}`, []string{"/slack_member"}},
	{"slack_member is a number", `{"slack_member":7}`, []string{"/slack_member"}},
	{"slack_member is too long", `{"slack_member":"` + long + `"}`, []string{"/slack_member"}},
	{"slack_member has no team", `{"slack_member":"U1"}`, []string{"/slack_member"}},
	{"slack_member is in lower case", `{"slack_member":"t1/planted"}`, []string{"/slack_member"}},
	{"both are wrong", `{"sign_in_as":"planted a","slack_member":"planted"}`, []string{"/sign_in_as", "/slack_member"}},
	{"another role", `{"sign_in_as":null,"role":"admin"}`, []string{"/role"}},
}

var badRotations = []badField{
	{"a list", `[]`, []string{""}},
	{"a negative overlap", `{"overlap_seconds":-1}`, []string{"/overlap_seconds"}},
	{"an overlap of more than a week", `{"overlap_seconds":604801}`, []string{"/overlap_seconds"}},
	{"an overlap of half a second", `{"overlap_seconds":0.5}`, []string{"/overlap_seconds"}},
	{"an overlap in words", `{"overlap_seconds":"planted-10m"}`, []string{"/overlap_seconds"}},
	{"a key of the caller's choice", `{"key":"planted-a"}`, []string{"/key"}},
	{"agents are not changed", `{"agents":["planted-a"]}`, []string{"/agents"}},
}

// A bad field in any request body is refused with a pointer to that field, and
// nothing is stored.
func TestBadFields(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		bad := [][]badField{badOpens, badActions, badOutcomes, badCompletions, badKeys, badRotations, badKeyUpdates, badReports, badVerdicts, badVerdicts, badReasons, badWebhooks, badSimulations, badSettings, badIssues, badRevocations, badSigningKeys}
		var refusals []refusal
		for i, write := range writes(t, s) {
			for _, field := range bad[i] {
				write.body = []byte(field.body)
				name := write.method + " " + routeName(write.path) + ", " + field.name
				refusals = append(refusals, refusal{name, write, http.StatusUnprocessableEntity, "invalid_request", field.pointers})
			}
		}
		checkRefusals(t, s, refusals)
	})
}

// An answer lists the faults of a hostile body up to a bound.
func TestFaultsAreBounded(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var names strings.Builder
		for range 20000 {
			names.WriteString(`,"` + randomHex(8) + `":1`)
		}
		got := s.post(t, s.acme.agent, "/v1/chains", `{"name":"n"`+names.String()+`}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		if n := len(got.problem.Errors); n != 50 {
			t.Errorf("%d faults are listed", n)
		}
		long := s.post(t, s.acme.agent, "/v1/chains", `{"name":"n","`+strings.Repeat("planted-", 10000)+`":1}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		if len(long.body) > 1000 {
			t.Errorf("the answer has %d bytes", len(long.body))
		}
		query := s.get(t, s.acme.agent, "/v1/chains?"+strings.Repeat("a&b&c&", 100)+strings.ReplaceAll(names.String()[:20000], `":1,"`, "&")).
			refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		if n := len(query.problem.Errors); n > 50 {
			t.Errorf("%d faults of a query are listed", n)
		}
	})
}
