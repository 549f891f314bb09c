package service_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// suspect is an organization that is notified of tampering, with direct access to its database.
type suspect struct {
	*governed
	*scene
	t         *testing.T
	receipts  []ledger.ReceiptID // oldest first
	approvals []ledger.ApprovalID
}

func newSuspect(t *testing.T, db *testdb.Database, chains int) *suspect {
	t.Helper()
	g := govern(t, db)
	s := &suspect{governed: g, scene: g.scene(), t: t}
	for i := range chains {
		chain := g.open(fmt.Sprint("chain-", i))
		if i == 1 {
			s.approvals = append(s.approvals, g.ask(chain))
			g.approve(s.approvals[0])
		}
		g.complete(chain)
		s.receipts = append(s.receipts, must[*ledger.StoredReceipt](t)(g.store.ReceiptOfChain(t.Context(), chain)).ID)
	}
	g.hook(string(notify.LedgerTamperFound))
	s.told()
	return s
}

// told fans out the queued notices and returns those about tampering: the check and the ids.
func (s *suspect) told() (told []string) {
	s.t.Helper()
	for range 100 {
		jobs := must[[]*service.Job](s.t)(s.Jobs().Claim(s.t.Context(), time.Second, map[string]int{service.JobNotice: 100}))
		if len(jobs) == 0 {
			return told
		}
		for _, job := range jobs {
			n := must[notify.Notice](s.t)(notify.Decode(job.Body))
			if n.Kind == notify.LedgerTamperFound {
				told = append(told, fmt.Sprintf("%s %s%s", n.Status, n.ReceiptID, n.ApprovalID))
			}
			done(s.t, s.Jobs().FanOut(s.t.Context(), job))
		}
	}
	s.t.Fatal("there is always another notice")
	return nil
}

func (s *suspect) wantTold(what string, want ...string) {
	s.t.Helper()
	if diff := gocmp.Diff(want, s.told()); diff != "" {
		s.t.Errorf("%s: told (-want +got):\n%s", what, diff)
	}
}

// inOrder reads a table in the order of the receipts that its rows belong to.
func (s *suspect) inOrder(table string) []row {
	s.t.Helper()
	rows := s.rowsOf(table)
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.sequence, b.sequence) })
	return rows
}

// edit flips a bit in a column of the n-th row of a table.
func (s *suspect) edit(table, column string, n int) {
	s.t.Helper()
	r := s.inOrder(table)[n]
	for i, name := range r.columns {
		if name == column {
			value := r.values[i].([]byte)
			done(s.t, s.set(&r, column, flipped(value, len(value)/2)))
			return
		}
	}
	s.t.Fatalf("%s has no column %s", table, column)
}

func (s *suspect) verifyAll(by *service.Service, caller *service.Caller) {
	s.t.Helper()
	for _, id := range s.receipts {
		must[*ledger.Verification](s.t)(by.VerifyReceipt(s.t.Context(), caller, id))
	}
	for _, id := range s.approvals {
		must[*ledger.Verification](s.t)(by.VerifyApproval(s.t.Context(), caller, id))
	}
}

func (s *suspect) auditAll(by *service.Service) {
	s.t.Helper()
	must[*verify.LedgerAudit](s.t)(by.AuditLedger(s.t.Context(), s.who.admin, verify.AuditOptions{}))
}

// Each finding of tampering is reported once, however often it is found again, and public checks
// by outsiders report nothing.
//
//countersign:race
func TestTamperingIsToldOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 3)
		s.verifyAll(s.Service, s.who.member)
		s.auditAll(s.Service)
		s.checkRound(s.Service)
		s.wantTold("untouched")

		s.edit("receipts", "body", 1)
		waiting := s.waitingJobs()
		must[*ledger.ReceiptCheck](t)(s.CheckReceipt(t.Context(), s.receipts[1]))
		if s.waitingJobs() != waiting {
			t.Error("a stranger's look queues something")
		}
		finding := fmt.Sprint("signature ", s.receipts[1])
		for range 3 {
			must[*ledger.Verification](t)(s.VerifyReceipt(t.Context(), s.who.member, s.receipts[1]))
		}
		s.wantTold("verified by a member", finding)
		s.auditAll(s.Service)
		s.checkRound(s.Service)
		another := s.replica()
		s.auditAll(another)
		must[*ledger.Verification](t)(another.VerifyReceipt(t.Context(), s.who.admin, s.receipts[1]))
		s.wantTold("found again")
		s.verifyAll(another, s.who.member)
		s.wantTold("what else is wrong by it", fmt.Sprint("next_link ", s.receipts[0]), fmt.Sprint("previous_link ", s.receipts[2]), fmt.Sprint("receipt ", s.approvals[0]))
	})
}

