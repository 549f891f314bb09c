package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/servicetest"
)

// Approvals are imported from a file beside a running server, which verifies them at once;
// a faulty file is refused with the numbers of its lines; keys are listed, confirmed and
// taken back.
func TestImportApprovals(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		approval, line := servicetest.NewElsewhere(t).Decide(nil)
		file := filepath.Join(t.TempDir(), "approvals.jsonl")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(line + "\n{}\n\nno JSON\n")
		refused := refuse(t, cli.ExitFailed, "nothing was imported: 2 lines are faulty", s.args("import", "approvals", file)...)
		if !strings.Contains(refused.err, "line 2:") || !strings.Contains(refused.err, "line 4:") {
			t.Errorf("the lines are not named: %s", refused.err)
		}
		verification := "/v1/verification/v2/approvals/" + approval.ID.String()
		if status := admin.status(t, "GET", verification, ""); status != 404 {
			t.Errorf("after the refusal it is answered %d", status)
		}
		write(line + "\n")
		done := decode[operate.ImportLine](t, succeed(t, s.args("import", "approvals", file, "--org", "default", "--json")...))
		if done.Imported != 1 || done.ID == "" || len(done.Keys) != 1 || done.Keys[0].Status != "historical" {
			t.Fatalf("imported %+v", done)
		}
		if again := decode[operate.ImportLine](t, succeed(t, s.args("import", "approvals", file, "--json")...)); again.Known != 1 || again.Imported != 0 || again.ID != "" || again.Keys == nil {
			t.Errorf("imported again %+v", again)
		}
		if out := succeed(t, s.args("import", "approvals", file)...); out != "Imported 0 approvals; 1 were there already.\n" {
			t.Errorf("it says %q", out)
		}
		standing := func() string {
			t.Helper()
			var v struct {
				Verification struct {
					Overall   string `json:"overall_status"`
					Signature struct {
						Key string `json:"key_status"`
					} `json:"asymmetric_signature"`
				} `json:"verification"`
			}
			admin.call(t, "GET", verification, "", &v)
			return v.Verification.Overall + " " + v.Verification.Signature.Key
		}
		key := done.Keys[0].ID
		for _, step := range []struct{ command, status, standing string }{
			{"", "historical", "verified not_evaluated"}, {"confirm", "confirmed", "verified trusted"}, {"retract", "historical", "verified not_evaluated"},
		} {
			if step.command != "" {
				succeed(t, s.args("signing-keys", step.command, key)...)
			}
			keys := decode[[]operate.SigningKeyLine](t, succeed(t, s.args("signing-keys", "list", "--json")...))
			if len(keys) != 2 || keys[1].ID != key || keys[1].Status != step.status {
				t.Errorf("after %q the keys are %+v", step.command, keys)
			}
			if got := standing(); got != step.standing {
				t.Errorf("after %q the approval is %s, want %s", step.command, got, step.standing)
			}
		}
		refuse(t, cli.ExitFailed, "only a historical key", s.args("signing-keys", "confirm", decode[[]operate.SigningKeyLine](t, succeed(t, s.args("signing-keys", "list", "--json")...))[0].ID)...)
		refuse(t, cli.ExitInconclusive, "no such signing key", s.args("signing-keys", "confirm", "00000000-0000-4000-8000-000000000000")...)
		refuse(t, cli.ExitInconclusive, "36 characters", s.args("signing-keys", "confirm", "x")...)
		refuse(t, cli.ExitInconclusive, "could not read", s.args("import", "approvals", file+".missing")...)
		refuse(t, cli.ExitInconclusive, `no organization "nobody"`, s.args("import", "approvals", file, "--org", "nobody")...)
		succeed(t, s.args("orgs", "create", "second")...)
		refuse(t, cli.ExitInconclusive, "name one with --org", s.args("import", "approvals", file)...)
		if out := succeed(t, s.args("audit")...); !strings.Contains(out, "intact") {
			t.Errorf("the audit says %q", out)
		}
		server.stop(t)
	})
}
