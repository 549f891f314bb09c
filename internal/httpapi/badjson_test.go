package httpapi_test

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"countersign/internal/httpapi"
)

// refusal is a request that must be refused, as the document says, without a
// trace in the store and without repeating what was sent.
type refusal struct {
	name string
	call
	status   int
	code     string
	pointers []string // nil: not looked at
}

// checkRefusals sends them one after the other, so that a change is blamed on the
// request that made it.
func checkRefusals(t *testing.T, s *stack, refusals []refusal) {
	t.Helper()
	if len(refusals) == 0 {
		t.Fatal("nothing to refuse")
	}
	before := s.database.dump(t)
	for _, bad := range refusals {
		t.Run(bad.name, func(t *testing.T) {
			got := s.do(t, bad.call)
			if after := s.database.dump(t); after != before {
				before = after
				t.Errorf("the request changed what is stored")
			}
			got.refuse(t, bad.status, bad.code).without(t, planted)
			if bad.pointers != nil && !slices.Equal(got.pointers(), bad.pointers) {
				t.Errorf("faults at %q, want %q", got.pointers(), bad.pointers)
			}
		})
	}
}

// writes are the routes that take a body, each with a good one.
func writes(t *testing.T, s *stack) []call {
	t.Helper()
	id := s.open(t, s.acme.agent, `{"name":"bad-input"}`)
	done := s.record(t, s.acme.agent, id, anAction).EventID
	post := func(key credential, path, body string) call {
		return call{method: http.MethodPost, path: path, key: key.text, body: []byte(body)}
	}
	sealed := *s.seal(t, s.acme.agent, "bad-input").ReceiptID
	return []call{
		post(s.acme.agent, "/v1/chains", `{"name":"planted-name"}`),
		post(s.acme.agent, "/v1/chains/"+id+"/events", anAction),
		post(s.acme.agent, "/v1/chains/"+id+"/events/"+done+"/outcome", `{"outcome":"succeeded","detail":"planted-detail"}`),
		post(s.acme.agent, "/v1/chains/"+id+"/complete", `{"outcome":"failed","error":{"type":"planted-type"}}`),
		post(s.acme.admin, "/v1/api-keys", `{"role":"agent","name":"planted-name"}`),
		post(s.acme.admin, "/v1/api-keys/"+s.acme.other.id.String()+"/rotate", `{"overlap_seconds":600}`),
		{method: http.MethodPatch, path: "/v1/api-keys/" + s.acme.other.id.String(), key: s.acme.admin.text, body: []byte(`{"sign_in_as":null}`)},
		post(s.acme.agent, "/v1/chains/"+id+"/events/batch", aReport),
		post(s.acme.member, "/v1/approvals/"+s.ask(t, s.acme.agent, id)+"/approve", `{"comment":"planted-comment"}`),
		post(s.acme.member, "/v1/approvals/"+s.ask(t, s.acme.agent, id)+"/deny", `{"comment":"planted-comment"}`),
		post(s.acme.admin, "/v1/kill-switch/activate", `{"reason":"planted-reason"}`),
		post(s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/planted-path"}`),
		post(s.acme.admin, "/v1/policies/simulate", `{"policy":{"rules":[]}}`),
		{method: http.MethodPatch, path: "/v1/organization", key: s.acme.admin.text, body: []byte(`{"name":"planted-name"}`)},
		post(s.acme.admin, "/v1/public-verification-tokens", `{"artifact_type":"receipt","artifact_id":"`+sealed+`"}`),
		post(s.acme.admin, "/v1/public-verification-tokens/"+s.issue(t, s.acme.admin, "receipt", sealed).ID+"/revoke", `{"reason":"planted-reason"}`),
		post(s.acme.admin, "/v1/signing-keys", `{"name":"planted-name"}`),
	}
}

// Bodies that no route takes. %s stands for a good one.
var badBodies = []struct {
	name, body string
	status     int
	code       string
	pointers   []string
}{
	{"not JSON", "planted-text", 400, "invalid_json", nil},
	{"white space", " \n", 400, "invalid_json", nil},
	{"cut off", `{"planted_name":"planted-value"`, 400, "invalid_json", nil},
	{"two values", "%s{}", 400, "invalid_json", nil},
	{"a comma too many", "%s,", 400, "invalid_json", nil},
	{"a comment", "%s//planted-comment", 400, "invalid_json", nil},
	{"single quotes", "{'name':'planted-value'}", 400, "invalid_json", nil},
	{"NaN", `{"planted_name":NaN}`, 400, "invalid_json", []string{"/planted_name"}},
	{"leading zero", `{"planted_name":01}`, 400, "invalid_json", nil},
	{"byte order mark", "\ufeff%s", 400, "invalid_json", nil},
	{"UTF-16", "{\x00}\x00", 400, "invalid_json", nil},
	{"a name twice", `{"name":"planted-1","name":"planted-2"}`, 400, "invalid_json", []string{"/name"}},
	{"a name twice, once escaped", `{"name":"planted-1","n\u0061me":"planted-2"}`, 400, "invalid_json", []string{"/name"}},
	{"a name twice, further down", `{"metadata":{"a":[{"b":1,"b":2}]}}`, 400, "invalid_json", []string{"/metadata/a/0/b"}},
	{"invalid UTF-8", "{\"name\":\"planted-\xff\"}", 400, "invalid_json", []string{"/name"}},
	{"overlong UTF-8", "{\"name\":\"planted-\xc0\x80\"}", 400, "invalid_json", []string{"/name"}},
	{"a surrogate in UTF-8", "{\"name\":\"planted-\xed\xa0\x80\"}", 400, "invalid_json", []string{"/name"}},
	{"a lone high surrogate", `{"name":"planted-\ud800"}`, 400, "invalid_json", []string{"/name"}},
	{"a lone low surrogate", `{"name":"planted-\udc00x"}`, 400, "invalid_json", []string{"/name"}},
	{"a raw control character", "{\"name\":\"planted-\x01\"}", 400, "invalid_json", []string{"/name"}},
	{"65 levels", `{"metadata":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, 422, "invalid_request", nil},
	{"65 levels of objects", strings.Repeat(`{"a":`, 64) + "{}" + strings.Repeat("}", 64), 422, "invalid_request", nil},
	{"an integer no double holds", `{"metadata":{"n":9007199254740993}}`, 422, "invalid_request", []string{"/metadata/n"}},
	{"a number beyond all doubles", `{"metadata":{"n":1e400}}`, 422, "invalid_request", []string{"/metadata/n"}},
	{"an array", `["planted-value"]`, 422, "invalid_request", nil},
	{"a string", `"planted-value"`, 422, "invalid_request", nil},
	{"a number", `17`, 422, "invalid_request", nil},
	{"true", `true`, 422, "invalid_request", nil},
	{"null", `null`, 422, "invalid_request", nil},
	{"an unknown member", `{"planted_name":"planted-value",%s`, 422, "invalid_request", []string{"/planted_name"}},
}

// A body that is not well-formed, strict JSON of the expected shape is refused on
// every write, and nothing is stored.
func TestBadJSON(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var refusals []refusal
		for _, write := range writes(t, s) {
			good := string(write.body)
			for _, bad := range badBodies {
				body := strings.ReplaceAll(bad.body, "%s", good)
				if bad.name == "an unknown member" {
					body = strings.ReplaceAll(bad.body, "%s", good[1:])
				}
				write.body = []byte(body)
				refusals = append(refusals, refusal{write.method + " " + routeName(write.path) + ", " + bad.name, write, bad.status, bad.code, bad.pointers})
			}
		}
		checkRefusals(t, s, refusals)
	})
}

// routeName is a path without the ids in it.
func routeName(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if len(part) == 36 {
			parts[i] = "{id}"
		}
	}
	return strings.Join(parts, "/")
}

// Every write refuses a body that is missing, above the size limit or of another
// media type than JSON.
func TestBadBodies(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var refusals []refusal
		for _, write := range writes(t, s) {
			add := func(name string, status int, code string, change func(*call)) {
				changed := write
				change(&changed)
				refusals = append(refusals, refusal{write.method + " " + routeName(write.path) + ", " + name, changed, status, code, nil})
			}
			for _, contentType := range []string{
				"", "text/plain", "application/x-www-form-urlencoded", "application/json-patch+json",
				"application/json; charset=latin1", "application/json, text/plain", "multipart/form-data; boundary=x",
			} {
				add("Content-Type "+contentType, 415, "unsupported_media_type", func(c *call) {
					c.header = http.Header{"Content-Type": {contentType}}
				})
			}
			add("without Content-Type", 415, "unsupported_media_type", func(c *call) { c.header = http.Header{"Content-Type": nil} })
			if bodiless := []string{"complete", "approve", "deny", "revoke", "rotate", "signing-keys"}; !slices.Contains(bodiless, path.Base(write.path)) {
				add("without a body", 400, "invalid_json", func(c *call) { c.body = nil })
				add("without a body, chunked", 400, "invalid_json", func(c *call) { c.body, c.chunked = []byte{}, true })
			}
			large := []byte(`{"planted_name":"` + strings.Repeat("x", httpapi.MaxBody+1-len(`{"planted_name":""}`)) + `"}`)
			add("one byte too large", 413, "too_large", func(c *call) {
				// The refusal comes before the body is sent.
				c.body, c.header = large, http.Header{"Expect": {"100-continue"}}
			})
			add("one byte too large, chunked", 413, "too_large", func(c *call) { c.body, c.chunked = large, true })
		}
		checkRefusals(t, s, refusals)
	})
}

// What stands just inside the bounds is taken.
func TestGoodBodies(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"bounds"}`)
		head, tail := strings.TrimSuffix(anAction, `"}}`), `"}}`
		largest := head + strings.Repeat("x", httpapi.MaxBody-len(head)-len(tail)) + tail
		deepest := strings.Replace(anAction, `{"query":"planted-query"}`, strings.Repeat(`{"a":`, 62)+"{}"+strings.Repeat("}", 62), 1)
		for name, c := range map[string]call{
			"1 MiB":                 {body: []byte(largest)},
			"1 MiB, chunked":        {body: []byte(largest), chunked: true},
			"64 levels":             {body: []byte(deepest)},
			"white space around it": {body: []byte("\n\t " + anAction + " \r\n")},
			"charset in lower case": {body: []byte(anAction), header: http.Header{"Content-Type": {"application/json; charset=utf-8"}}},
			"charset in quotes":     {body: []byte(anAction), header: http.Header{"Content-Type": {`Application/JSON;charset="UTF-8"`}}},
		} {
			t.Run(name, func(t *testing.T) {
				c.method, c.path, c.key = http.MethodPost, "/v1/chains/"+id+"/events", s.acme.agent.text
				s.do(t, c).expect(t, http.StatusOK)
			})
		}
	})
}
