package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/servicetest"
)

// bodies is an endpoint that keeps the data of what it is told, by kind.
type bodies struct {
	*httptest.Server
	mu   sync.Mutex
	data map[string]map[string]any
}

func newBodies(t *testing.T) *bodies {
	t.Helper()
	b := &bodies{data: make(map[string]map[string]any)}
	b.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var notice struct {
			Type string         `json:"type"`
			Data map[string]any `json:"data"`
		}
		text, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(text, &notice)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.data[notice.Type] = notice.Data
	}))
	t.Cleanup(b.Close)
	return b
}

// await waits for a kind of notice and returns its data.
func (b *bodies) await(t *testing.T, kind string) (data map[string]any) {
	t.Helper()
	servicetest.Eventually(t, kind+" is delivered", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		data = b.data[kind]
		return data != nil
	})
	return data
}

// A delivered webhook carries what a decision needs: amount and currency, reason, all
// matching rules, agent, action, environment and chain, and the reason why it has no
// link. A decision says who made it. The payload stays where it is.
func TestDeliveredNoticeCarriesTheFacts(t *testing.T) {
	t.Parallel()
	server := start(t, newSQLite(t).args("--webhooks-allow-private")...)
	admin, hook := server.admin(t), newBodies(t)
	admin.call(t, http.MethodPost, "/v1/webhooks", `{"url":"`+hook.URL+`"}`, &struct{}{})
	admin.call(t, http.MethodPut, "/v1/policies", `{"rules":[{"name":"new-payees","when":"action.action_name == 'send_payment'",`+
		`"decision":"allow_with_flag","reason":"the payee is new"}]}`, &struct{}{})
	var key struct {
		Key string `json:"key"`
	}
	admin.call(t, http.MethodPost, "/v1/api-keys", `{"name":"Ada","role":"member"}`, &key)
	var chain struct{ ID string }
	admin.call(t, http.MethodPost, "/v1/chains", `{"name":"refunds","environment":"staging"}`, &chain)
	var decided struct {
		Approval string `json:"approval_id"`
	}
	admin.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/events",
		`{"agent_name":"clerk","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":18450.75,"payee":"planted-payee"}}`, &decided)
	requested := hook.await(t, "approval.requested")
	threshold := map[string]any{
		"name": "financial_approval_threshold", "decision": "require_approval", "shadow": false,
		"reason": "18450.75 USD is above the threshold of 5000.00 USD for a single transaction",
	}
	delete(requested, "expires_at")
	want := map[string]any{
		"organization": "default", "chain_id": chain.ID, "chain_name": "refunds", "environment": "staging", "approval_id": decided.Approval,
		"agent_name": "clerk", "action_name": "send_payment", "amount": 18450.75, "currency": "USD", "status": "pending",
		"policy_name": threshold["name"], "reason": threshold["reason"], "matched_rules": []any{threshold, map[string]any{
			"name": "new-payees", "decision": "allow_with_flag", "shadow": false, "reason": "the payee is new",
		}},
		"link": nil, "link_missing": "the server was not given its public address: start it with --public-url",
	}
	if diff := cmp.Diff(want, requested); diff != "" {
		t.Errorf("the request (-want +got):\n%s", diff)
	}
	reviewer := &client{base: admin.base, key: key.Key, http: admin.http}
	reviewer.call(t, http.MethodPost, "/v1/approvals/"+decided.Approval+"/approve", `{}`, &struct{}{})
	verdict := hook.await(t, "approval.decided")
	if verdict["decision_source"] != "human_approval" || verdict["reviewer"] != "Ada" || verdict["status"] != "approved" || verdict["amount"] != 18450.75 {
		t.Errorf("the decision is told as %v", verdict)
	}
	if text, _ := json.Marshal([]any{requested, verdict}); strings.Contains(string(text), "planted-payee") {
		t.Errorf("the payload is told: %s", text)
	}
}

// Whom a rule names is mailed when it asks, and whom a chain's notify names when
// nobody has decided in half the time.
func TestNotifyIsDelivered(t *testing.T) {
	t.Parallel()
	box, address := newMailbox(t), filepath.Join(t.TempDir(), "smtp-url")
	if err := os.WriteFile(address, []byte(box.address+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := start(t, newSQLite(t).args("--smtp-url-file", address, "--public-url", "https://console.example/")...)
	admin := server.admin(t)
	admin.call(t, http.MethodPut, "/v1/policies", `{"rules":[{"name":"deploys","when":"action.action_name == 'deploy'",`+
		`"decision":"require_approval","reason":"the freeze is on","approvers":["ann@example.com"]}]}`, &struct{}{})
	var chain struct{ ID string }
	admin.call(t, http.MethodPost, "/v1/chains", `{"name":"planted-chain","policy_config":{"notify":"boss@example.com","approval_timeout_hours":0.001}}`, &chain)
	admin.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/events",
		`{"agent_name":"clerk","action_type":"tool_call","action_name":"deploy","payload":{}}`, &struct{}{})
	servicetest.Eventually(t, "both are mailed", func() bool {
		text := box.text()
		return strings.Contains(text, "To: <ann@example.com>") && strings.Contains(text, "To: <boss@example.com>")
	})
	box.mu.Lock()
	defer box.mu.Unlock()
	for _, letter := range box.letters {
		own := strings.Contains(letter, "To: <ann@example.com>") // the organization's, and not the chain's
		for _, said := range []string{"planted-chain", "clerk", "the freeze is on"} {
			if strings.Contains(letter, said) != own {
				t.Errorf("%q is told: %t, want %t\n%s", said, !own, own, letter)
			}
		}
		if !strings.Contains(letter, "https://console.example/approvals/") {
			t.Errorf("there is no link in %s", letter)
		}
	}
}
