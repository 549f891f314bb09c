package httpapi_test

import "strings"

// aReport is what a client decided by itself.
const aReport = `{"events":[{"agent_name":"reader","action_type":"tool_call","action_name":"read_file","payload":{"path":"planted-path"},` +
	`"decision_source":"local_fast_path","policy_decision":"allow","idempotency_key":"planted-k"}]}`

func report(changes string) string { return `{"events":[` + reported(changes) + `]}` }

func reported(changes string) string {
	return `{"agent_name":"a","action_type":"t","action_name":"n","payload":{}` + changes + `}`
}

const (
	local = `,"decision_source":"local_fast_path"`
	keyed = `,"idempotency_key":"k"`
)

var badReports = []badField{
	{"nothing", `{}`, []string{"/events"}},
	{"events are null", `{"events":null}`, []string{"/events"}},
	{"events are an object", `{"events":{}}`, []string{"/events"}},
	{"no events", `{"events":[]}`, []string{"/events"}},
	{"too many events", `{"events":[` + strings.Repeat("0,", 500) + `0]}`, []string{"/events"}},
	{"an event is a text", `{"events":["planted-a"]}`, nil},
	{"without a source", report(keyed), []string{"/events/0/decision_source"}},
	{"source is the service", report(keyed + `,"decision_source":"backend_evaluation"`), []string{"/events/0/decision_source"}},
	{"source is a person", report(keyed + `,"decision_source":"human_approval"`), []string{"/events/0/decision_source"}},
	{"without an idempotency key", report(local), []string{"/events/0/idempotency_key"}},
	{"idempotency key is empty", report(local + `,"idempotency_key":""`), []string{"/events/0/idempotency_key"}},
	{"a denial that happened", report(local + keyed + `,"policy_decision":"deny"`), []string{"/events/0/policy_decision"}},
	{"an unknown member", report(local + keyed + `,"planted_name":1`), []string{"/events/0/planted_name"}},
	{"the second is wrong", `{"events":[` + reported(local+keyed) + `,` + reported(local+keyed+`,"executed_at":"planted-now"`) + `]}`, []string{"/events/1/executed_at"}},
	{"without a payload", `{"events":[{"agent_name":"a","action_type":"t","action_name":"n"` + local + keyed + `}]}`, []string{"/events/0/payload"}},
}

var badVerdicts = []badField{
	{"comment is a number", `{"comment":1}`, []string{"/comment"}},
	{"comment is too long", `{"comment":"` + longText + `"}`, []string{"/comment"}},
	{"comment has NUL", `{"comment":"planted-\u0000"}`, []string{"/comment"}},
	{"hash is a list", `{"payload_sha256":["planted-a"]}`, []string{"/payload_sha256"}},
	{"hash is too long", `{"payload_sha256":"` + long + `"}`, []string{"/payload_sha256"}},
	{"a reviewer of one's choice", `{"reviewer":"planted-a"}`, []string{"/reviewer"}},
}

var badReasons = []badField{
	{"nothing", `{}`, []string{"/reason"}},
	{"reason is null", `{"reason":null}`, []string{"/reason"}},
	{"reason is empty", `{"reason":""}`, []string{"/reason"}},
	{"reason is a number", `{"reason":1}`, []string{"/reason"}},
	{"reason has a line break", `{"reason":"planted-\n"}`, []string{"/reason"}},
	{"reason is too long", `{"reason":"` + strings.Repeat("é", 501) + `"}`, []string{"/reason"}},
}

var badWebhooks = []badField{
	{"nothing", `{}`, []string{"/url"}},
	{"no URL", `{"url":"planted-url"}`, []string{"/url"}},
	{"plain HTTP", `{"url":"http://hooks.example.com/planted-path"}`, []string{"/url"}},
	{"this machine", `{"url":"https://localhost/planted-path"}`, []string{"/url"}},
	{"a private address", `{"url":"https://10.0.0.1/planted-path"}`, []string{"/url"}},
	{"a password", `{"url":"https://user:planted-word@hooks.example.com/"}`, []string{"/url"}},
	{"a fragment", `{"url":"https://hooks.example.com/#planted-part"}`, []string{"/url"}},
	{"an event of another kind", `{"url":"https://hooks.example.com/","events":["planted.kind"]}`, []string{"/events"}},
	{"events are a text", `{"url":"https://hooks.example.com/","events":"chain.completed"}`, []string{"/events"}},
	{"description has a line break", `{"url":"https://hooks.example.com/","description":"planted-\n"}`, []string{"/description"}},
	{"a secret of one's choice", `{"url":"https://hooks.example.com/","secret":"planted-a"}`, []string{"/secret"}},
}

var badSimulations = []badField{
	{"nothing", `{}`, []string{"/policy"}},
	{"policy is a list", `{"policy":[]}`, []string{"/policy"}},
	{"policy is null", `{"policy":null}`, []string{"/policy"}},
	{"a set that does not compile", `{"policy":{"rules":[{"name":"n","when":"planted_a","decision":"deny","reason":"r"}]}}`, []string{""}},
	{"no events", `{"policy":{"rules":[]},"max_events":0}`, []string{"/max_events"}},
	{"too many events", `{"policy":{"rules":[]},"max_events":100001}`, []string{"/max_events"}},
	{"a time in words", `{"policy":{"rules":[]},"since":"planted-yesterday"}`, []string{"/since"}},
}
