package httpapi_test

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/httpapi"
)

// A receipt has the fields that the specification names, each with its type, and they
// say what the chain was and did.
func TestReceiptFields(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		s.seal(t, s.acme.agent, "first")
		id := s.open(t, s.acme.agent, `{"name":"fields"}`)
		for _, body := range []string{
			`{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":100.25,"url":"https://api.example.com/pay"}}`,
			`{"agent_name":"clerk","action_type":"tool_call","action_name":"update_records","payload":{"records_modified":7}}`,
			`{"agent_name":"payer","action_type":"llm_call","action_name":"complete","payload":{},"metadata":{"model":"gpt-4o","input_tokens":1000000,"output_tokens":100000}}`,
		} {
			s.record(t, s.acme.agent, id, body)
		}
		asked := s.ask(t, s.acme.agent, id)
		opened := decode[map[string]any](t, s.get(t, s.acme.agent, "/v1/chains/"+id))
		sealed := s.complete(t, s.acme.agent, id, "")
		made := decode[map[string]any](t, &answer{body: sealed.Receipt})
		forms := map[string]*regexp.Regexp{
			"receipt_number":        regexp.MustCompile(fmt.Sprintf(`^CSN-%.4s-00002$`, made["generated_at"])),
			"summary":               regexp.MustCompile(`^Chain "fields" completed: `),
			"started_at":            regexp.MustCompile(`^` + regexp.QuoteMeta(opened["started_at"].(string)) + `$`),
			"completed_at":          regexp.MustCompile(`^` + regexp.QuoteMeta(*sealed.CompletedAt) + `$`),
			"policy_version":        regexp.MustCompile(`^` + regexp.QuoteMeta(opened["policy_version"].(string)) + `$`),
			"previous_receipt_hash": regexp.MustCompile(`^sha256:[0-9a-f]{64}$`),
			"signature":             regexp.MustCompile(`^hmac-sha256:[0-9a-f]{64}$`),
		}
		for name, form := range forms {
			if text, ok := made[name].(string); !ok || !form.MatchString(text) {
				t.Errorf("%s is %v, want %s", name, made[name], form)
			}
		}
		for _, name := range []string{"started_at", "completed_at"} {
			at, err := time.Parse(time.RFC3339, made[name].(string))
			if err != nil || at.Location() != time.UTC {
				t.Errorf("%s is no time in UTC: %v", name, made[name])
			}
		}
		for name, want := range map[string]any{
			"chain_id": id, "organization": "acme", "agents_involved": []any{"payer", "clerk"}, "total_actions": 4.0,
		} {
			if diff := cmp.Diff(want, made[name]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		metrics, _ := made["cumulative_metrics"].(map[string]any)
		for name, want := range map[string]any{
			"financial_exposure_usd": 100.25, "external_communications_count": 1.0, "records_modified_count": 7.0,
			"external_domains_contacted": []any{"api.example.com"}, "estimated_cost_usd": 3.5,
		} {
			if diff := cmp.Diff(want, metrics[name]); diff != "" {
				t.Errorf("cumulative_metrics.%s (-want +got):\n%s", name, diff)
			}
		}
		approvals, _ := made["approvals"].([]any)
		if len(approvals) != 1 || approvals[0].(map[string]any)["approval_id"] != asked {
			t.Errorf("approvals are %v", made["approvals"])
		}
		if events, _ := made["events_summary"].([]any); len(events) != 4 {
			t.Errorf("events_summary is %v", made["events_summary"])
		}
		if version := uuid.MustParse(made["receipt_id"].(string)).Version(); version != 4 {
			t.Errorf("the receipt's id is a UUID of version %d", version)
		}
	})
}

