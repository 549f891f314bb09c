package httpapi_test

import (
	"net/http"
	"testing"
)

// Members and admins see whether the client of an approval waits, everywhere that
// they see approvals; agents see nothing of it.
func TestAttendanceIsShown(t *testing.T) {
	type attended struct {
		ID           string    `json:"id"`
		LastPolledAt *string   `json:"last_polled_at"`
		Waiting      *bool     `json:"waiting"`
		Fallback     *[]string `json:"fallback_approvers"`
	}
	onEachStack(t, func(t *testing.T, s *stack) {
		chain := s.open(t, s.acme.agent, `{"name":"n"}`)
		polled, never := s.ask(t, s.acme.agent, chain), s.ask(t, s.acme.agent, chain)
		s.get(t, s.acme.agent, "/v1/approvals/"+polled).expect(t, http.StatusOK)
		check := func(where string, key credential, a attended) {
			t.Helper()
			if key == s.acme.agent {
				if a.Waiting != nil || a.LastPolledAt != nil || a.Fallback != nil {
					t.Errorf("%s: an agent is shown %+v", where, a)
				}
				return
			}
			waits := a.ID == polled
			if a.Waiting == nil || *a.Waiting != waits || (a.LastPolledAt != nil) != waits || a.Fallback == nil {
				t.Errorf("%s: %+v, want it to wait: %t", where, a, waits)
			}
		}
		for _, key := range []credential{s.acme.member, s.acme.admin, s.acme.agent} {
			for _, id := range []string{polled, never} {
				if key != s.acme.agent { // it would be a poll
					check("one", key, decode[attended](t, s.get(t, key, "/v1/approvals/"+id).expect(t, http.StatusOK)))
				}
			}
			listed := decode[page[attended]](t, s.get(t, key, "/v1/approvals").expect(t, http.StatusOK)).Data
			if len(listed) != 2 {
				t.Errorf("%d approvals are listed", len(listed))
			}
			for _, a := range listed {
				check("list", key, a)
			}
		}
		decided := decode[attended](t, s.post(t, s.acme.member, "/v1/approvals/"+polled+"/deny", "").expect(t, http.StatusOK))
		if decided.Waiting == nil || *decided.Waiting || decided.LastPolledAt == nil {
			t.Errorf("decided: %+v, want that it was asked for and nobody waits", decided)
		}
		// To poll the chain asks about what is open in it.
		s.get(t, s.acme.agent, "/v1/chains/"+chain+"/approval-status").expect(t, http.StatusOK)
		if a := decode[attended](t, s.get(t, s.acme.member, "/v1/approvals/"+never).expect(t, http.StatusOK)); a.Waiting == nil || !*a.Waiting {
			t.Errorf("polled by its chain: %+v", a)
		}
	})
}
