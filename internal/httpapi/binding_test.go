package httpapi_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

type opened struct {
	ID         string  `json:"id"`
	BindingKey *string `json:"binding_key"`
}

type bound struct {
	Decision   string             `json:"policy_decision"`
	PolicyName *string            `json:"policy_name"`
	ApprovalID *string            `json:"approval_id"`
	Redactions map[string]*string `json:"redactions"`
	Hash       *string            `json:"redactions_sha256"`
	Unbound    []string           `json:"unbound"`
}

func (s *stack) openBound(t *testing.T, idempotencyKey string) opened {
	t.Helper()
	answer := s.do(t, call{method: http.MethodPost, path: "/v1/chains", body: []byte(`{"name":"bound"}`), key: s.acme.agent.text,
		header: http.Header{"Idempotency-Key": {idempotencyKey}}})
	return decode[opened](t, answer.expect(t, http.StatusCreated))
}

func digestUnder(t *testing.T, key *string, raw string) string {
	t.Helper()
	secret, err := base64.StdEncoding.DecodeString(*key)
	if err != nil || len(secret) != 32 {
		t.Fatalf("binding key %q: %v", *key, err)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(raw))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}

// The opener of a chain is told its binding key when it opens it, each time, and
// nobody is told it anywhere else.
func TestBindingKeyIsForTheOpener(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		first, again, other := s.openBound(t, "one"), s.openBound(t, "one"), s.openBound(t, "two")
		if first.BindingKey == nil || again.BindingKey == nil || other.BindingKey == nil {
			t.Fatalf("opened %+v, %+v and %+v", first, again, other)
		}
		digestUnder(t, first.BindingKey, "")
		if first.ID != again.ID || *first.BindingKey != *again.BindingKey {
			t.Error("a repeated request is answered with another key")
		}
		if *first.BindingKey == *other.BindingKey {
			t.Error("two chains have the same key")
		}
		path := "/v1/chains/" + first.ID
		s.record(t, s.acme.agent, first.ID, anAction)
		answers := []*answer{
			s.get(t, s.acme.agent, path), s.get(t, s.acme.admin, path), s.get(t, s.acme.agent, "/v1/chains"),
			s.get(t, s.acme.admin, path+"/events"), s.post(t, s.acme.agent, path+"/complete", ""), s.get(t, s.acme.agent, path),
			s.get(t, s.acme.admin, "/v1/receipts"), s.get(t, s.acme.admin, "/v1/audit-log"),
		}
		for i, a := range answers {
			if text := string(a.expect(t, http.StatusOK).body); strings.Contains(text, *first.BindingKey) || strings.Contains(text, "binding_key") {
				t.Errorf("answer %d tells the key: %s", i, text)
			}
		}
	})
}

