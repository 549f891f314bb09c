package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

// settling is an approval with what reviewers see of its votes.
type settling struct {
	Status    string `json:"status"`
	TwoPerson bool   `json:"two_person"`
	Votes     int    `json:"votes"`
	Voters    []struct {
		Counts     bool    `json:"counts"`
		Discounted *string `json:"discounted"`
		Reviewer   struct {
			Name string `json:"name"`
		} `json:"reviewer"`
	} `json:"voters"`
	DeniedBy *struct {
		PolicyName    string `json:"policy_name"`
		PolicyVersion string `json:"policy_version"`
		Reason        string `json:"reason"`
	} `json:"denied_by"`
	Decision *struct {
		Decision string `json:"policy_decision"`
		Reason   string `json:"decision_reason"`
		Source   string `json:"decision_source"`
		Policy   string `json:"policy_name"`
	} `json:"decision"`
}

const freezePayments = `{"rules":[{"name":"freeze","when":"action.action_name == 'pay_invoice'","decision":"deny","reason":"nothing is paid in May","remediation":"Wait for June."}]}`

// A yes that the rules of today deny is 409 policy_changed, and the approval is denied
// with the rule for those who review and those who wait.
func TestPolicyChanged(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"frozen"}`))
		path := "/v1/approvals/" + id
		s.put(t, s.acme.admin, "application/json", freezePayments).expect(t, http.StatusOK)
		for range 2 {
			refused := s.post(t, s.acme.member, path+"/approve", "").refuse(t, http.StatusConflict, "policy_changed")
			if !strings.Contains(string(refused.body), "record the action again") {
				t.Errorf("it does not say what to do: %s", refused.body)
			}
		}
		for _, key := range []credential{s.acme.member, s.acme.agent} {
			got := decode[settling](t, s.get(t, key, path+"?wait=60").expect(t, http.StatusOK))
			if got.Status != "denied" || got.DeniedBy == nil || got.DeniedBy.PolicyName != "freeze" || got.DeniedBy.Reason != "nothing is paid in May" {
				t.Errorf("it is %s by %+v", got.Status, got.DeniedBy)
			}
			if d := got.Decision; d == nil || d.Decision != "deny" || d.Source != "backend_evaluation" || d.Policy != "freeze" || !strings.Contains(d.Reason, "nothing is paid in May") {
				t.Errorf("who waits is told %+v", got.Decision)
			}
		}
		s.post(t, s.acme.member, path+"/deny", "").expect(t, http.StatusOK)
	})
}

// A yes whose key was revoked stays in sight and does not count, and a setting that asks
// for two counts for what waits. Agents see the number and no names.
func TestVotersThatDoNotCount(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"two"}`))
		path := "/v1/approvals/" + id
		s.patch(t, s.acme.admin, `{"two_person_approval":true}`).expect(t, http.StatusOK)
		leaver, key := s.makeKey(t, `{"name":"leaver","role":"member"}`)
		got := decode[settling](t, s.post(t, key, path+"/approve", `{"comment":"fine"}`).expect(t, http.StatusOK))
		if got.Status != "pending" || !got.TwoPerson || got.Votes != 1 || len(got.Voters) != 1 || !got.Voters[0].Counts {
			t.Fatalf("after one yes it is %+v", got)
		}
		s.post(t, s.acme.admin, keysPath+"/"+leaver.ID+"/revoke", "").expect(t, http.StatusOK)
		got = decode[settling](t, s.post(t, s.acme.member, path+"/approve", "").expect(t, http.StatusOK))
		if got.Status != "pending" || got.Votes != 1 || len(got.Voters) != 2 {
			t.Fatalf("after the second it is %+v", got)
		}
		if first := got.Voters[0]; first.Counts || first.Discounted == nil || !strings.Contains(*first.Discounted, "revoked") || first.Reviewer.Name != "leaver" {
			t.Errorf("the first yes is shown as %+v", first)
		}
		seen := s.get(t, s.acme.agent, path).expect(t, http.StatusOK).without(t, "leaver", `"voters"`)
		if got := decode[settling](t, seen); got.Votes != 1 {
			t.Errorf("the agent sees %d votes", got.Votes)
		}
		got = decode[settling](t, s.post(t, s.acme.admin, path+"/approve", "").expect(t, http.StatusOK))
		if got.Status != "approved" || got.Votes != 2 || len(got.Voters) != 2 {
			t.Errorf("after a third it is %+v", got)
		}
	})
}

// A long poll is 401 as soon as its key is revoked, although nobody has decided.
//
//countersign:race
func TestARevokedKeysLongPollIsRefused(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"revoked"}`))
		made, key := s.makeKey(t, `{"name":"leaver","role":"member"}`)
		answers := make(chan *answer, 1)
		go func() { answers <- s.get(t, key, "/v1/approvals/"+id+"?wait=60") }()
		s.post(t, s.acme.admin, keysPath+"/"+made.ID+"/revoke", "").expect(t, http.StatusOK)
		(<-answers).refuse(t, http.StatusUnauthorized, "unauthenticated").without(t, id)
	})
}
