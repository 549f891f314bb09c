package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Admins learn who decided and why; members learn that someone did.
func TestAdminContext(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		s.patch(t, s.acme.admin, `{"two_person_approval":true}`).expect(t, http.StatusOK)
		id := s.open(t, s.acme.agent, `{"name":"who","external_chain_id":"x-1"}`)
		asked := s.ask(t, s.acme.agent, id)
		secret := "sk_" + randomHex(12)
		s.post(t, s.acme.admin, "/v1/approvals/"+asked+"/approve", "").expect(t, http.StatusOK)
		s.post(t, s.acme.member, "/v1/approvals/"+asked+"/approve", `{"comment":"fine, with `+secret+`"}`).expect(t, http.StatusOK)
		path := "/v1/verification/v2/approvals/" + asked
		got := decode[map[string]any](t, s.get(t, s.acme.admin, path).expect(t, http.StatusOK).without(t, secret))
		context, _ := got["admin_context"].(map[string]any)
		key := decode[page[signingKey]](t, s.get(t, s.acme.admin, signingPath)).Data[0].ID
		first := map[string]any{"key_id": s.acme.admin.id.String(), "name": "first admin"}
		second := map[string]any{"key_id": s.acme.member.id.String(), "name": "a member"}
		review, _ := context["review_context"].(map[string]any)
		for name, pair := range map[string][2]any{
			"approver":       {second, context["approver"]},
			"votes":          {[]any{first, second}, review["votes"]},
			"signing key":    {key, context["signing_key_id"]},
			"notes":          {"fine, with [REDACTED]", context["decision_notes"]},
			"capabilities":   {map[string]any{"can_view_identity_context": true, "can_download_admin_evidence": false}, got["capabilities"]},
			"chain":          {map[string]any{"id": id, "external_id": "x-1", "name": "who"}, got["artifact"].(map[string]any)["chain"]},
			"decision":       {"approved", got["context"].(map[string]any)["approval_decision"].(map[string]any)["status"]},
			"two had to say": {true, review["two_person"]},
		} {
			if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		s.patch(t, s.acme.admin, `{"evidence_export":"admins"}`).expect(t, http.StatusOK)
		s.get(t, s.acme.admin, path).expect(t, http.StatusOK).without(t, `"can_download_admin_evidence":false`)
		s.get(t, s.acme.member, path).expect(t, http.StatusOK).without(t, `"can_download_admin_evidence":true`)
		s.get(t, s.acme.member, path).expect(t, http.StatusOK).without(t, "admin_context", "fine", key, s.acme.member.id.String(), "first admin")
		receipt := *s.complete(t, s.acme.agent, id, "").ReceiptID
		of := decode[map[string]any](t, s.get(t, s.acme.admin, "/v1/verification/v2/receipts/"+receipt).expect(t, http.StatusOK))
		nothing := map[string]any{"approver": nil, "decision_notes": nil, "policy": nil, "review_context": nil, "signing_key_id": nil}
		if diff := cmp.Diff(nothing, of["admin_context"]); diff != "" {
			t.Errorf("of a receipt (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]any{"receipt_integrity_semantics": "server_attested"}, of["context"]); diff != "" {
			t.Errorf("of a receipt (-want +got):\n%s", diff)
		}
	})
}
