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

// rollBack stops nothing: it replaces a stopped server's database by an older copy.
func rollBack(t *testing.T, s *testStore, copied string) {
	t.Helper()
	database := filepath.Join(s.folder, "countersign.db")
	for _, file := range []string{database + "-wal", database + "-shm"} {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, database, content)
}

// problemCode is the code of the problem that a request is answered with.
func (c *client) problemCode(t *testing.T, method, path, body string) fault.Code {
	t.Helper()
	_, data, err := c.send(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return decode[struct{ Code fault.Code }](t, string(data)).Code
}

func (c *client) open(t *testing.T) string {
	t.Helper()
	var chain struct{ ID string }
	c.call(t, http.MethodPost, "/v1/chains", `{"name":"test"}`, &chain)
	return chain.ID
}

// A server on a database that was restored from a backup takes no receipts until a
// person accepts the loss.
//
//countersign:race
func TestDatabaseThatWasRolledBack(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	admin.seal(t)
	copied := filepath.Join(t.TempDir(), "copy.db")
	succeed(t, s.args("backup", copied)...)
	admin.seal(t)
	admin.seal(t)
	server.stop(t)
	succeed(t, s.args("audit")...)
	if r := execute(t, s.args("rollback", "accept", "--yes")...); r.code != 0 || !strings.Contains(r.err, "nothing to accept") {
		t.Errorf("with nothing to accept: %+v", r)
	}
	rollBack(t, s, copied)

	found := decode[operate.AuditResult](t, refuse(t, cli.ExitFailed, string(ledger.CheckRollback), s.args("audit", "--json")...).out)
	if found.Status != verify.AuditBroken || found.Organizations[0].Break.Check != ledger.CheckRollback {
		t.Errorf("the audit found %+v", found)
	}
	refuse(t, cli.ExitFailed, "✗ rollback", s.args("doctor")...)
	server = start(t, append([]string{"--metrics-listen", "127.0.0.1:0"}, s.flags...)...)
	admin = server.client(admin.key)
	servicetest.Eventually(t, "it is not ready", func() bool { return admin.status(t, http.MethodGet, "/readyz", "") == http.StatusServiceUnavailable })
	chain := admin.open(t)
	if code := admin.problemCode(t, http.MethodPost, "/v1/chains/"+chain+"/complete", ""); code != fault.CodeRolledBack {
		t.Errorf("completing answers %s", code)
	}
	metrics := &client{base: metricsPattern.FindStringSubmatch(server.log.String())[1], http: servicetest.Client}
	servicetest.Eventually(t, "the metrics tell", func() bool {
		_, body, err := metrics.send(t.Context(), http.MethodGet, "", "")
		return err == nil && strings.Contains(string(body), "countersign_ledger_rolled_back 1")
	})

	refuse(t, cli.ExitInconclusive, "--yes", s.args("rollback", "accept")...) // nobody to ask
	if out := succeed(t, s.args("rollback", "accept", "--yes")...); out != "default continues from 1 receipt\n" {
		t.Errorf("accepting says %q", out)
	}
	// What the audit had found of it is acknowledged together with it.
	checkAccepted(t, s, server, admin, chain, ledger.ActTamperingAcknowledge, ledger.ActRollbackAccept)
}

// checkAccepted wants a running server to go on with a chain that it would not
// complete before, and everything to be well afterwards.
func checkAccepted(t *testing.T, s *testStore, server *program, admin *client, chain string, acts ...string) {
	t.Helper()
	servicetest.Eventually(t, "the running server takes it up", func() bool {
		return admin.status(t, http.MethodPost, "/v1/chains/"+chain+"/complete", "") == http.StatusOK
	})
	servicetest.Eventually(t, "it is ready again", func() bool { return admin.status(t, http.MethodGet, "/readyz", "") == http.StatusOK })
	var log struct {
		Data []struct{ Action string }
	}
	admin.call(t, http.MethodGet, "/v1/audit-log", "", &log)
	for i, act := range acts {
		if len(log.Data) <= i || log.Data[i].Action != act {
			t.Errorf("the audit log is %+v, want it to end with %v", log.Data, acts)
		}
	}
	server.stop(t)
	succeed(t, s.args("audit")...)
	succeed(t, s.args("doctor")...)
}

// A ledger that lost all of its receipts is found as rolled back, and goes on once
// the loss is accepted.
//
//countersign:race
func TestLedgerThatWasEmptied(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	copied := filepath.Join(t.TempDir(), "copy.db")
	succeed(t, s.args("backup", copied)...)
	admin.seal(t)
	server.stop(t)
	rollBack(t, s, copied)
	refuse(t, cli.ExitFailed, string(ledger.CheckRollback), s.args("audit")...)
	accepted := decode[[]verify.Rollback](t, succeed(t, s.args("rollback", "accept", "--yes", "--org", "default", "--json")...))
	if len(accepted) != 1 || accepted[0].Organization != "default" || accepted[0].Acknowledged != 1 || accepted[0].Stored != 0 || accepted[0].Missing {
		t.Errorf("accepted was %+v", accepted)
	}
	if out := succeed(t, s.args("rollback", "accept", "--json")...); out != "[]\n" {
		t.Errorf("with nothing to accept: %s", out)
	}
	succeed(t, s.args("audit")...)
	start(t, s.flags...).client(admin.key).seal(t)
}

// A file of acknowledged heads that was edited is refused, and the doctor does not
// blame the keys.
func TestFileOfHeadsThatWasChanged(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	server.admin(t).seal(t)
	server.stop(t)
	heads := filepath.Join(s.folder, "heads.json")
	content, err := os.ReadFile(heads)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, heads, []byte(strings.Replace(string(content), `"count": 1`, `"count": 0`, 1)))
	refuse(t, cli.ExitFailed, "it was changed", s.args("serve", "--listen", "127.0.0.1:0")...)
	refuse(t, cli.ExitInconclusive, "it was changed", s.args("audit")...)
	out := refuse(t, cli.ExitFailed, "✗ rollback", s.args("doctor")...).out
	if !strings.Contains(out, "✓ keys belong to store") {
		t.Errorf("the doctor blames the keys:\n%s", out)
	}
}

// A server that cannot write beside its keys serves, and says what it cannot do.
func TestHeadsThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	heads := filepath.Join(s.folder, "heads.json")
	servicetest.Eventually(t, "a folder stands in its place", func() bool {
		if err := os.Remove(heads); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return os.Mkdir(heads, 0o700) == nil // the server may have written it again
	})
	server.admin(t).seal(t)
	servicetest.Eventually(t, "the log says so", func() bool { return strings.Contains(server.log.String(), "the heads file cannot be written") })
	if code := server.stop(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
}
