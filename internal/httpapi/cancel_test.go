package httpapi_test

import (
	"net/http"
	"testing"
)

// A client that gives up ends its approval for good: nobody can approve it to no
// effect, the reviewer sees why, and repeating it is harmless.
func TestCancelApproval(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		chainID := s.open(t, s.acme.agent, `{"name":"cancelled"}`)
		id := s.ask(t, s.acme.agent, chainID)
		path := "/v1/approvals/" + id
		s.post(t, s.acme.agent, path+"/cancel", `{"reason":"x"}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		s.post(t, s.acme.other, path+"/cancel", "").refuse(t, http.StatusNotFound, "not_found")
		cancelled := decode[approval](t, s.post(t, s.acme.agent, path+"/cancel", `{"comment":"the order was withdrawn"}`).expect(t, http.StatusOK))
		if cancelled.Status != "cancelled" || cancelled.Comment == nil || *cancelled.Comment != "the order was withdrawn" {
			t.Errorf("cancelled: %+v", cancelled)
		}
		if again := decode[approval](t, s.post(t, s.acme.agent, path+"/cancel", "").expect(t, http.StatusOK)); again.Status != "cancelled" || *again.Comment != *cancelled.Comment {
			t.Errorf("cancelled again: %+v", again)
		}
		s.post(t, s.acme.member, path+"/approve", "").refuse(t, http.StatusConflict, "approval_decided")
		s.complete(t, s.acme.agent, chainID, "")
		decided := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"decided"}`))
		s.post(t, s.acme.member, "/v1/approvals/"+decided+"/deny", "").expect(t, http.StatusOK)
		s.post(t, s.acme.agent, "/v1/approvals/"+decided+"/cancel", "").refuse(t, http.StatusConflict, "approval_decided")
	})
}

// A reviewer is told of every rule that wants a decision, not of one alone, and so is the client:
// before and after the approval, and if it sends the action again.
func TestAllMatchingRulesAreShown(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		s.put(t, s.acme.admin, "application/json", `{"rules":[
			{"name":"watch-payments","when":"action.amount_usd > 1.0","decision":"allow_with_flag","reason":"watched"},
			{"name":"big-payments","when":"action.amount_usd > 100.0","decision":"require_approval","reason":"big"},
			{"name":"trial","when":"true","decision":"deny","reason":"on trial","mode":"shadow"}]}`).expect(t, http.StatusOK)
		chainID := s.open(t, s.acme.agent, `{"name":"rules"}`)
		type ruled struct {
			ApprovalID string `json:"approval_id"`
			Matched    []struct {
				Name, Decision, Reason string
				Shadow                 bool
			} `json:"matched_rules"`
		}
		event := `{"idempotency_key":"once",` + aPayment[1:]
		recorded := decode[ruled](t, s.post(t, s.acme.agent, "/v1/chains/"+chainID+"/events", event).expect(t, http.StatusOK))
		shown := decode[ruled](t, s.get(t, s.acme.member, "/v1/approvals/"+recorded.ApprovalID).expect(t, http.StatusOK))
		s.post(t, s.acme.member, "/v1/approvals/"+recorded.ApprovalID+"/approve", "").expect(t, http.StatusOK)
		released := decode[struct{ Decision ruled }](t, s.get(t, s.acme.agent, "/v1/approvals/"+recorded.ApprovalID).expect(t, http.StatusOK)).Decision
		again := decode[ruled](t, s.post(t, s.acme.agent, "/v1/chains/"+chainID+"/events", event).expect(t, http.StatusOK))
		for name, found := range map[string]ruled{"the decision": recorded, "the approval": shown, "what was approved": released, "the repeat": again} {
			var names []string
			for _, rule := range found.Matched {
				names = append(names, rule.Name+" "+rule.Decision)
			}
			want := []string{"trial deny", "big-payments require_approval", "financial_approval_threshold require_approval", "watch-payments allow_with_flag"}
			if len(names) != len(want) {
				t.Fatalf("%s lists %q, want %q", name, names, want)
			}
			for i := range want {
				if names[i] != want[i] || found.Matched[i].Reason == "" || found.Matched[i].Shadow != (i == 0) {
					t.Errorf("%s: rule %d is %+v, want %s", name, i, found.Matched[i], want[i])
				}
			}
		}
	})
}