// Tampering is reported whether an audit, a verification or the regular check finds it.
func TestTamperingByWhomeverItIsFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		table, column string
		row           int
		find          func(s *suspect)
		want          func(s *suspect) string
	}{
		"an audit, of a receipt": {
			table: "receipts", column: "body", row: 2, find: func(s *suspect) { s.auditAll(s.Service) },
			want: func(s *suspect) string { return fmt.Sprint("signature ", s.receipts[2]) },
		},
		"a look at the ledger, of a receipt": {
			table: "receipts", column: "body", row: 2, find: func(s *suspect) { s.checkRound(s.Service) },
			want: func(s *suspect) string { return fmt.Sprint("signature ", s.receipts[2]) },
		},
		"a verification, of an approval": {
			table: "approvals", column: "body", find: func(s *suspect) {
				must[*ledger.Verification](s.t)(s.VerifyApproval(s.t.Context(), s.who.member, s.approvals[0]))
			},
			want: func(s *suspect) string { return fmt.Sprint("record ", s.approvals[0]) },
		},
		"a look at the ledger, of an approval": {
			table: "approvals", column: "body", find: func(s *suspect) { s.checkRound(s.Service) },
			want: func(s *suspect) string { return fmt.Sprint("approvals ", s.receipts[1]) },
		},
		"a look at the ledger, of the head": {
			table: "heads", column: "mac", find: func(s *suspect) { s.checkRound(s.Service) },
			want: func(*suspect) string { return "head " },
		},
		"a look at the ledger, of the audit log": {
			table: "act_logs", column: "mac", find: func(s *suspect) { s.checkRound(s.Service) },
			want: func(*suspect) string { return "audit_log " },
		},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 3)
				s.edit(test.table, test.column, test.row)
				test.find(s)
				test.find(s)
				s.wantTold(name, test.want(s))
			})
		})
	}
}

// Tampering with a chain that is still open is reported once, although its position in the report
// moves with each new receipt.
//
//countersign:race
func TestTamperingBehindTheLastReceiptIsToldOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		chain := s.open("open")
		s.record(chain, step(t, "step", ""))
		events := s.inOrder("events")
		s.edit("events", "body", len(events)-1)
		s.auditAll(s.Service)
		s.wantTold("audited", "chain ")
		s.complete(s.open("another"))
		s.auditAll(s.replica())
		s.wantTold("audited with one receipt more")
	})
}

// Tampering that was found when there was no recipient is reported once there is one.
func TestTamperingIsToldWhenSomeoneListens(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 2)
		for _, webhook := range must[[]*service.Webhook](t)(s.Webhooks(t.Context(), s.who.admin)) {
			done(t, s.DeleteWebhook(t.Context(), s.who.admin, webhook.ID))
		}
		s.hook(string(notify.ChainCompleted))
		s.edit("receipts", "body", 0)
		s.verifyAll(s.Service, s.who.member)
		s.wantTold("with nobody to hear of it")
		s.settings(`{"fallback_approvers":["ada@example.com","bob@example.com"]}`)
		v := must[*ledger.Verification](t)(s.VerifyReceipt(t.Context(), s.who.member, s.receipts[0]))
		if overall, _ := v.Conclude(); overall != ledger.VerdictFailed {
			t.Errorf("the verdict is %s", overall)
		}
		notices, deliveries := s.fanOut()
		if len(notices) != 1 || len(deliveries) != 1 || deliveries[0].Kind != service.JobEmail {
			t.Fatalf("%d notices and %d deliveries", len(notices), len(deliveries))
		}
		d := must[*service.Delivery](t)(s.Jobs().Delivery(t.Context(), deliveries[0]))
		if diff := gocmp.Diff([]string{"ada@example.com", "bob@example.com"}, d.To); diff != "" {
			t.Errorf("mailed (-want +got):\n%s", diff)
		}
	})
}

// An intruder who changes the settings does not choose who is notified of it.
func TestTamperedSettingsNameNobody(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		s.settings(`{"fallback_approvers":["ada@example.com"]}`)
		s.told()
		done(t, s.exec("UPDATE organizations SET name = 'intruder'"))
		s.edit("receipts", "body", 0)
		s.auditAll(s.Service)
		notices, deliveries := s.fanOut()
		if len(notices) != 1 || len(deliveries) != 1 || deliveries[0].Kind != service.JobWebhook {
			t.Errorf("%d notices, deliveries %+v, want the webhook alone", len(notices), deliveries)
		}
	})
}
