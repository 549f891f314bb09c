package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
)

// Tampering that was found stands in the metrics, in /readyz, in doctor and in the list
// until the operator acknowledges it, through a restart as well. Who deletes it from the
// database is found out.
//
//countersign:race
func TestTamperingStandsUntilAcknowledged(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		for range 3 {
			admin.seal(t)
		}
		// A receipt that is changed before it is in the log is found once more, when it gets there.
		publishes(t, s, admin, 3)
		server.stop(t)
		if out := succeed(t, s.args("tampering", "list", "--json")...); out != "[]\n" {
			t.Errorf("in an untouched database are found %s", out)
		}
		tampering := tamperings["edited"]
		statement := tampering.sqlite
		if s.Kind != "sqlite" {
			statement = tampering.postgres
		}
		s.exec(t, statement)
		refuse(t, cli.ExitFailed, "signature", s.args("audit")...)
		refuse(t, cli.ExitFailed, "signature", s.args("audit")...)
		lines := decode[[]operate.FindingLine](t, succeed(t, s.args("tampering", "list", "--json", "--org", "default")...))
		if len(lines) != 1 || lines[0].Check != string(ledger.CheckSignature) || lines[0].Status != "open" || lines[0].Organization != "default" {
			t.Fatalf("found are %+v", lines)
		}
		refuse(t, cli.ExitFailed, "✗ tampering", s.args("doctor")...)

		server = start(t, append([]string{"--metrics-listen", "127.0.0.1:0"}, s.flags...)...)
		admin = server.client(admin.key)
		checkTampering(t, server, admin, 1)
		server.stop(t)

		s.exec(t, "DELETE FROM findings")
		refuse(t, cli.ExitFailed, lines[0].ID+" was deleted", s.args("audit")...)
		if known := decode[[]operate.FindingLine](t, succeed(t, s.args("tampering", "list", "--json")...)); len(known) != 2 {
			t.Errorf("known are %+v, want the finding and its deletion", known)
		}

		refuse(t, cli.ExitInconclusive, "--reason", s.args("tampering", "acknowledge", lines[0].ID)...)
		refuse(t, cli.ExitInconclusive, "--all", s.args("tampering", "acknowledge", "--reason", "none")...)
		for _, id := range []string{"0123", "ffffffffffff"} {
			if r := execute(t, s.args("tampering", "acknowledge", id, "--reason", "none")...); r.code == 0 {
				t.Errorf("%s is acknowledged: %s", id, r.out)
			}
		}
		if out := succeed(t, s.args("tampering", "acknowledge", lines[0].ID[:12], "--reason", "a drill")...); !strings.Contains(out, lines[0].ID[:12]+" is acknowledged") {
			t.Errorf("acknowledging says %q", out)
		}
		done := decode[[]operate.FindingLine](t, succeed(t, s.args("tampering", "acknowledge", "--all", "--reason", "a drill", "--json")...))
		all := decode[[]operate.FindingLine](t, succeed(t, s.args("tampering", "list", "--all", "--json")...))
		all = slices.DeleteFunc(all, func(line operate.FindingLine) bool { return line.ID == lines[0].ID })
		if diff := gocmp.Diff(all, done); diff != "" || len(done) != 1 || done[0].AcknowledgedAt == nil {
			t.Errorf("list prints %+v, and acknowledge (-list +acknowledge):\n%s", all, diff)
		}
		refuse(t, cli.ExitFailed, "signature", s.args("audit")...)
		if out := succeed(t, s.args("tampering", "list", "--json")...); out != "[]\n" {
			t.Errorf("after all were acknowledged are open %s", out)
		}
		if out := succeed(t, s.args("tampering", "list", "--all")...); strings.Count(out, `acknowledged: "a drill"`) != 2 {
			t.Errorf("all are %s", out)
		}
		server = start(t, append([]string{"--metrics-listen", "127.0.0.1:0"}, s.flags...)...)
		checkTampering(t, server, server.client(admin.key), 0)
		server.stop(t)
	})
}

// checkTampering wants a running server to count so many open findings, and to name none.
func checkTampering(t *testing.T, server *program, admin *client, open int) {
	t.Helper()
	figure, reason := "countersign_tampering_open 0", false
	if open > 0 {
		figure, reason = "countersign_tampering_open 1", true
	}
	metrics := &client{base: metricsPattern.FindStringSubmatch(server.log.String())[1], http: servicetest.Client}
	servicetest.Eventually(t, "the metrics tell", func() bool {
		_, body, err := metrics.send(t.Context(), http.MethodGet, "", "")
		return err == nil && strings.Contains(string(body), figure)
	})
	status, body, err := admin.send(t.Context(), http.MethodGet, "/readyz", "")
	if err != nil || status != http.StatusOK || strings.Contains(string(body), `"name":"tampering","count":1`) != reason {
		t.Errorf("ready says %d %s (%v)", status, body, err)
	}
}
