package main

import (
	"net/http"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
	"countersign/internal/tlog"

	"golang.org/x/mod/sumdb/note"
)

// published is the checkpoint that a running server shows of an organization's log, opened
// with the key that the command line prints.
func published(t *testing.T, s *testStore, admin *client, org string) (c tlog.Checkpoint, ok bool) {
	t.Helper()
	printed := execute(t, s.args("log", "vkey", "--org", org)...)
	if printed.code != 0 {
		return c, false // it has not begun
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(printed.out))
	if err != nil {
		t.Fatal(err)
	}
	origin := verifier.Name()
	status, body, err := admin.send(t.Context(), http.MethodGet, "/public/log/"+origin[strings.LastIndex(origin, "/")+1:]+"/checkpoint", "")
	if err != nil || status != http.StatusOK {
		return c, false
	}
	if c, _, err = tlog.Open(body, origin, verifier); err != nil {
		t.Fatal(err)
	}
	return c, true
}

// publishes waits until a running server shows a checkpoint of that many receipts of the
// default organization.
func publishes(t *testing.T, s *testStore, admin *client, size int64) (c tlog.Checkpoint) {
	t.Helper()
	servicetest.Eventually(t, "a checkpoint covers the receipts", func() bool {
		var ok bool
		c, ok = published(t, s, admin, "default")
		return ok && c.Size == size
	})
	return c
}

// A server signs each organization's log, under the name that it was given, and the command
// line prints the key that opens it. A database that is rolled back is not signed, and
// accepting it begins another log.
//
//countersign:race
func TestLogOfAServer(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, append([]string{"--instance-name", "eu.example.com/log"}, s.flags...)...)
	admin := server.admin(t)
	admin.seal(t)
	first := publishes(t, s, admin, 1)
	if !strings.HasPrefix(first.Origin, "eu.example.com/log/") {
		t.Errorf("the origin is %s", first.Origin)
	}
	copied := t.TempDir() + "/copy.db"
	succeed(t, s.args("backup", copied)...)
	admin.seal(t)
	publishes(t, s, admin, 2)
	server.stop(t)
	rollBack(t, s, copied)

	server = start(t, s.flags...)
	admin = server.client(admin.key)
	if c, ok := published(t, s, admin, "default"); !ok || c != first {
		t.Errorf("the log that was rolled back is %+v", c)
	}
	succeed(t, s.args("rollback", "accept", "--yes")...)
	servicetest.Eventually(t, "another log begins", func() bool {
		c, ok := published(t, s, admin, "default")
		return ok && c.Origin != first.Origin && c.Size == 1
	})
	var log struct {
		Data []struct {
			Action string
			Detail map[string]any
		}
	}
	admin.call(t, http.MethodGet, "/v1/audit-log", "", &log)
	found := false
	for _, act := range log.Data {
		found = found || act.Action == ledger.ActRollbackAccept && strings.HasSuffix(first.Origin, "/"+act.Detail["log_closed"].(string)) && act.Detail["log_size"] == 2.0
	}
	if !found {
		t.Errorf("the end of the log is not in the audit log: %+v", log.Data)
	}
	if out := succeed(t, s.args("log", "keys")...); !strings.Contains(out, "active") {
		t.Errorf("the keys are %s", out)
	}
	key := decode[[]operate.LogKeyLine](t, succeed(t, s.args("log", "keys", "--json")...))[0].ID
	refuse(t, cli.ExitFailed, "rotate-signing first", s.args("log", "revoke-key", key)...)
	succeed(t, s.args("keys", "rotate-signing")...)
	if revoked := decode[operate.LogKeyLine](t, succeed(t, s.args("log", "revoke-key", key, "--json")...)); revoked.ID != key || revoked.RevokedAt == "" {
		t.Errorf("revoking answers %+v", revoked)
	}
	refuse(t, cli.ExitInconclusive, "no organization", s.args("log", "vkey", "--org", "nobody")...)
	refuse(t, cli.ExitInconclusive, "--instance-name", s.args("serve", "--listen", "127.0.0.1:0", "--instance-name", "a+b")...)
}
