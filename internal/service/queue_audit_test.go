package service_test

import (
	"fmt"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// An audit derives from the open approvals which jobs must be queued for them. It reports jobs
// that were deleted or postponed, and jobs that the service did not write.
func TestTheAuditNamesTamperingWithTheQueue(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		g.hook()
		g.ask(g.open("asked"))
		audit := func(what string, want ledger.Check) {
			t.Helper()
			report := must[*verify.AuditReport](t)(g.Operator().Audit(t.Context(), g.who.slug, verify.AuditOptions{}))
			switch {
			case want == "" && report.Break != nil:
				t.Errorf("%s: the audit finds %+v", what, report.Break)
			case want != "" && (report.Break == nil || report.Break.Check != want):
				t.Errorf("%s: the audit finds %+v, want %s", what, report.Break, want)
			}
		}
		audit("nothing was done", "")
		for _, job := range scene.rowsOf("jobs") {
			far := int64(1) << 50
			deadline := job.value("kind") == "approval.deadline"
			for what, change := range map[string]map[string]any{
				"put off":           {"run_at": far},
				"leased for ever":   {"leased_until": far},
				"of another kind":   {"kind": "webhook"},
				"about other words": {"body": []byte("{}")},
				"of another moment": {"due_at": far},
				"without its mac":   {"mac": []byte{}},
			} {
				want := ledger.CheckQueue
				if delays := change["run_at"] != nil || change["leased_until"] != nil; delays && !deadline {
					want = "" // he can delay a message, as he can delete it
				}
				for column, other := range change {
					done(t, scene.set(&job, column, other))
				}
				audit(what, want)
				changed := job.with(change)
				for column := range change {
					done(t, scene.set(&changed, column, job.value(column)))
				}
			}
		}
		audit("all is as it was", "")
		for _, job := range scene.rowsOf("jobs") {
			if job.value("kind") == "approval.deadline" {
				done(t, scene.remove(&job))
			}
		}
		audit("the deadline was deleted", ledger.CheckQueue)
		done(t, g.QueueDeadlines(t.Context()))
		audit("it was queued anew", "")
	})
}

// A deadline that is repeatedly postponed, each time by less than a deadline may be late, counts
// as missing once the approval's next step is overdue: the audit names it, and it is queued again.
func TestDeadlinesThatAreAlwaysPutOff(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		g.ask(g.open("asked"))
		broken := func() bool {
			t.Helper()
			report := must[*verify.AuditReport](t)(g.Operator().Audit(t.Context(), g.who.slug, verify.AuditOptions{}))
			return report.Break != nil && report.Break.Check == ledger.CheckQueue
		}
		g.clock.Advance(7 * 24 * time.Hour)
		if broken() {
			t.Fatal("a deadline that no server has come to yet counts as put off")
		}
		for _, column := range []string{"run_at", "leased_until"} {
			later := g.clock.Now().Add(59 * time.Minute).UnixMilli()
			done(t, scene.exec(fmt.Sprintf("UPDATE jobs SET %s = %d WHERE kind = 'approval.deadline'", column, later)))
			if !broken() {
				t.Errorf("%s lies 59 minutes ahead, and the deadline counts as in time", column)
			}
			done(t, g.QueueDeadlines(t.Context()))
			if broken() {
				t.Errorf("after %s was moved, the deadline is not queued anew", column)
			}
			g.clock.Advance(time.Hour)
		}
	})
}
