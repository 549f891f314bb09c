package main

import (
	"strings"
	"testing"
)

// Whoever spoils one organization's record keeps nobody from auditing another.
func TestAuditOfOneBesideAnUnreadableOne(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("orgs", "create", "sound")...)
		succeed(t, s.args("orgs", "create", "spoilt")...)
		spoil := `UPDATE organizations SET settings = x'00' WHERE slug = 'spoilt'`
		if s.driver == "pgx" {
			spoil = `update organizations set settings = '[]' where slug = 'spoilt'`
		}
		s.exec(t, spoil)
		if out := succeed(t, s.args("audit", "--org", "sound")...); !strings.Contains(out, "sound") {
			t.Errorf("the audit says %q", out)
		}
		refuse(t, exitUnclear, "nobody", s.args("audit", "--org", "nobody")...)
	})
}
