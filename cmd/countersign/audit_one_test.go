package main

import (
	"net/http"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/servicetest"
	"countersign/internal/verify"
)

// A server starts and serves beside an organization's row that cannot be read, and says
// that it is degraded; the commands list the row beside the others.
//
//countersign:race
func TestServeBesideAnUnreadableOne(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		server.stop(t)
		insert := `INSERT INTO organizations (id, slug, name, settings, created_at) VALUES (randomblob(16), 'his', 'his', x'7b', 0)`
		if s.Driver == "pgx" {
			insert = `insert into organizations (id, slug, name, settings, created_at) values (gen_random_uuid(), 'his', 'his', '[]', 0)`
		}
		s.exec(t, insert)
		server = start(t, s.flags...)
		admin = server.client(admin.key)
		admin.seal(t)
		servicetest.Eventually(t, "the server is degraded", func() bool {
			status, body, err := admin.send(t.Context(), http.MethodGet, "/readyz", "")
			return err == nil && status == http.StatusOK && strings.Contains(string(body), `"name":"tampering","count":`)
		})
		server.stop(t)
		refuse(t, cli.ExitFailed, "default: intact", s.args("audit")...)
		refuse(t, cli.ExitFailed, "his: BROKEN", s.args("audit")...)
		for _, command := range [][]string{{"orgs", "list"}, {"tampering", "list"}} {
			if out := succeed(t, s.args(command...)...); !strings.Contains(out, "his") {
				t.Errorf("%v says %s", command, out)
			}
		}
	})
}

// A slug that somebody wrote with line breaks and escape sequences fakes no line of what
// the commands print.
func TestStoredTextFakesNoLine(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("orgs", "create", "sound")...)
		slug := `'his' || char(10) || 'fake: intact' || char(27) || '[2K' || char(9)`
		if s.Driver == "pgx" {
			slug = `E'his\nfake: intact\x1b[2K\t'`
		}
		s.exec(t, "UPDATE organizations SET name = "+slug+", slug = "+slug)
		for _, command := range [][]string{{"audit"}, {"orgs", "list"}, {"tampering", "list"}} {
			r := execute(t, s.args(command...)...)
			if out := r.out + r.err; strings.Contains(out, "\nfake") || strings.ContainsAny(out, "\x1b\t") || !strings.Contains(out, "his") {
				t.Errorf("%v prints %q", command, out)
			}
		}
	})
}

// Whoever spoils one organization's record keeps nobody from auditing another.
func TestAuditOfOneBesideAnUnreadableOne(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("orgs", "create", "sound")...)
		succeed(t, s.args("orgs", "create", "spoilt")...)
		spoil := `UPDATE organizations SET settings = x'00' WHERE slug = 'spoilt'`
		if s.Driver == "pgx" {
			spoil = `update organizations set settings = '[]' where slug = 'spoilt'`
		}
		s.exec(t, spoil)
		found := decode[operate.AuditResult](t, succeed(t, s.args("audit", "--json", "--org", "sound")...))
		if len(found.Organizations) != 1 || found.Status != verify.AuditIntact || len(found.Organizations[0].NotChecked) > 0 {
			t.Errorf("the audit found %+v", found)
		}
		refuse(t, cli.ExitFailed, "spoilt: BROKEN at audit_log", s.args("audit")...)
		refuse(t, cli.ExitFailed, "sound: intact", s.args("audit")...)
	})
}