// What client or service takes out of a payload is bound to the event and to its
// approval, and a reviewer is told of what is not.
func TestRedactionsAreBound(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		chain := s.openBound(t, "one")
		digest := digestUnder(t, chain.BindingKey, `"4111 1111"`)
		pay := func(payload, rest string) string {
			return `{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":` + payload + rest + `}`
		}
		path := "/v1/chains/" + chain.ID + "/events"
		body := pay(`{"amount_usd":6000,"password":"planted-secret","card":"[REDACTED]","note":"cut...[truncated]"}`, `,"redactions":{"/card":"`+digest+`"}`)
		asked := decode[bound](t, s.post(t, s.acme.agent, path, body).expect(t, http.StatusOK))
		if asked.ApprovalID == nil {
			t.Fatalf("decided %+v", asked)
		}
		shown := decode[bound](t, s.get(t, s.acme.member, "/v1/approvals/"+*asked.ApprovalID).expect(t, http.StatusOK))
		want := map[string]*string{"/card": &digest}
		own := digestUnder(t, chain.BindingKey, `"planted-secret"`)
		want["/password"] = &own
		canonicalMap := canonical(t, encoded(t, want))
		hash := sha256.Sum256(canonicalMap)
		if string(canonical(t, encoded(t, shown.Redactions))) != string(canonicalMap) || shown.Hash == nil || *shown.Hash != hex.EncodeToString(hash[:]) {
			t.Errorf("the approval shows %+v, want %s", shown, canonicalMap)
		}
		if !slices.Equal(shown.Unbound, []string{"/note"}) {
			t.Errorf("unbound: %q", shown.Unbound)
		}
		events := decode[page[bound]](t, s.get(t, s.acme.member, path).expect(t, http.StatusOK))
		if got := events.Data[0]; string(canonical(t, encoded(t, got.Redactions))) != string(canonicalMap) || got.Hash == nil || *got.Hash != *shown.Hash {
			t.Errorf("the event shows %+v", got)
		}
		for fault, rest := range map[string]string{
			"/redactions/~1amount_usd": `,"redactions":{"/amount_usd":"` + digest + `"}`,
			"/redactions/~1nowhere":    `,"redactions":{"/nowhere":null}`,
		} {
			refused := s.post(t, s.acme.agent, path, pay(`{"amount_usd":6000}`, rest))
			if refused.refuse(t, http.StatusUnprocessableEntity, "invalid_request"); !strings.Contains(string(refused.body), fault) {
				t.Errorf("%s is not named: %s", fault, refused.body)
			}
		}
		null := decode[bound](t, s.post(t, s.acme.agent, path, pay(`{"amount_usd":6000,"card":"[REDACTED]"}`, `,"redactions":{"/card":null}`)).expect(t, http.StatusOK))
		if null.Decision != "deny" || null.ApprovalID != nil || null.PolicyName == nil || *null.PolicyName != "unbound_redaction" {
			t.Errorf("without a digest: %+v", null)
		}
		s.post(t, s.acme.member, "/v1/approvals/"+*asked.ApprovalID+"/approve", "").expect(t, http.StatusOK)
		verified := decode[struct {
			Overall string `json:"overall"`
		}](t, s.get(t, s.acme.member, "/v1/approvals/"+*asked.ApprovalID+"/verify").expect(t, http.StatusOK))
		if verified.Overall == "failed" {
			t.Errorf("verified: %+v", verified)
		}
	})
}

// An idempotency key stands for the content as it was sent: a difference that was
// redacted is a difference.
func TestRepeatedSecretsAreCompared(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		chain := s.openBound(t, "one")
		path := "/v1/chains/" + chain.ID + "/events"
		send := func(key, payload, rest string) *answer {
			return s.post(t, s.acme.agent, path, fmt.Sprintf(`{"agent_name":"a","action_type":"t","action_name":"step","payload":%s%s,"idempotency_key":%q}`, payload, rest, key))
		}
		for name, test := range map[string]struct{ payload, rest, payload2, rest2 string }{
			"payload":  {`{"password":"planted-1"}`, "", `{"password":"planted-2"}`, ""},
			"nested":   {`{"a":[{"text":"Bearer planted-token-1"}]}`, "", `{"a":[{"text":"Bearer planted-token-2"}]}`, ""},
			"metadata": {`{}`, `,"metadata":{"secret":"planted-1"}`, `{}`, `,"metadata":{"secret":"planted-2"}`},
			"digest": {
				`{"c":"[REDACTED]"}`, `,"redactions":{"/c":"` + digestUnder(t, chain.BindingKey, "1") + `"}`,
				`{"c":"[REDACTED]"}`, `,"redactions":{"/c":"` + digestUnder(t, chain.BindingKey, "2") + `"}`,
			},
			"found": {`{}`, `,"found":{"records_modified":1}`, `{}`, `,"found":{"records_modified":2}`},
		} {
			first := decode[decision](t, send(name, test.payload, test.rest).expect(t, http.StatusOK))
			if again := decode[decision](t, send(name, test.payload, test.rest).expect(t, http.StatusOK)); again.EventID != first.EventID {
				t.Errorf("%s: recorded twice", name)
			}
			send(name, test.payload2, test.rest2).refuse(t, http.StatusConflict, "idempotency_conflict")
		}
	})
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
