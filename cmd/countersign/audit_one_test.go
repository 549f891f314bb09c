package main

import (
	"slices"
	"testing"

	"countersign/internal/verify"
)

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
		found := decode[auditResult](t, succeed(t, s.args("audit", "--json", "--org", "sound")...))
		if len(found.Organizations) != 1 || found.Status != verify.AuditIntact || !slices.Contains(found.Organizations[0].NotChecked, "missing organizations") {
			t.Errorf("the audit found %+v", found)
		}
		refuse(t, exitUnclear, "could not read", s.args("audit")...)
	})
}
