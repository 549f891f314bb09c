package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/service"
)

// abandon lets three hours pass in an organization that abandons chains after one.
func (s *stack) abandon(t *testing.T, c *handClock) {
	t.Helper()
	s.patch(t, s.acme.admin, `{"abandon_after_hours":1}`).expect(t, http.StatusOK)
	c.advance(3 * 3600)
	jobs, err := s.Service.Jobs().Claim(t.Context(), 5*time.Minute, map[string]int{service.JobAbandon: 10})
	if err != nil || len(jobs) == 0 {
		t.Fatalf("%d rounds are due: %v", len(jobs), err)
	}
	for _, job := range jobs {
		if err := s.Service.Jobs().Abandon(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
}

type linked struct {
	ID          string          `json:"id"`
	ChainID     string          `json:"chain_id"`
	Status      string          `json:"status"`
	Continues   *string         `json:"continues"`
	ContinuedBy *string         `json:"continued_by"`
	Error       json.RawMessage `json:"error"`
}

// Answers name the successor of an abandoned chain: the event's, the batch's, the
// chain's and the list's. Clients that poll per chain by the old id find what the new one
// waits for.
func TestSuccessorOnTheWire(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		agent := s.acme.agent
		old := s.open(t, agent, `{"name":"quiet"}`)
		if first := decode[linked](t, s.post(t, agent, "/v1/chains/"+old+"/events", anAction).expect(t, http.StatusOK)); first.ContinuedBy != nil {
			t.Errorf("a chain that was not abandoned is continued by %s", *first.ContinuedBy)
		}
		s.abandon(t, c)
		path := "/v1/chains/" + old
		late := decode[linked](t, s.post(t, agent, path+"/events", aPayment).expect(t, http.StatusOK))
		if late.ContinuedBy == nil || late.ChainID != *late.ContinuedBy || late.ChainID == old {
			t.Fatalf("the late event is answered %+v", late)
		}
		batch := `{"events":[{"agent_name":"a","action_type":"tool_call","action_name":"get_page","payload":{},"decision_source":"offline_stub","idempotency_key":"k"}]}`
		if reported := decode[linked](t, s.post(t, agent, path+"/events/batch", batch).expect(t, http.StatusOK)); reported.ContinuedBy == nil || *reported.ContinuedBy != late.ChainID {
			t.Errorf("the batch is answered %+v", reported)
		}
		if polled := s.get(t, agent, path+"/approval-status").expect(t, http.StatusOK); decode[struct {
			Status string `json:"approval_status"`
		}](t, polled).Status != "pending" {
			t.Error("a poll by the old id does not find the approval")
		}
		want := []linked{
			{ID: late.ChainID, Status: "active", Continues: &old, Error: json.RawMessage("null")},
			{ID: old, Status: "failed", ContinuedBy: &late.ChainID, Error: json.RawMessage(`{"type":"abandoned","message":"no request for longer than abandon_after_hours (1)"}`)},
		}
		listed := decode[struct{ Data []linked }](t, s.get(t, agent, "/v1/chains").expect(t, http.StatusOK)).Data
		if diff := cmp.Diff(want, listed); diff != "" {
			t.Errorf("the list (-want +got):\n%s", diff)
		}
		for _, chain := range want {
			if diff := cmp.Diff(chain, decode[linked](t, s.get(t, agent, "/v1/chains/"+chain.ID).expect(t, http.StatusOK))); diff != "" {
				t.Errorf("a chain (-want +got):\n%s", diff)
			}
		}
		if completed := s.complete(t, agent, old, ""); completed.ID != late.ChainID {
			t.Errorf("the completion is of %s", completed.ID)
		}
		s.post(t, agent, path+"/events", anAction).refuse(t, http.StatusConflict, "chain_sealed")
		// Another organization and another agent learn nothing of either.
		for _, id := range []string{old, late.ChainID} {
			s.post(t, s.rival.agent, "/v1/chains/"+id+"/events", anAction).refuse(t, http.StatusNotFound, "not_found")
			s.post(t, s.acme.other, "/v1/chains/"+id+"/events", anAction).refuse(t, http.StatusNotFound, "not_found")
		}
	})
}

// The outcome of an event of an abandoned chain is answered with the successor, where it
// is an event of its own. No client can record such an event itself.
func TestLateOutcomeOnTheWire(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		agent := s.acme.agent
		old := s.open(t, agent, `{"name":"quiet"}`)
		event := decode[struct {
			ID string `json:"event_id"`
		}](t, s.post(t, agent, "/v1/chains/"+old+"/events", anAction).expect(t, http.StatusOK)).ID
		path := "/v1/chains/" + old + "/events/" + event + "/outcome"
		s.abandon(t, c)
		type report struct {
			EventID     string  `json:"event_id"`
			ChainID     string  `json:"chain_id"`
			Outcome     string  `json:"outcome"`
			RecordedAt  string  `json:"recorded_at"`
			ContinuedBy *string `json:"continued_by"`
		}
		first := decode[report](t, s.post(t, agent, path, `{"outcome":"failed","detail":"no"}`).expect(t, http.StatusOK))
		if first.EventID != event || first.ChainID != old || first.Outcome != "failed" || first.ContinuedBy == nil || *first.ContinuedBy == old {
			t.Fatalf("the late outcome is answered %+v", first)
		}
		if diff := cmp.Diff(first, decode[report](t, s.post(t, agent, path, `{"outcome":"failed","detail":"no"}`).expect(t, http.StatusOK))); diff != "" {
			t.Errorf("repeated (-first +again):\n%s", diff)
		}
		s.post(t, agent, path, `{"outcome":"succeeded"}`).refuse(t, http.StatusConflict, "outcome_conflict")
		type marker struct {
			ActionType string `json:"action_type"`
			Payload    struct {
				EventID string `json:"event_id"`
				ChainID string `json:"chain_id"`
				Outcome string `json:"outcome"`
				Detail  string `json:"detail"`
			} `json:"payload"`
		}
		var want marker
		want.ActionType, want.Payload.EventID, want.Payload.ChainID, want.Payload.Outcome, want.Payload.Detail = "late_outcome", event, old, "failed", "no"
		got := decode[struct{ Data []marker }](t, s.get(t, s.acme.member, "/v1/chains/"+*first.ContinuedBy+"/events").expect(t, http.StatusOK)).Data
		if diff := cmp.Diff([]marker{want}, got); diff != "" {
			t.Errorf("the successor's events (-want +got):\n%s", diff)
		}
		forged := `{"agent_name":"a","action_type":"late_outcome","action_name":"wire_money","payload":{"amount_usd":9000000}`
		s.post(t, agent, "/v1/chains/"+old+"/events", forged+`}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		s.post(t, agent, "/v1/chains/"+old+"/events/batch", `{"events":[`+forged+`,"decision_source":"offline_stub","idempotency_key":"k"}]}`).
			refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		s.complete(t, agent, old, "")
	})
}

// A client cannot have its chain taken for an abandoned one.
func TestClientCannotAbandon(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"n"}`)
		s.complete(t, s.acme.agent, id, `{"outcome":"failed","error":{"type":"abandoned"}}`)
		s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", anAction).refuse(t, http.StatusConflict, "chain_sealed")
	})
}
