package httpapi_test

import (
	"net/http"
	"testing"
)

// An outcome can be reported once and repeated; only "unknown" can be replaced by
// another result.
func TestReportOutcome(t *testing.T) {
	type step struct {
		body   string
		status int
		code   string
	}
	cases := map[string][]step{
		"succeeded": {{`{"outcome":"succeeded"}`, 200, ""}},
		"failed":    {{`{"outcome":"failed","detail":"planted-detail"}`, 200, ""}},
		"unknown":   {{`{"outcome":"unknown","detail":null}`, 200, ""}},
		"repeated":  {{`{"outcome":"succeeded","detail":"d"}`, 200, ""}, {`{"detail":"d","outcome":"succeeded"}`, 200, ""}},
		"settled":   {{`{"outcome":"unknown"}`, 200, ""}, {`{"outcome":"failed"}`, 200, ""}, {`{"outcome":"failed"}`, 200, ""}},
		"another result": {
			{`{"outcome":"succeeded"}`, 200, ""}, {`{"outcome":"failed"}`, 409, "outcome_conflict"}, {`{"outcome":"succeeded"}`, 200, ""},
		},
		"another detail":        {{`{"outcome":"failed","detail":"a"}`, 200, ""}, {`{"outcome":"failed","detail":"planted-b"}`, 409, "outcome_conflict"}},
		"unknown after success": {{`{"outcome":"succeeded"}`, 200, ""}, {`{"outcome":"unknown"}`, 409, "outcome_conflict"}},
		"settled and unsettled": {
			{`{"outcome":"unknown"}`, 200, ""}, {`{"outcome":"succeeded"}`, 200, ""}, {`{"outcome":"failed"}`, 409, "outcome_conflict"}, {`{"outcome":"unknown"}`, 409, "outcome_conflict"},
		},
	}
	onEachStack(t, func(t *testing.T, s *stack) {
		for name, steps := range cases {
			t.Run(name, func(t *testing.T) {
				id := s.open(t, s.acme.agent, `{"name":"outcome"}`)
				recorded := s.record(t, s.acme.agent, id, anAction)
				path := "/v1/chains/" + id + "/events/" + recorded.EventID + "/outcome"
				var last outcome
				for _, step := range steps {
					got := s.post(t, s.acme.agent, path, step.body)
					if step.status != http.StatusOK {
						got.refuse(t, step.status, step.code).without(t, planted)
						continue
					}
					last = decode[outcome](t, got.expect(t, step.status))
					if last.EventID != recorded.EventID || last.Sequence != 1 {
						t.Errorf("reported on %+v", last)
					}
				}
				events := decode[page[event]](t, s.get(t, s.acme.member, "/v1/chains/"+id+"/events"))
				shown := events.Data[0].Outcome
				if shown == nil || shown.Outcome != last.Outcome || shown.Position != last.Position || shown.RecordedAt != last.RecordedAt {
					t.Errorf("the event shows %+v, last reported was %+v", shown, last)
				}
			})
		}
	})
}

// An outcome is accepted only for an event of the chain in the path, in the caller's
// organization, before the chain is sealed.
func TestOutcomesOfOthers(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		mine, other := s.open(t, s.acme.agent, `{"name":"mine"}`), s.open(t, s.acme.agent, `{"name":"other"}`)
		event := s.record(t, s.acme.agent, mine, anAction).EventID
		elsewhere := s.record(t, s.acme.agent, other, anAction).EventID
		report := func(key credential, chainID, eventID string) *answer {
			return s.post(t, key, "/v1/chains/"+chainID+"/events/"+eventID+"/outcome", `{"outcome":"succeeded"}`)
		}
		before := s.database.dump(t)
		report(s.acme.agent, mine, elsewhere).refuse(t, http.StatusNotFound, "not_found")
		report(s.acme.agent, other, event).refuse(t, http.StatusNotFound, "not_found")
		report(s.acme.agent, mine, mine).refuse(t, http.StatusNotFound, "not_found")
		report(s.acme.agent, mine, event[:len(event)-1]+"2").refuse(t, http.StatusNotFound, "not_found")
		report(s.rival.admin, mine, event).refuse(t, http.StatusNotFound, "not_found")
		if s.database.dump(t) != before {
			t.Error("refused reports changed what is stored")
		}
		report(s.acme.member, mine, event).expect(t, http.StatusOK)
		s.complete(t, s.acme.agent, mine, "")
		s.complete(t, s.acme.agent, other, "")
		report(s.acme.agent, mine, event).expect(t, http.StatusOK) // a repeat
		report(s.acme.agent, other, elsewhere).refuse(t, http.StatusConflict, "chain_sealed")
	})
}
