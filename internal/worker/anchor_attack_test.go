package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/anchor"
	"countersign/internal/ledger"
	"countersign/internal/testdb"
	"countersign/internal/verify"
	"countersign/internal/worker"
)

// attacked is a world whose decision and head are anchored with both methods, and an attacker who
// can write the database.
type attacked struct {
	*world
	db       *testdb.Database
	approval ledger.ApprovalID
	receipt  ledger.ReceiptID
}

func (a *attacked) exec(statements ...string) {
	a.t.Helper()
	for _, statement := range statements {
		if _, err := a.db.Direct(a.t).ExecContext(a.t.Context(), statement); err != nil {
			a.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// remember copies the anchors, for rollBack.
func (a *attacked) remember() {
	a.exec("CREATE TABLE kept AS SELECT * FROM anchors")
}

func (a *attacked) rollBack() {
	a.exec("DELETE FROM anchors", "INSERT INTO anchors SELECT * FROM kept")
}

// newAttacked calls during between the calendar's promise and the block.
func newAttacked(t *testing.T, db *testdb.Database, during func(*attacked)) *attacked {
	t.Helper()
	a := &attacked{world: newWorld(t, db.Open(t), ledger.MethodTSA, ledger.MethodOpenTimestamps), db: db}
	calendar := newCalendar(t)
	a.anchors = worker.Anchoring{Authority: a.stamper(), Calendars: calendar, Bitcoin: bitcoin(a.clock, calendar)}
	a.receipt, a.approval = a.seal(), a.decided()
	if err := a.service.AnchorHead(t.Context(), a.admin); err != nil {
		t.Fatal(err)
	}
	running := a.worker(a.service, nil, nil)
	a.run(running)
	if during != nil {
		during(a)
	}
	calendar.confirm(7)
	a.clock.Advance(31 * time.Minute)
	a.run(running)
	return a
}

// standings returns the standings of the approval's and the receipt's anchors for a server that was
// just started.
func (a *attacked) standings() string {
	a.t.Helper()
	s := a.serve(a.db.Open(a.t))
	approval, err := s.VerifyApproval(a.t.Context(), a.admin, a.approval)
	if err != nil {
		a.t.Fatal(err)
	}
	receipt, err := s.VerifyReceipt(a.t.Context(), a.admin, a.receipt)
	if err != nil {
		a.t.Fatal(err)
	}
	var found []string
	for _, f := range []ledger.AnchorFinding{approval.TSA, approval.OpenTimestamp, receipt.TSA, receipt.OpenTimestamp} {
		found = append(found, strings.TrimSuffix(string(f.Standing)+":"+f.Reason, ":"))
	}
	return strings.Join(found, "/")
}

// broken returns the check that an audit finds broken, or "".
func (a *attacked) broken() ledger.Check {
	a.t.Helper()
	report, err := a.serve(a.db.Open(a.t)).Operator().Audit(a.t.Context(), "acme", verify.AuditOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	if report.Break == nil {
		return ""
	}
	return report.Break.Check
}

const (
	allVerified  = "verified/verified/verified/verified"
	allRecord    = "failed:record_failed/failed:record_failed/failed:record_failed/failed:record_failed"
	noneAnchored = "not_anchored/not_anchored/not_anchored/not_anchored"
)

// Writing an anchor's row gains an attacker nothing: an edited anchor has failed, and an audit
// reports every anchor that was made and is missing or changed. If the operator removes a root, its
// tokens are no longer trusted, but that is not a break.
//
//countersign:race
func TestAnchorsAreNotBelievedByTheirRows(t *testing.T) {
	for name, test := range map[string]struct {
		during, after func(*attacked)
		standings     string
		broken        ledger.Check
	}{
		"nothing": {after: func(*attacked) {}, standings: allVerified},
		"all are deleted": {
			after:     func(a *attacked) { a.exec("DELETE FROM anchors") },
			standings: noneAnchored, broken: ledger.CheckAnchors,
		},
		"one is deleted": {
			after:     func(a *attacked) { a.exec("DELETE FROM anchors WHERE kind = 'approval' AND method = 'tsa'") },
			standings: "not_anchored/verified/verified/verified", broken: ledger.CheckAnchors,
		},
		"proofs are replaced": {
			after:     func(a *attacked) { a.exec("UPDATE anchors SET proof = digest") },
			standings: allRecord, broken: ledger.CheckAnchors,
		},
		"proofs are emptied": {
			after:     func(a *attacked) { a.exec("UPDATE anchors SET proof = NULL") },
			standings: allRecord, broken: ledger.CheckAnchors,
		},
		"blocks are replaced": {
			after:     func(a *attacked) { a.exec("UPDATE anchors SET block = digest WHERE method = 'opentimestamps'") },
			standings: "verified/failed:record_failed/verified/failed:record_failed", broken: ledger.CheckAnchors,
		},
		"blocks are removed": {
			after:     func(a *attacked) { a.exec("UPDATE anchors SET block = NULL WHERE method = 'opentimestamps'") },
			standings: "verified/failed:record_failed/verified/failed:record_failed", broken: ledger.CheckAnchors,
		},
		"statuses are edited": {
			after:     func(a *attacked) { a.exec("UPDATE anchors SET status = 'pending'") },
			standings: allRecord, broken: ledger.CheckAnchors,
		},
		"methods are exchanged": {
			after: func(a *attacked) {
				a.exec("UPDATE anchors SET method = 'x' WHERE method = 'tsa'", "UPDATE anchors SET method = 'tsa' WHERE method = 'opentimestamps'",
					"UPDATE anchors SET method = 'opentimestamps' WHERE method = 'x'")
			},
			standings: allRecord, broken: ledger.CheckAnchors,
		},
		"promises are rolled back": {
			during:    func(a *attacked) { a.remember() },
			after:     func(a *attacked) { a.rollBack() },
			standings: "verified/pending/verified/pending", broken: ledger.CheckAnchors,
		},
		"a head is anchored again after its anchor was deleted": {
			after: func(a *attacked) {
				a.exec("DELETE FROM anchors WHERE kind = 'head' AND method = 'tsa'")
				if err := a.service.AnchorHead(a.t.Context(), a.admin); err != nil {
					a.t.Fatal(err)
				}
				a.clock.Advance(time.Second)
				a.run(a.worker(a.service, nil, nil))
			},
			standings: allVerified, broken: ledger.CheckAnchors,
		},
		"the operator takes the root out": {
			after: func(a *attacked) {
				a.believes = &anchor.Verifier{Trust: newStamper(a.t, a.clock).trust, Bitcoin: bitcoin(a.clock, nil)}
			},
			standings: "failed:untrusted_root/verified/failed:untrusted_root/verified",
		},
		"the operator believes nobody": {
			after:     func(a *attacked) { a.believes = &anchor.Verifier{Bitcoin: bitcoin(a.clock, nil)} },
			standings: "failed:untrusted_root/verified/failed:untrusted_root/verified",
		},
		"the operator asks for more work": {
			after:     func(a *attacked) { a.believes = &anchor.Verifier{Trust: a.believes.Trust} },
			standings: "verified/failed:untrusted/verified/failed:untrusted",
		},
		"the authority's certificate expires": {
			after:     func(a *attacked) { a.clock.Advance(3 * 365 * 24 * time.Hour) },
			standings: allVerified,
		},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				a := newAttacked(t, db, test.during)
				if found := a.standings(); found != allVerified {
					t.Fatalf("before, the anchors are %s", found)
				}
				if found := a.broken(); found != "" {
					t.Fatalf("before, the audit finds %s broken", found)
				}
				test.after(a)
				if diff := cmp.Diff(test.standings, a.standings()); diff != "" {
					t.Errorf("the anchors differ (-want +got):\n%s", diff)
				}
				if found := a.broken(); found != test.broken {
					t.Errorf("the audit finds %q broken, want %q", found, test.broken)
				}
			})
		})
	}
}

// An approval that was edited cannot be judged: its signature is invalid, and its anchors have
// failed.
func TestEditedApprovalIsNotUnsigned(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		a := newAttacked(t, db, nil)
		a.exec("UPDATE approvals SET mac = body")
		v, err := a.service.VerifyApproval(t.Context(), a.admin, a.approval)
		if err != nil {
			t.Fatal(err)
		}
		failed := ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "record_failed"}
		if v.Signature.Standing != ledger.StandingInvalid || v.Integrity.Standing != ledger.StandingInvalid || v.TSA != failed || v.OpenTimestamp != failed {
			t.Errorf("the result is %+v", v)
		}
	})
}
