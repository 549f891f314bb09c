package service_test

import (
	"slices"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// An organization's row that cannot be decoded, changed or inserted, does not affect the others:
// lists, periodic jobs and audits continue. Its own requests are refused as tampered with, the
// audit names it, and it becomes a finding.
//
//countersign:race
func TestUnreadableOrganizationsHideNoOthers(t *testing.T) {
	tests := map[string]struct{ sqlite, postgres string }{
		"settings": {
			"UPDATE organizations SET settings = x'7b' WHERE slug = 'spoilt'",
			"UPDATE organizations SET settings = '[]' WHERE slug = 'spoilt'",
		},
		"a setting": {
			`UPDATE organizations SET settings = CAST('{"evaluation_mode":5}' AS BLOB) WHERE slug = 'spoilt'`,
			`UPDATE organizations SET settings = '{"evaluation_mode":5}' WHERE slug = 'spoilt'`,
		},
		"controls": {
			"UPDATE organizations SET controls = x'ff' WHERE slug = 'spoilt'",
			"UPDATE organizations SET controls = '[1]' WHERE slug = 'spoilt'",
		},
		"an inserted one": {
			"INSERT INTO organizations (id, slug, name, settings, created_at) VALUES (randomblob(16), 'his', '', x'7b', 0)",
			"INSERT INTO organizations (id, slug, name, settings, created_at) VALUES (gen_random_uuid(), 'his', '', '[]', 0)",
		},
		"one without a name": {
			"INSERT INTO organizations (id, slug, name, settings, created_at) VALUES (randomblob(16), '', '', x'', 0)",
			"INSERT INTO organizations (id, slug, name, settings, created_at) VALUES (gen_random_uuid(), '', '', '0', 0)",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				g := govern(t, db)
				spoilt := newTenant(t, g.Service, "spoilt")
				ctx, edit := t.Context(), test.sqlite
				if db.Kind == "postgres" {
					edit = test.postgres
				}
				done(t, g.scene().exec(edit))
				g.ask(g.open("pay"))
				done(t, g.QueueChecks(ctx, time.Second))
				done(t, g.QueueDeadlines(ctx))
				_, _, err := g.PolicyCoverage(ctx)
				done(t, err)
				_, _, err = g.EscalationsWithoutRecipient(ctx)
				done(t, err)
				orgs := must[[]*ledger.Organization](t)(g.Operator().Organizations(ctx))
				at := slices.IndexFunc(orgs, func(o *ledger.Organization) bool { return o.Unreadable })
				if at < 0 {
					t.Fatalf("none of %d organizations is unreadable", len(orgs))
				}
				his := orgs[at]
				for _, org := range orgs {
					report := must[*verify.AuditReport](t)(g.Operator().AuditOrganization(ctx, org, verify.AuditOptions{}))
					if want := map[bool]string{true: verify.AuditBroken, false: verify.AuditIntact}[org == his]; report.Status != want {
						t.Errorf("%q is %s, want %s: %+v", org.Slug, report.Status, want, report.Break)
					}
				}
				if his.ID == spoilt.id {
					_, err := g.OpenChain(ctx, spoilt.agent, chainNamed(t, "his"), "")
					checkCode(t, "a chain", err, fault.CodeEvidenceTampered)
					_, err = g.Service.Organization(ctx, spoilt.admin)
					checkCode(t, "the organization", err, fault.CodeEvidenceTampered)
				}
				servicetest.Eventually(t, "a finding", func() bool {
					findings := must[[]*service.Finding](t)(g.Operator().Findings(ctx, ""))
					return slices.ContainsFunc(findings, func(f *service.Finding) bool { return f.Org == his.ID && f.Open() })
				})
				servicetest.Eventually(t, "it counts as open", func() bool { return must[int](t)(g.OpenFindings(ctx)) > 0 })
			})
		})
	}
}
