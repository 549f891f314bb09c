package httpapi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// An event keeps the payload, metadata and time that were sent, and the hash of the
// canonical payload.
func TestRecordEvent(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"record"}`)
		tests := []struct {
			name, body, wantPayload, wantMetadata, wantExecuted string
		}{
			{"payload", action(""), `{}`, "null", ""},
			{"alias", strings.Replace(action(""), `"payload":{}`, `"action_payload":{"a":"planted-a"}`, 1), `{"a":"planted-a"}`, "null", ""},
			{"everything", action(`,"parent_agent_name":"p","metadata":{"model":"m","input_tokens":7},"idempotency_key":"planted-k","executed_at":"2026-03-04T05:06:07Z"`),
				`{}`, `{"model":"m","input_tokens":7}`, "2026-03-04T05:06:07.000Z"},
			{"nulls", action(`,"parent_agent_name":null,"metadata":null,"idempotency_key":null,"executed_at":null`), `{}`, "null", ""},
			{"a time elsewhere", action(`,"executed_at":"2026-03-04T05:06:07.891234+02:00"`), `{}`, "null", "2026-03-04T03:06:07.891Z"},
			{"a time to come", action(`,"executed_at":"9999-12-31T23:59:59Z"`), `{}`, "null", "9999-12-31T23:59:59.000Z"},
			{"unsorted payload", strings.Replace(action(""), `{}`, `{"b":1.0,"a":"\u00e9","\ud83d\ude00":[-0,1e2]}`, 1), `{"a":"é","b":1,"😀":[0,100]}`, "null", ""},
			{"names of any script", `{"agent_name":"研究者","action_type":"état","action_name":"\"quoted\" <b>&","payload":{}}`, `{}`, "null", ""},
		}
		for i, test := range tests {
			decided := s.record(t, s.acme.agent, id, test.body)
			if decided.Sequence != i+1 || decided.Decision != "allow" || decided.Status != "allowed" || decided.ChainID != id {
				t.Errorf("%s: decided %+v", test.name, decided)
			}
		}
		events := decode[page[event]](t, s.get(t, s.acme.member, "/v1/chains/"+id+"/events").expect(t, http.StatusOK))
		if len(events.Data) != len(tests) || events.Next != nil {
			t.Fatalf("%d events, next %v", len(events.Data), events.Next)
		}
		for i, test := range tests {
			got := events.Data[i]
			payload := canonical(t, got.Payload)
			if string(payload) != string(canonical(t, []byte(test.wantPayload))) || string(canonical(t, got.Metadata)) != string(canonical(t, []byte(test.wantMetadata))) {
				t.Errorf("%s: stored %s, %s", test.name, got.Payload, got.Metadata)
			}
			if sum := sha256.Sum256(payload); got.PayloadHash != hex.EncodeToString(sum[:]) {
				t.Errorf("%s: payload_sha256 is not that of the payload", test.name)
			}
			if executed := got.ExecutedAt; (executed == nil) != (test.wantExecuted == "") || executed != nil && *executed != test.wantExecuted {
				t.Errorf("%s: executed_at is %v, want %s", test.name, executed, test.wantExecuted)
			}
		}
	})
}

// An action sent again with its idempotency key is answered with the first decision.
// A changed action gets a conflict.
func TestRecordEventAgain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id, other := s.open(t, s.acme.agent, `{"name":"n"}`), s.open(t, s.acme.agent, `{"name":"n"}`)
		body := action(`,"parent_agent_name":"p","metadata":{"m":1},"executed_at":"2026-03-04T05:06:07Z","idempotency_key":"planted-k"`)
		first := s.record(t, s.acme.agent, id, body)
		before := s.database.dump(t)
		for _, again := range []string{body, strings.Replace(body, `"payload"`, `"action_payload"`, 1), strings.Replace(body, "07Z", "07.000+00:00", 1)} {
			if got := s.record(t, s.acme.agent, id, again); got != first {
				t.Errorf("answered %+v, then %+v", first, got)
			}
		}
		s.record(t, s.acme.member, id, body) // anyone who may write to the chain may repeat
		for what, change := range map[string][2]string{
			"agent":    {`"agent_name":"a"`, `"agent_name":"b"`},
			"type":     {`"action_type":"t"`, `"action_type":"u"`},
			"action":   {`"action_name":"n"`, `"action_name":"o"`},
			"payload":  {`"payload":{}`, `"payload":{"a":null}`},
			"parent":   {`"parent_agent_name":"p",`, ``},
			"metadata": {`"metadata":{"m":1}`, `"metadata":{"m":2}`},
			"time":     {`07Z`, `08Z`},
		} {
			t.Run("another "+what, func(t *testing.T) {
				changed := strings.Replace(body, change[0], change[1], 1)
				s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", changed).refuse(t, http.StatusConflict, "idempotency_conflict").without(t, planted)
			})
		}
		if s.database.dump(t) != before {
			t.Error("repeats and conflicts changed what is stored")
		}
		if got := s.record(t, s.acme.agent, other, body); got.EventID == first.EventID {
			t.Error("another chain found this one's event")
		}
		s.complete(t, s.acme.agent, id, "")
		if got := s.record(t, s.acme.agent, id, body); got != first {
			t.Errorf("a repeat after completion answered %+v", got)
		}
		s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", action("")).refuse(t, http.StatusConflict, "chain_sealed")
		s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", strings.Replace(body, `"n"`, `"o"`, 1)).refuse(t, http.StatusConflict, "idempotency_conflict")
	})
}

// Whoever writes to one chain at the same time, its events are numbered without
// gaps, and each retry finds its own.
//
//countersign:race
func TestRecordTogether(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"together"}`)
		const actions = 24
		answers := together(2*actions, func(i int) *answer {
			body := action(fmt.Sprintf(`,"idempotency_key":"planted-%d"`, i%actions))
			return s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", body)
		})
		var sequences []int
		for i, got := range answers {
			decided := decode[decision](t, got.expect(t, http.StatusOK))
			if i < actions {
				sequences = append(sequences, decided.Sequence)
				continue
			}
			if first := decode[decision](t, answers[i-actions]); first != decided {
				t.Errorf("one action was answered as %+v and as %+v", first, decided)
			}
		}
		slices.Sort(sequences)
		for i, sequence := range sequences {
			if sequence != i+1 {
				t.Fatalf("sequences are %v", sequences)
			}
		}
		if got := decode[chain](t, s.get(t, s.acme.agent, "/v1/chains/"+id)); got.Actions != actions {
			t.Errorf("the chain counts %d actions", got.Actions)
		}
	})
}