// An event is listed with every field that the client sent, and with its cost where it
// is a model's call.
func TestEventFields(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"events"}`)
		sent := map[string]any{
			"agent_name": "writer", "action_type": "llm_call", "action_name": "complete", "payload": map[string]any{"prompt": "planted"},
			"parent_agent_name": "editor", "metadata": map[string]any{"model": "gpt-4o", "input_tokens": 1000.0, "output_tokens": 100.0, "own": []any{true, nil}},
		}
		decided := decode[map[string]any](t, s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", string(encode(t, sent))).expect(t, http.StatusOK))
		s.record(t, s.acme.agent, id, anAction)
		listed := decode[page[map[string]any]](t, s.get(t, s.acme.member, "/v1/chains/"+id+"/events").expect(t, http.StatusOK)).Data
		if len(listed) != 2 {
			t.Fatalf("%d events are listed", len(listed))
		}
		for name, want := range sent {
			if diff := cmp.Diff(want, listed[0][name]); diff != "" {
				t.Errorf("%s (-sent +listed):\n%s", name, diff)
			}
		}
		if cost := listed[0]["estimated_cost_usd"]; cost != 0.0035 || decided["estimated_cost_usd"] != cost {
			t.Errorf("it cost %v when it was decided and %v in the list", decided["estimated_cost_usd"], cost)
		}
		if plain := listed[1]; plain["parent_agent_name"] != nil || plain["metadata"] != nil || plain["estimated_cost_usd"] != nil {
			t.Errorf("an action without them has the parent %v, metadata %v and cost %v", plain["parent_agent_name"], plain["metadata"], plain["estimated_cost_usd"])
		}
	})
}

// The result for an approval reports each aspect by itself: integrity, signature, key,
// either anchor, and the whole.
func TestApprovalAspectsAreApart(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"aspects"}`))
		s.post(t, s.acme.member, "/v1/approvals/"+asked+"/approve", "").expect(t, http.StatusOK)
		result := decode[map[string]any](t, s.get(t, s.acme.member, "/v1/verification/v2/approvals/"+asked).expect(t, http.StatusOK))
		flat := make(map[string]string)
		flatten("", result["verification"].(map[string]any), flat)
		for name, want := range map[string]string{
			"overall_status": "verified", "integrity.status": "valid", "asymmetric_signature.status": "valid", "asymmetric_signature.key_status": "trusted",
			"timestamp_anchors.tsa.status": "not_anchored", "timestamp_anchors.opentimestamps.status": "not_anchored",
		} {
			if flat[name] != want {
				t.Errorf("%s is %q, want %q", name, flat[name], want)
			}
		}
	})
}

// The public result gives each status that applies to the artifact: an approval has a
// signature of its own, a receipt has none.
func TestPublicStatuses(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"statuses"}`))
		s.post(t, s.acme.member, "/v1/approvals/"+asked+"/approve", "").expect(t, http.StatusOK)
		for kind, c := range map[string]struct{ id, signature, key string }{
			"approval": {asked, "valid", "trusted"},
			"receipt":  {*s.seal(t, s.acme.agent, "statuses").ReceiptID, "not_applicable", "not_applicable"},
		} {
			want := map[string]string{
				"verification_version": "2", "artifact_type": kind, "overall_status": "verified", "integrity.status": "valid",
				"asymmetric_signature.status": c.signature, "asymmetric_signature.key_status": c.key, "timestamp_anchors.status": "not_anchored",
			}
			if diff := cmp.Diff(want, s.publicResult(t, s.issue(t, s.acme.admin, kind, c.id).Path)); diff != "" {
				t.Errorf("of the %s (-want +got):\n%s", kind, diff)
			}
		}
	})
}

// unversioned are the routes without a version: those for operators and browsers, and
// the oldest public links, which cannot change any more.
var unversioned = []string{"/healthz", "/readyz", "/openapi.json", "/openapi.yaml", "/docs", "/docs/{asset}", "/docs/guides", "/docs/guides/{name...}", "/verify", "/public/approvals/{approval_id}",
	// The layout below a log is that of C2SP.
	"/public/shares/{share}", // a bundle says which format it has
	"/.well-known/countersign/log-keys", "/public/log/{log_id}/checkpoint", "/public/log/{log_id}/tile/{level}/{number...}"}

// Each group of routes carries its version: /v1 and, below it, v2 for verification, and
// /public/v2 for tokens.
func TestRoutesCarryTheirVersion(t *testing.T) {
	t.Parallel()
	groups := make(map[string]int)
	for _, route := range httpapi.New(httpapi.Config{}).Routes() {
		group := ""
		for _, prefix := range []string{"/v1/", "/v1/verification/v2/", "/public/v2/verify/"} {
			if strings.HasPrefix(route.Pattern, prefix) {
				group = prefix
			}
		}
		groups[group]++
		if (group == "") != slices.Contains(unversioned, route.Pattern) {
			t.Errorf("%s %s stands in the group %q", route.Method, route.Pattern, group)
		}
		if group == "/v1/" && strings.Contains(route.Pattern, "verification/") {
			t.Errorf("%s is verification without a version", route.Pattern)
		}
	}
	if len(groups) != 4 {
		t.Errorf("the groups are %v", slices.Sorted(maps.Keys(groups)))
	}
}
