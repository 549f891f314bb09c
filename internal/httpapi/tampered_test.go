package httpapi_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What was changed outside the service keeps its place in a list, with its id and the
// word tampered, and nothing of what somebody wrote into it. An endpoint can still be
// deleted.
func TestTamperedRowsAreListedAsSuch(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		edit := func(query string) {
			t.Helper()
			if _, err := s.database.direct.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		hook := decode[webhook](t, s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/own"}`).expect(t, http.StatusCreated))
		edit("UPDATE webhooks SET url = 'https://hooks.example.com/his'")
		s.listed(t, "/v1/webhooks", `{"webhook_id":"`+hook.ID+`","status":"tampered"}`)
		s.post(t, s.acme.admin, "/v1/webhooks/"+hook.ID+"/test", "").refuse(t, http.StatusInternalServerError, "evidence_tampered")
		s.do(t, call{method: http.MethodDelete, path: "/v1/webhooks/" + hook.ID, key: s.acme.admin.text}).expect(t, http.StatusNoContent)
		s.listed(t, "/v1/webhooks", "")

		sealed := s.seal(t, s.acme.agent, "sealed")
		token := s.issue(t, s.acme.admin, "receipt", *sealed.ReceiptID)
		edit("UPDATE tokens SET revocation_reason = 'his'")
		s.listed(t, "/v1/public-verification-tokens", `{"token_id":"`+token.ID+`","status":"tampered"}`)
		s.post(t, s.acme.admin, "/v1/public-verification-tokens/"+token.ID+"/revoke", "").refuse(t, http.StatusInternalServerError, "evidence_tampered")

		signing := s.signingKeys(t, 50)
		edit("UPDATE signing_keys SET name = 'his'")
		s.listed(t, "/v1/signing-keys", `{"key_id":"`+signing[0].ID+`","status":"tampered"}`)
		s.post(t, s.acme.admin, "/v1/signing-keys", "").refuse(t, http.StatusInternalServerError, "evidence_tampered")

		s.put(t, s.acme.admin, "application/yaml", "rules: []").expect(t, http.StatusOK)
		edit("UPDATE policies SET created_by = 'him'")
		s.listed(t, "/v1/policies", `{"version":"v1","in_force":true,"status":"tampered"}`)

		newest := decode[struct{ Data []struct{ Sequence int64 } }](t, s.get(t, s.acme.admin, "/v1/audit-log?limit=1")).Data[0].Sequence
		parameter := "?"
		if s.database.numbered {
			parameter = "$1"
		}
		if _, err := s.database.direct.ExecContext(t.Context(), fmt.Sprintf("UPDATE acts SET body = %s WHERE sequence = %d", parameter, newest), []byte{0xff}); err != nil {
			t.Fatal(err)
		}
		forged := s.get(t, s.acme.admin, "/v1/audit-log?limit=200").expect(t, http.StatusOK)
		if want := fmt.Sprintf(`{"sequence":%d,"integrity":"failed"}`, newest); !strings.Contains(string(forged.body), want) {
			t.Errorf("the audit log is listed as %s, want %s", forged.body, want)
		}

		edit("UPDATE api_keys SET owner = 'him' WHERE role = 'agent'")
		keys := s.get(t, s.acme.admin, "/v1/api-keys").expect(t, http.StatusOK).without(t, "him")
		if n := strings.Count(string(keys.body), `","status":"tampered"}`); n != 2 {
			t.Errorf("%d keys are listed as tampered with, want 2: %s", n, keys.body)
		}
	})
}

// listed wants a list of one thing, or of none.
func (s *stack) listed(t *testing.T, path, thing string) {
	t.Helper()
	answer := s.get(t, s.acme.admin, path).expect(t, http.StatusOK)
	if want := `{"data":[` + thing + `],"next_cursor":null`; !strings.HasPrefix(string(answer.body), want) {
		t.Errorf("%s lists %s, want %s", path, answer.body, want)
	}
}

// An event in a place that no number of JSON can name is none of its chain's: the list
// is answered without it.
func TestEventsInImpossiblePlaces(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		for _, sequence := range []int64{1<<53 + 1, math.MaxInt64} {
			chain := s.seal(t, s.acme.agent, fmt.Sprint("sealed-", sequence)).ID
			before := s.get(t, s.acme.member, "/v1/chains/"+chain+"/events").expect(t, http.StatusOK)
			column := "chain_no"
			if s.database.numbered { // PostgreSQL
				column = "chain_id"
			}
			statement := fmt.Sprintf("INSERT INTO events (%[1]s, sequence, body, payload, mac) SELECT %[1]s, %[2]d, body, payload, mac FROM events WHERE sequence = 1", column, sequence)
			s.database.exec(t, statement)
			after := s.get(t, s.acme.member, "/v1/chains/"+chain+"/events").expect(t, http.StatusOK)
			if diff := cmp.Diff(string(before.body), string(after.body)); diff != "" {
				t.Errorf("the list differs (-before +after):\n%s", diff)
			}
		}
	})
}
