package service_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// An approval that waits for a second yes, and is put back to before the first, is named by the audit
// and the self-check: the audit log has the yes. Nothing else that can happen to an approval with one
// yes is.
func TestVotesThatArePutBack(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		g := s.governed
		g.settings(`{"two_person_approval":true}`)
		second := g.reviewer("second")
		for name, end := range map[string]func(id ledger.ApprovalID){
			"still waits": func(ledger.ApprovalID) {},
			"is approved": func(id ledger.ApprovalID) { done(t, g.decide(second, id, true)) },
			"is denied":   func(id ledger.ApprovalID) { done(t, g.decide(second, id, false)) },
			"is withdrawn": func(id ledger.ApprovalID) {
				must[*service.ApprovalView](t)(g.CancelApproval(t.Context(), g.who.agent, id, ""))
			},
			"escalates": func(id ledger.ApprovalID) {
				g.clock.Advance(13 * time.Hour)
				must[ledger.Time](t)(g.AdvanceApproval(t.Context(), id))
			},
			"lapses": func(id ledger.ApprovalID) {
				g.clock.Advance(25 * time.Hour)
				must[ledger.Time](t)(g.AdvanceApproval(t.Context(), id))
			},
		} {
			id := g.ask(g.open(randomName()))
			done(t, g.decide(g.who.member, id, true))
			end(id)
			report := must[*verify.AuditReport](t)(g.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
			if report.Break != nil && report.Break.Check != ledger.CheckQueue { // nobody works on the queue here
				t.Errorf("an approval that %s after a yes: the audit finds %+v", name, report.Break)
			}
		}
		for _, id := range s.approvalsOpen() {
			must[*service.ApprovalView](t)(g.CancelApproval(t.Context(), g.who.agent, id, ""))
		}
		id := g.ask(g.open(randomName()))
		before := s.copyOf("approvals")
		done(t, g.decide(g.who.member, id, true))
		s.told()
		s.rollBack(before)
		if votes := g.view(id).Votes; len(votes) != 0 {
			t.Fatalf("there are %d votes", len(votes))
		}
		report := must[*verify.AuditReport](t)(g.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Break == nil || report.Break.Check != ledger.CheckApprovals || !strings.Contains(report.Break.Detail, id.String()) {
			t.Errorf("the audit finds %+v", report.Break)
		}
		done(t, g.decide(g.who.member, id, true))
		checkIntact(t, g.Service, "acme", 1)
		s.told()
		s.rollBack(before)
		s.checkRound(s.Service)
		if told := s.told(); !slices.Contains(told, "approvals ") {
			t.Errorf("the self-check tells of %q", told)
		}
	})
}

// approvalsOpen returns the approvals that can still be decided.
func (s *suspect) approvalsOpen() (open []ledger.ApprovalID) {
	s.t.Helper()
	for _, view := range must[[]*service.ApprovalView](s.t)(s.WaitingApprovals(s.t.Context(), s.who.member, 9)) {
		open = append(open, view.ID)
	}
	return open
}
