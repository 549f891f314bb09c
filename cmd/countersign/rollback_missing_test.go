package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
	"countersign/internal/verify"
)

// emptied replaces a stopped server's database by an empty one; what stands beside
// the keys stays.
func emptied(t *testing.T, s *testStore) *testStore {
	t.Helper()
	if s.Kind == "sqlite" {
		putAway, err := filepath.Glob(filepath.Join(s.folder, "countersign.db*"))
		if err != nil || len(putAway) == 0 {
			t.Fatalf("there is no database to remove (%v)", err)
		}
		for _, file := range putAway {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	fresh := newPostgres(t, s.Fresh(t))
	fresh.flags[1], fresh.folder = s.folder, s.folder
	return fresh
}

// A server on a database that was emptied takes no receipts and says so everywhere,
// until a person accepts the loss.
//
//countersign:race
func TestDatabaseThatWasEmptied(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.seal(t)
		admin.seal(t)
		server.stop(t)
		succeed(t, s.args("audit")...)
		s = emptied(t, s)

		server = start(t, append([]string{"--metrics-listen", "127.0.0.1:0"}, s.flags...)...)
		if !strings.Contains(server.log.String(), "no new ones are sealed") {
			t.Errorf("the log does not say so:\n%s", server.log.String())
		}
		admin = server.admin(t)
		if admin.status(t, http.MethodGet, "/readyz", "") != http.StatusServiceUnavailable {
			t.Error("it is ready")
		}
		chain := admin.open(t)
		if code := admin.problemCode(t, http.MethodPost, "/v1/chains/"+chain+"/complete", ""); code != fault.CodeRolledBack {
			t.Errorf("completing answers %s", code)
		}
		metrics := &client{base: metricsPattern.FindStringSubmatch(server.log.String())[1], http: servicetest.Client}
		servicetest.Eventually(t, "the metrics tell", func() bool {
			_, body, err := metrics.send(t.Context(), http.MethodGet, "", "")
			return err == nil && strings.Contains(string(body), "countersign_ledger_rolled_back 1")
		})
		checkMissing(t, s)

		refuse(t, cli.ExitInconclusive, "--yes", s.args("rollback", "accept")...) // nobody to ask
		if out := succeed(t, s.args("rollback", "accept", "--yes")...); !strings.Contains(out, "is no longer expected") {
			t.Errorf("accepting says %q", out)
		}
		checkAccepted(t, s, server, admin, chain, ledger.ActRollbackAccept)
	})
}

// checkMissing wants the audit and the doctor to name the organization that is gone
// beside the one that bears its name now.
func checkMissing(t *testing.T, s *testStore) {
	t.Helper()
	for _, args := range [][]string{s.args("audit", "--json"), s.args("audit", "--json", "--org", "default")} {
		found := decode[operate.AuditResult](t, refuse(t, cli.ExitFailed, string(ledger.CheckRollback), args...).out)
		if found.Status != verify.AuditBroken || len(found.Organizations) != 2 ||
			found.Organizations[0].Status != verify.AuditIntact || found.Organizations[0].Organization != "default" ||
			found.Organizations[1].Break.Check != ledger.CheckRollback || found.Organizations[1].Organization != "default" {
			t.Errorf("the audit found %+v", found)
		}
	}
	refuse(t, cli.ExitInconclusive, "there is no organization", s.args("audit", "--org", "stranger")...)
	refuse(t, cli.ExitFailed, "2 receipts were acknowledged, but the database does not contain that organization", s.args("audit")...)
	out := refuse(t, cli.ExitFailed, "✗ rollback", s.args("doctor")...).out
	if !strings.Contains(out, "of default (") || !strings.Contains(out, "does not contain that organization") {
		t.Errorf("the doctor says\n%s", out)
	}
}

// An older copy that lacks an organization altogether, asked about by its name.
func TestOrganizationMadeAfterTheCopy(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	copied := filepath.Join(t.TempDir(), "copy.db")
	succeed(t, s.args("backup", copied)...)
	server.client(succeed(t, s.args("orgs", "create", "late")...)).seal(t)
	server.stop(t)
	rollBack(t, s, copied)
	found := decode[operate.AuditResult](t, refuse(t, cli.ExitFailed, "late", s.args("audit", "--json", "--org", "late")...).out)
	if len(found.Organizations) != 1 || found.Organizations[0].Organization != "late" {
		t.Errorf("the audit found %+v", found)
	}
	if r := execute(t, s.args("rollback", "accept", "--yes", "--org", "default")...); r.code != 0 || !strings.Contains(r.err, "nothing to accept") {
		t.Errorf("of another organization: %+v", r)
	}
	refuse(t, cli.ExitInconclusive, `no organization "lat"`, s.args("rollback", "accept", "--yes", "--org", "lat")...)
	succeed(t, s.args("rollback", "accept", "--yes", "--org", "late")...)
	succeed(t, s.args("audit")...)
}

// The file of acknowledged heads can be kept elsewhere, and commands find a rollback
// only when they are told where.
//
//countersign:race
func TestFileOfHeadsElsewhere(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	folder := t.TempDir()
	heads := filepath.Join(folder, "acknowledged.json")
	server := start(t, s.args("--heads", heads)...)
	server.admin(t).seal(t)
	server.stop(t)
	if _, err := os.Stat(heads); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(s.folder, "heads.json")); !os.IsNotExist(err) {
		t.Errorf("beside the keys there is a file as well (%v)", err)
	}
	emptied(t, s)
	start(t, s.args("--heads", heads)...).stop(t)
	succeed(t, s.args("audit")...) // it knows nothing of that file
	refuse(t, cli.ExitFailed, "does not contain that organization", s.args("audit", "--heads", heads)...)
	refuse(t, cli.ExitFailed, "✗ rollback", s.args("doctor", "--heads", heads)...)
	succeed(t, s.args("rollback", "accept", "--yes", "--heads", heads)...)
	succeed(t, s.args("audit", "--heads", heads)...)

	nowhere := filepath.Join(folder, "none", "heads.json")
	refuse(t, cli.ExitFailed, "name a file in an existing folder", s.args("serve", "--listen", "127.0.0.1:0", "--heads", nowhere)...)
	refuse(t, cli.ExitFailed, "name another file with --heads", s.args("serve", "--listen", "127.0.0.1:0", "--heads", folder)...)
	refuse(t, cli.ExitInconclusive, "name another file with --heads", s.args("audit", "--heads", folder)...)
	if out := succeed(t, s.args("doctor", "--heads", nowhere)...); !strings.Contains(out, "! rollback") {
		t.Errorf("the doctor says\n%s", out)
	}
}
