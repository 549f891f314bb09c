package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

// told is what a receipt says in numbers and words.
type told struct {
	Actions     int64    `json:"total_actions"`
	Agents      []string `json:"agents_involved"`
	Summary     string   `json:"summary"`
	Environment string   `json:"environment"`
	ExternalID  *string  `json:"external_chain_id"`
	Mode        *string  `json:"evaluation_mode"`
	Metrics     struct {
		Cost     float64 `json:"estimated_cost_usd"`
		Unpriced int64   `json:"unpriced_calls_count"`
	} `json:"cumulative_metrics"`
	Version string `json:"policy_version"`
}

// A receipt is honest about its numbers: dropped events are no actions and nobody's, calls
// without a price are counted, and what was decided in shadow is not called allowed
// without a word. What the caller said of the chain is signed.
func TestReceiptsAreHonest(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		const external = " Run 7:\t\"é\" \u2028 "
		opened := s.post(t, s.acme.agent, "/v1/chains", `{"name":"honest","environment":"staging","external_chain_id":" Run 7:\t\"é\" \u2028 "}`).expect(t, http.StatusCreated)
		id := decode[chain](t, opened).ID
		s.post(t, s.acme.agent, "/v1/chains/"+id+"/events/batch", `{"events":[{"agent_name":"countersign","action_type":"gap","action_name":"dropped_events",
			"payload":{"dropped":7,"from":"2026-05-04T08:00:00Z","to":"2026-05-04T08:30:00Z"},"decision_source":"offline_stub","policy_decision":"allow","idempotency_key":"gap"}]}`).expect(t, http.StatusOK)
		for _, model := range []string{"gpt-4o", "nobody-knows-it"} {
			s.record(t, s.acme.agent, id, `{"agent_name":"writer","action_type":"llm_call","action_name":"complete","payload":{},"metadata":{"model":"`+model+`","input_tokens":1000000,"output_tokens":1}}`)
		}
		s.patch(t, s.acme.admin, `{"evaluation_mode":"shadow"}`).expect(t, http.StatusOK)
		s.record(t, s.acme.agent, id, `{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":9000}}`)

		listed := decode[struct{ Data []told }](t, s.get(t, s.acme.member, "/v1/chains").expect(t, http.StatusOK)).Data[0]
		if listed.Actions != 3 || strings.Join(listed.Agents, " ") != "writer payer" || listed.Metrics.Unpriced != 1 {
			t.Errorf("the open chain counts %+v", listed)
		}
		sealed := s.complete(t, s.acme.agent, id, "")
		made := decode[told](t, s.get(t, s.acme.member, "/v1/receipts/"+*sealed.ReceiptID).expect(t, http.StatusOK))
		if made.Actions != 3 || strings.Join(made.Agents, " ") != "writer payer" || made.Metrics.Unpriced != 1 || made.Metrics.Cost < 2 {
			t.Errorf("the receipt counts %+v", made)
		}
		if made.Environment != "staging" || made.ExternalID == nil || *made.ExternalID != external || made.Mode == nil || *made.Mode != "shadow" {
			t.Errorf("the receipt says of its chain %+v", made)
		}
		for _, words := range []string{
			": 3 actions by 2 agents, 3 allowed, 9000.00 USD of financial exposure, 1 model call without a known price, 1 gap where the client dropped events.",
			" Shadow mode: 1 of 3 actions evaluated without being enforced; enforcing would have sent 1 to approval.",
		} {
			if !strings.Contains(made.Summary, words) {
				t.Errorf("the summary %q lacks %q", made.Summary, words)
			}
		}
		verdict := s.get(t, s.acme.member, "/v1/verification/v2/receipts/"+*sealed.ReceiptID).expect(t, http.StatusOK)
		if !strings.Contains(string(verdict.body), `"overall_status":"verified"`) {
			t.Errorf("the receipt is judged as %s", verdict.body)
		}
		s.get(t, s.acme.admin, "/v1/verification/v2/ledger").expect(t, http.StatusOK)
	})
}

// What the receipt says of the chain's environment and of the caller's id cannot be
// changed in the database.
func TestSignedPlaceCannotBeChanged(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		db := open(t)
		s := start(t, db, setup{})
		for name, edit := range map[string]func(string) string{
			"environment": func(body string) string {
				return strings.Replace(body, `"environment":"staging"`, `"environment":"production"`, 1)
			},
			"external id": func(body string) string { return strings.Replace(body, `"run-1"`, `"run-2"`, 1) },
			"mode": func(body string) string {
				return strings.Replace(body, `"evaluation_mode":"enforce"`, `"evaluation_mode":"shadow"`, 1)
			},
			"format": func(body string) string { return strings.Replace(body, "receipt-v2", "receipt-v1", 1) },
		} {
			id := s.open(t, s.acme.agent, `{"name":"place","environment":"staging","external_chain_id":"run-1"}`)
			s.record(t, s.acme.agent, id, anAction)
			sealed := s.complete(t, s.acme.agent, id, "")
			db.editReceipt(t, *sealed.ReceiptID, edit)
			if got := s.get(t, credential{}, "/v1/receipts/"+*sealed.ReceiptID+"/verify").expect(t, http.StatusOK); !strings.Contains(string(got.body), `"valid":false`) {
				t.Errorf("%s: judged as %s", name, got.body)
			}
		}
	})
}
