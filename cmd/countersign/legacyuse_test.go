package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
)

// What was asked for on legacy routes until the server was stopped is listed by
// organization, route and day, and no line names an approval.
func TestLegacyUseCommand(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		var chain struct{ ID string }
		admin.call(t, "POST", "/v1/chains", `{"name":"n"}`, &chain)
		var event struct {
			ApprovalID string `json:"approval_id"`
		}
		admin.call(t, "POST", "/v1/chains/"+chain.ID+"/events",
			`{"agent_name":"a","action_type":"tool_call","action_name":"wire_money","payload":{"amount_usd":9000}}`, &event)
		for range 3 {
			admin.status(t, "GET", "/public/approvals/"+event.ApprovalID, "")
		}
		admin.status(t, "GET", "/v1/approvals/"+event.ApprovalID+"/verify", "")
		admin.status(t, "GET", "/public/approvals/00000000-0000-4000-8000-000000000000", "")
		admin.status(t, "GET", "/public/approvals/nonsense", "")
		server.stop(t)
		// The day is added up: the test may run at midnight.
		listed := func(args ...string) map[[2]string]int64 {
			t.Helper()
			uses := make(map[[2]string]int64)
			for _, line := range decode[[]operate.LegacyUseLine](t, succeed(t, s.args(append([]string{"legacy-use", "--json"}, args...)...)...)) {
				if _, err := time.Parse(time.DateOnly, line.Day); err != nil {
					t.Error(err)
				}
				organization := ""
				if line.Organization != nil {
					organization = *line.Organization
				}
				uses[[2]string{organization, line.Route}] += line.Requests
			}
			return uses
		}
		want := map[[2]string]int64{
			{"", "/public/approvals/{approval_id}"}:           2,
			{"default", "/public/approvals/{approval_id}"}:    3,
			{"default", "/v1/approvals/{approval_id}/verify"}: 1,
		}
		if diff := cmp.Diff(want, listed()); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		delete(want, [2]string{"", "/public/approvals/{approval_id}"})
		if diff := cmp.Diff(want, listed("--org", "default", "--days", "2")); diff != "" {
			t.Errorf("of one organization (-want +got):\n%s", diff)
		}
		out := succeed(t, s.args("legacy-use")...)
		if !strings.Contains(out, "(unknown)") || !strings.Contains(out, "default") || strings.Contains(out, event.ApprovalID) {
			t.Errorf("listed:\n%s", out)
		}
		refuse(t, cli.ExitInconclusive, "countersign: there is no organization", s.args("legacy-use", "--org", "nobody")...)
		refuse(t, cli.ExitInconclusive, "--days must be", s.args("legacy-use", "--days", "0")...)
	})
}
