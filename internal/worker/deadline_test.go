package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// An approval escalates at half its time and times out at its end, and both are reported even if
// one recipient is refused.
func TestDeadlines(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		r := w.receiver()
		office := newPostOffice(t)
		office.refused = "bob@example.com"
		approval := w.ask()
		worker := w.worker(w.service, office.mailer(t), nil)

		w.clock.Advance(hours/2*time.Hour - time.Millisecond)
		w.run(worker)
		if status := w.stored(approval); status != ledger.ApprovalPending {
			t.Errorf("before half of the time it is %s", status)
		}
		w.clock.Advance(time.Millisecond)
		w.run(worker)
		if status := w.stored(approval); status != ledger.ApprovalEscalated {
			t.Errorf("after half of the time it is %s", status)
		}
		if diff := cmp.Diff([]string{"ada@example.com"}, office.mailed("Auto-Submitted")); diff != "" {
			t.Errorf("mailed (-want +got):\n%s", diff)
		}
		w.queue(1, 1) // the next deadline, and the mail that the server refuses
		w.clock.Advance(hours / 2 * time.Hour)
		w.run(worker)
		if status := w.stored(approval); status != ledger.ApprovalTimedOut {
			t.Errorf("in the end it is %s", status)
		}
		if got := kindsOf(r.arrived(t)); got != "approval.requested approval.escalated approval.timed_out" {
			t.Errorf("the receiver was told %s", got)
		}
		w.queue(0, 1)
		checkLog(t, w, r, approval.String())
	})
}

// The deadlines of a decided approval change nothing and send no mail.
func TestDecidedApprovalsAreLeftAlone(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		office := newPostOffice(t)
		approval := w.ask()
		w.approve(approval)
		worker := w.worker(w.service, office.mailer(t), nil)
		w.clock.Advance(2 * hours * time.Hour)
		w.run(worker)
		if status := w.stored(approval); status != ledger.ApprovalApproved {
			t.Errorf("it is %s", status)
		}
		if mailed := office.mailed(""); len(mailed) > 0 {
			t.Errorf("mailed %v", mailed)
		}
		w.queue(0, 0)
	})
}

// Each fallback approver gets a mail. Without a mail server mails are dropped, and that is logged
// once.
func TestMailGoesToEachAndIsDroppedWithoutAServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		office := newPostOffice(t)
		w.ask()
		w.clock.Advance(hours / 2 * time.Hour)
		w.run(w.worker(w.service, office.mailer(t), nil))
		if diff := cmp.Diff([]string{"ada@example.com", "bob@example.com"}, office.mailed("Message-ID")); diff != "" {
			t.Errorf("mailed (-want +got):\n%s", diff)
		}
		w.ask()
		w.ask()
		w.clock.Advance(hours / 2 * time.Hour)
		w.run(w.worker(w.service, nil, nil))
		w.queue(2, 0) // two deadlines
		if n := strings.Count(w.log.String(), "--smtp-url-file"); n != 1 {
			t.Errorf("the log says %d times that there is no mail server:\n%s", n, w.log.String())
		}
	})
}

// Addresses that an agent chose get few mails per chain and per key, without any text of the agent.
// Addresses that the organization has named get all of theirs.
func TestAgentsCannotHaveTheServiceWriteToAnyone(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		if _, err := w.service.UpdateOrganization(t.Context(), w.admin, parse(t, `{"fallback_approvers":[]}`)); err != nil {
			t.Fatal(err)
		}
		office := newPostOffice(t)
		worker := w.worker(w.service, office.mailer(t), nil)
		strangers := func(chain int) string {
			var list []string
			for i := range 4 {
				list = append(list, fmt.Sprintf(`"stranger-%d-%d@example.com"`, chain, i))
			}
			return fmt.Sprintf(`{"name":"buy now at example.com","fallback_approvers":[%s]}`, strings.Join(list, ","))
		}
		escalate := func(chains, approvals int) int {
			before := len(office.mailed(""))
			for i := range chains {
				chain := w.open(strangers(i))
				for range approvals {
					w.askIn(chain)
				}
			}
			w.clock.Advance(hours / 2 * time.Hour)
			w.run(worker)
			return len(office.mailed("")) - before
		}
		if got := escalate(1, 3); got != 5 {
			t.Errorf("%d mails went out for one chain, want 5", got)
		}
		if got := escalate(10, 2); got != 20 {
			t.Errorf("%d mails went out for one key, want 20", got)
		}
		for _, text := range []string{"buy now", "robot", "look"} {
			if found := office.mailed(text); len(found) > 0 {
				t.Errorf("%d mails say %q", len(found), text)
			}
		}
	})
}

// A deadline that fails is retried forever, and a job of an unknown kind is left to workers that
// support it.
func TestDeadlinesAreNeverGivenUp(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		w.enqueue(service.JobDeadline, "nonsense")
		w.enqueue("from the future", "{}")
		worker := w.worker(w.service, nil, nil)
		for range 20 {
			w.run(worker)
			w.clock.Advance(time.Minute)
		}
		w.queue(2, 0) // a job of an unknown kind is left to others
		if n := w.meter.get("approval.deadline retried"); n != 20 {
			t.Errorf("%d attempts", n)
		}
		if n := strings.Count(w.log.String(), "approval.deadline"); n != 1 {
			t.Errorf("%d log lines for one deadline:\n%s", n, w.log.String())
		}
	})
}

// enqueue stores a job without the service.
func (w *world) enqueue(kind, body string) {
	w.t.Helper()
	err := evidence.New(w.store, w.ring).Transact(w.t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewJobs: []*store.Job{{
			Org: w.admin.Org, Kind: kind, RunAt: ledger.TimeOf(w.clock.Now()), Body: []byte(body),
		}}}, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// The e-mails into which one to several people is split are as old as that one, so that reinserting
// rows does not make a message younger.
func TestSplitEmailsKeepTheirAge(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := newWorld(t, db.Open(t))
		worker := w.worker(w.service, newPostOffice(t).mailer(t), nil)
		w.ask()
		w.clock.Advance(hours / 2 * time.Hour)
		if _, err := worker.RunOnce(t.Context()); err != nil { // escalates
			t.Fatal(err)
		}
		direct := db.Direct(t)
		ages := func(count int) (due int64) {
			t.Helper()
			if _, err := worker.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			var found int
			var oldest int64
			err := direct.QueryRowContext(t.Context(), "SELECT count(*), min(due_at), max(due_at) FROM jobs WHERE kind = 'email'").Scan(&found, &oldest, &due)
			if err != nil || found != count || oldest != due {
				t.Fatalf("%d e-mails are queued, due from %d to %d; want %d, due at once: %v", found, oldest, due, count, err)
			}
			return due
		}
		one := ages(1)
		w.clock.Advance(10 * 24 * time.Hour)
		if each := ages(2); each != one {
			t.Errorf("the e-mail was due at %d, and each of its parts at %d", one, each)
		}
	})
}
