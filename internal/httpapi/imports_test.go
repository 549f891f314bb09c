package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"countersign/internal/servicetest"
)

// Admins confirm the key of imported approvals and take that back, and the answers to
// members, admins and strangers follow. What only admins may see is in no other answer.
func TestImportedApprovalsOverHTTP(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		approval, line := servicetest.NewElsewhere(t).Decide(nil)
		imported, err := s.Service.Operator().ImportApprovals(t.Context(), s.acme.slug, strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		id, key := approval.ID.String(), signingPath+"/"+imported.Keys[0].ID.String()
		token := s.issue(t, s.acme.admin, "approval", id)
		want := func(standing string) {
			t.Helper()
			verification := "/v1/verification/v2/approvals/" + id
			s.get(t, s.acme.member, verification).expect(t, http.StatusOK).without(t, "planted-reviewer", "planted-comment", "admin_context")
			if got := s.stillVerifies(t, id); got != standing {
				t.Errorf("the key is %s, want %s", got, standing)
			}
			admins := string(s.get(t, s.acme.admin, verification).expect(t, http.StatusOK).body)
			for _, part := range []string{"planted-reviewer", "planted-comment", `"chain":null`, `"expires_at":null`, `"reason_code":"imported"`, imported.Keys[0].ID.String()} {
				if !strings.Contains(admins, part) {
					t.Errorf("admins are not told %s: %s", part, admins)
				}
			}
			for _, path := range []string{token.Path, "/public/approvals/" + id, "/v1/approvals/" + id + "/verify"} {
				public := s.get(t, credential{}, path).expect(t, http.StatusOK).without(t, "planted", id, s.acme.id, s.acme.slug)
				if !strings.Contains(string(public.body), `"key_status":"`+standing+`"`) {
					t.Errorf("%s: %s", path, public.body)
				}
			}
		}
		want("not_evaluated")
		for _, move := range []struct{ how, standing string }{{"confirm", "trusted"}, {"confirm", "trusted"}, {"retract", "not_evaluated"}, {"retract", "not_evaluated"}} {
			s.post(t, s.rival.admin, key+"/"+move.how, "").refuse(t, http.StatusNotFound, "not_found")
			s.post(t, s.acme.member, key+"/"+move.how, "").refuse(t, http.StatusForbidden, "forbidden")
			s.post(t, s.acme.admin, key+"/"+move.how, "").expect(t, http.StatusOK)
			want(move.standing)
		}
		own := signingPath + "/" + s.signingKeys(t, 50)[0].ID
		for _, how := range []string{"confirm", "retract"} {
			s.post(t, s.acme.admin, own+"/"+how, "").refuse(t, http.StatusConflict, "signing_key_state")
		}
		for _, path := range []string{"/v1/approvals/" + id, "/v1/approvals/" + id + "/approve"} {
			method := http.MethodGet
			if strings.HasSuffix(path, "/approve") {
				method = http.MethodPost
			}
			s.do(t, call{method: method, path: path, key: s.acme.member.text}).refuse(t, http.StatusNotFound, "not_found")
		}
		s.get(t, s.acme.admin, "/v1/approvals").expect(t, http.StatusOK).without(t, id)
		s.get(t, s.rival.admin, "/v1/verification/v2/approvals/"+id).refuse(t, http.StatusNotFound, "not_found")
		if _, err := s.Service.Operator().ImportApprovals(t.Context(), s.rival.slug, strings.NewReader(line)); err == nil {
			t.Error("another organization has imported it too")
		}
	})
}
