package httpapi_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// Completing a chain seals it with one receipt. Repeating it gives the same answer,
// and nothing else can change the chain.
func TestCompleteChain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		tests := []struct {
			name, body, status, wantType, wantMessage string
			failureLine                               string
		}{
			{"no body", "", "completed", "", "", ""},
			{"an empty object", `{}`, "completed", "", "", ""},
			{"nulls", `{"outcome":null,"error":null}`, "completed", "", "", ""},
			{"completed", `{"outcome":"completed"}`, "completed", "", "", ""},
			{"failed", `{"outcome":"failed"}`, "failed", "", "", "unknown"},
			{"failed with an error", `{"outcome":"failed","error":{"type":"TimeoutError","message":"planted-message"}}`, "failed", "TimeoutError", "planted-message", "TimeoutError"},
			{"failed with a type alone", `{"outcome":"failed","error":{"type":"Fehler – 失敗"}}`, "failed", "Fehler – 失敗", "", "Fehler – 失敗"},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				id := s.open(t, s.acme.agent, `{"name":"complete"}`)
				s.record(t, s.acme.agent, id, anAction)
				s.get(t, s.acme.agent, "/v1/chains/"+id+"/receipt").refuse(t, http.StatusNotFound, "not_found")
				got := s.post(t, s.acme.agent, "/v1/chains/"+id+"/complete", test.body).expect(t, http.StatusOK).without(t, s.acme.id)
				sealed := decode[chain](t, got)
				if sealed.Status != test.status || sealed.ReceiptID == nil || sealed.CompletedAt == nil {
					t.Errorf("sealed as %s", got.body)
				}
				if e := sealed.Error; (e == nil) != (test.wantType == "") || e != nil && (e.Type != test.wantType || e.Message != test.wantMessage) {
					t.Errorf("the error is shown as %+v", e)
				}
				made := decode[receipt](t, &answer{body: sealed.Receipt})
				if made.ID != *sealed.ReceiptID || made.ChainID != id || made.Actions != 1 || made.Organization != "acme" {
					t.Errorf("the receipt is %s", sealed.Receipt)
				}
				last := made.Events[len(made.Events)-1]
				if failed := last.ActionType == "chain_failure"; failed != (test.failureLine != "") || failed && last.ActionName != test.failureLine {
					t.Errorf("the events' summary ends with %+v", last)
				}
				for _, path := range []string{"/v1/receipts/" + made.ID, "/v1/chains/" + id + "/receipt"} {
					if found := s.get(t, s.acme.member, path).expect(t, http.StatusOK); !bytes.Equal(found.body, sealed.Receipt) {
						t.Errorf("the receipt is found as %s", found.body)
					}
				}
				before := s.database.dump(t)
				again := s.post(t, s.acme.agent, "/v1/chains/"+id+"/complete", test.body).expect(t, http.StatusOK)
				if !bytes.Equal(again.body, got.body) {
					t.Errorf("repeated, it answers %s", again.body)
				}
				opposite := map[string]string{"completed": `{"outcome":"failed"}`, "failed": ""}[test.status]
				s.post(t, s.acme.agent, "/v1/chains/"+id+"/complete", opposite).refuse(t, http.StatusConflict, "chain_sealed").without(t, made.ID, planted)
				s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", anAction).refuse(t, http.StatusConflict, "chain_sealed")
				if s.database.dump(t) != before {
					t.Error("requests on a sealed chain changed what is stored")
				}
			})
		}
	})
}

// A receipt tells what was done, grouped, without what was sent.
func TestReceiptSummarizes(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"summary","metadata":{"ticket":"OPS-7"}}`)
		for _, name := range []string{"search", "send", "search", "search"} {
			s.record(t, s.acme.agent, id, strings.Replace(anAction, `"search"`, `"`+name+`"`, 1))
		}
		s.record(t, s.acme.agent, id, strings.Replace(anAction, `"researcher"`, `"writer"`, 1))
		sealed := s.complete(t, s.acme.agent, id, "")
		if bytes.Contains(sealed.Receipt, []byte("planted-query")) {
			t.Errorf("the receipt shows a payload: %s", sealed.Receipt)
		}
		made := decode[receipt](t, &answer{body: sealed.Receipt})
		type line struct {
			agent, action string
			count         int
		}
		var lines []line
		for _, e := range made.Events {
			lines = append(lines, line{*e.AgentName, e.ActionName, e.Count})
		}
		want := []line{{"researcher", "search", 3}, {"researcher", "send", 1}, {"writer", "search", 1}}
		if len(lines) != 3 || lines[0] != want[0] || lines[1] != want[1] || lines[2] != want[2] {
			t.Errorf("the events' summary is %v, want %v", lines, want)
		}
		if made.Actions != 5 || sealed.Actions != 5 || len(sealed.Agents) != 2 || sealed.Agents[0] != "researcher" {
			t.Errorf("counted %d actions by %v", made.Actions, sealed.Agents)
		}
	})
}

// However many complete a chain at once, it has one receipt.
//
//countersign:race
func TestCompleteTogether(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"together"}`)
		s.record(t, s.acme.agent, id, anAction)
		bodies := []string{"", `{"outcome":"failed"}`}
		answers := together(16, func(i int) *answer {
			return s.post(t, s.acme.agent, "/v1/chains/"+id+"/complete", bodies[i%2])
		})
		receipts := make(map[string]int)
		for _, got := range answers {
			if got.status == http.StatusConflict {
				got.refuse(t, http.StatusConflict, "chain_sealed")
				continue
			}
			receipts[*decode[chain](t, got.expect(t, http.StatusOK)).ReceiptID]++
		}
		list := decode[page[receipt]](t, s.get(t, s.acme.member, "/v1/receipts"))
		if len(receipts) != 1 || len(list.Data) != 1 || receipts[list.Data[0].ID] != 8 {
			t.Errorf("answered the receipts %v, stored are %d", receipts, len(list.Data))
		}
	})
}
