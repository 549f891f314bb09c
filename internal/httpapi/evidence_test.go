package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// The receipts of chains completed at once are numbered from 1 without a gap and
// linked by hash. The hashes are computed here from what the API shows, by
// another implementation of canonical JSON.
//
//countersign:race
func TestReceiptChain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		const chains = 20
		ids := make([]string, chains)
		for i := range ids {
			ids[i] = s.open(t, s.acme.agent, fmt.Sprintf(`{"name":"chain-%d","metadata":{"é\u2028":[1e-7,%d]}}`, i, i))
		}
		foreign := s.open(t, s.rival.agent, `{"name":"foreign"}`)
		for _, got := range together(chains+1, func(i int) *answer {
			if i == chains {
				return s.post(t, s.rival.agent, "/v1/chains/"+foreign+"/complete", "")
			}
			return s.post(t, s.acme.agent, "/v1/chains/"+ids[i]+"/complete", "")
		}) {
			got.expect(t, http.StatusOK)
		}
		stored := everyPage[json.RawMessage](t, s, s.acme.member, "/v1/receipts", 7)
		if len(stored) != chains {
			t.Fatalf("%d receipts for %d chains", len(stored), chains)
		}
		slices.Reverse(stored) // newest first
		var previous *string
		for i, body := range stored {
			got := decode[receipt](t, &answer{body: body})
			if want := fmt.Sprintf("CSN-%d-%05d", time.Now().UTC().Year(), i+1); got.Number != want && got.GeneratedAt[:4] == want[4:8] {
				t.Errorf("receipt %d is numbered %s", i+1, got.Number)
			}
			if (got.PreviousHash == nil) != (previous == nil) || previous != nil && *got.PreviousHash != *previous {
				t.Errorf("receipt %d does not carry the hash of the one before it", i+1)
			}
			if !bytes.Equal(canonical(t, body), body) {
				t.Errorf("receipt %d is not in canonical form", i+1)
			}
			sum := sha256.Sum256(canonical(t, body))
			hash := "sha256:" + hex.EncodeToString(sum[:])
			previous = &hash
			if check := s.get(t, credential{}, "/v1/receipts/"+got.ID+"/verify").expect(t, http.StatusOK); !bytes.Contains(check.body, []byte(`"valid":true`)) {
				t.Errorf("receipt %d checks as %s", i+1, check.body)
			}
		}
		own := everyPage[receipt](t, s, s.rival.member, "/v1/receipts", 7)
		if len(own) != 1 || own[0].PreviousHash != nil || own[0].Number[9:] != "00001" {
			t.Errorf("another organization's receipts are numbered %+v", own)
		}
	})
}

// everyPage follows the cursors to the end.
func everyPage[T any](t *testing.T, s *stack, key credential, path string, limit int) []T {
	t.Helper()
	var all []T
	cursor := ""
	for {
		got := decode[page[T]](t, s.get(t, key, fmt.Sprintf("%s?limit=%d%s", path, limit, cursor)).expect(t, http.StatusOK))
		all = append(all, got.Data...)
		if got.Next == nil {
			return all
		}
		if len(got.Data) != limit {
			t.Fatalf("a page of %d in the middle of the list", len(got.Data))
		}
		cursor = "&cursor=" + *got.Next
	}
}

// The digest that a receipt attests follows from what GET events shows: each
// event without payload and what came later, and each of that as an entry of its
// own.
func TestEventsDigest(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		for name, script := range map[string]string{
			"no events":            "",
			"one event":            "r",
			"events":               "rrrr",
			"outcomes at the end":  "rr12",
			"outcomes in between":  "r1rr3r2",
			"an outcome each time": "r1r2r3",
			"outcomes that settle": "r?rr?13",
		} {
			t.Run(name, func(t *testing.T) {
				id := s.open(t, s.acme.agent, `{"name":"digest"}`)
				var events []string
				for _, step := range script {
					if step == 'r' {
						body := action(fmt.Sprintf(`,"metadata":{"é":1e-7,"\u20ac":"\u0007"},"idempotency_key":"planted-%d","executed_at":"2026-03-04T05:06:07.8+02:00"`, len(events)))
						events = append(events, s.record(t, s.acme.agent, id, body).EventID)
						continue
					}
					event, result := len(events)-1, "unknown"
					if step != '?' {
						event, result = int(step-'1'), "failed"
					}
					path := "/v1/chains/" + id + "/events/" + events[event] + "/outcome"
					s.post(t, s.acme.agent, path, `{"outcome":"`+result+`","detail":"a \u2028 detail"}`).expect(t, http.StatusOK)
				}
				sealed := decode[receipt](t, &answer{body: s.complete(t, s.acme.agent, id, "").Receipt})
				if want := digestOf(t, everyPage[map[string]any](t, s, s.acme.member, "/v1/chains/"+id+"/events", 2)); sealed.Digest != want {
					t.Errorf("events_digest is %s, the events give %s", sealed.Digest, want)
				}
			})
		}
	})
}

// So it does for a chain that was paused and resumed.
func TestDigestOfResumedChain(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		s.patch(t, s.acme.admin, `{"auto_pause":{"max_events":2}}`).expect(t, http.StatusOK)
		id := s.open(t, s.acme.agent, `{"name":"resumed"}`)
		for range 3 {
			s.record(t, s.acme.agent, id, anAction)
		}
		s.post(t, s.acme.admin, "/v1/chains/"+id+"/resume", "").expect(t, http.StatusOK)
		s.record(t, s.acme.agent, id, anAction)
		sealed := decode[receipt](t, &answer{body: s.complete(t, s.acme.agent, id, "").Receipt})
		events := everyPage[map[string]any](t, s, s.acme.member, "/v1/chains/"+id+"/events", 3)
		if want := digestOf(t, events); sealed.Digest != want {
			t.Errorf("events_digest is %s, the events give %s", sealed.Digest, want)
		}
		if entries := fmt.Sprint(events); !strings.Contains(entries, "kind:resume") {
			t.Errorf("no entry tells that the chain was resumed: %s", entries)
		}
	})
}

func digestOf(t *testing.T, events []map[string]any) string {
	t.Helper()
	entries := make(map[int][]byte) // by position
	var facts [][]byte
	for _, shown := range events {
		entry := maps.Clone(shown)
		delete(entry, "payload")
		delete(entry, "outcome")
		delete(entry, "approval")
		delete(entry, "entries")
		delete(entry, "redactions")
		facts = append(facts, encode(t, entry))
		for _, later := range shown["entries"].([]any) {
			position := int(later.(map[string]any)["position"].(float64))
			entries[position] = encode(t, later)
		}
	}
	digest := sha256.Sum256(nil)
	for position, total := 1, len(facts)+len(entries); position <= total; position++ {
		entry, later := entries[position]
		if !later {
			entry, facts = facts[0], facts[1:]
		}
		digest = sha256.Sum256(append(digest[:], entry...))
	}
	return "sha256:" + hex.EncodeToString(digest[:])
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	body, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return canonical(t, body)
}
