package httpapi_test

import (
	"net/http"
	"testing"
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
	})
}

// listed wants a list of one thing, or of none.
func (s *stack) listed(t *testing.T, path, thing string) {
	t.Helper()
	answer := s.get(t, s.acme.admin, path).expect(t, http.StatusOK)
	if want := `{"data":[` + thing + `],"next_cursor":null}`; string(answer.body) != want {
		t.Errorf("%s lists %s, want %s", path, answer.body, want)
	}
}
