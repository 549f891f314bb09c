package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/servicetest"
)

// An open chain that is rolled back while the server does not run, with no receipt sealed
// since, is named by audit, doctor and rollback list, and refused by the server, until an
// operator accepts it beside the running server.
//
//countersign:race
func TestOpenChainThatWasRolledBack(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	chain := admin.open(t)
	events, event := "/v1/chains/"+chain+"/events", `{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":{}}`
	admin.call(t, http.MethodPost, events, event, &struct{}{})
	copied := filepath.Join(t.TempDir(), "copy.db")
	succeed(t, s.args("backup", copied)...)
	admin.call(t, http.MethodPost, events, event, &struct{}{})
	later := admin.open(t)
	server.stop(t)
	succeed(t, s.args("audit")...)
	if out := succeed(t, s.args("rollback", "list")...); out != "" {
		t.Errorf("with nothing rolled back: %s", out)
	}
	rollBack(t, s, copied)

	refuse(t, cli.ExitFailed, chain, s.args("audit")...)
	refuse(t, cli.ExitFailed, "✗ rollback", s.args("doctor")...)
	listed := refuse(t, cli.ExitFailed, "", s.args("rollback", "list")...).out
	if !strings.Contains(listed, chain) || !strings.Contains(listed, later) {
		t.Errorf("listed: %s", listed)
	}
	server = start(t, s.flags...)
	admin = server.client(admin.key)
	for path, body := range map[string]string{events: event, "/v1/chains/" + chain + "/complete": "", "/v1/chains/" + later + "/events": event} {
		if code := admin.problemCode(t, http.MethodPost, path, body); code != fault.CodeEvidenceTampered {
			t.Errorf("%s answers %s", path, code)
		}
	}
	accepted := succeed(t, s.args("rollback", "accept", "--yes", "--org", "default")...)
	if !strings.Contains(accepted, chain) || !strings.Contains(accepted, later) {
		t.Errorf("accepting says %q", accepted)
	}
	servicetest.Eventually(t, "the running server takes it up", func() bool {
		return admin.status(t, http.MethodPost, events, event) == http.StatusOK
	})
	succeed(t, s.args("rollback", "list")...)
	admin.call(t, http.MethodPost, "/v1/chains/"+chain+"/complete", "", &struct{}{})
	server.stop(t)
	succeed(t, s.args("audit")...)
	succeed(t, s.args("rollback", "list")...)
}
