package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// jobRows returns the stored jobs of a kind.
func (s *scene) jobRows(kind string) (found []row) {
	s.t.Helper()
	for _, r := range s.rowsOf("jobs") {
		if r.value("kind") == kind {
			found = append(found, r)
		}
	}
	return found
}

// enqueue inserts a row into the queue, as someone with access to the database would.
func (s *scene) enqueue(r row) error {
	var columns, marks []string
	var values []any
	for i, column := range r.columns {
		if column == "no" {
			continue // the database gives it one
		}
		values = append(values, r.values[i])
		columns, marks = append(columns, column), append(marks, s.dialect.mark(len(values)))
	}
	return s.exec("INSERT INTO jobs ("+strings.Join(columns, ", ")+") VALUES ("+strings.Join(marks, ", ")+")", values...)
}

// idleJobColumns are the columns of a job that only the store uses: changing them delays a job or
// buries it.
var idleJobColumns = map[string]bool{
	"no": true, "place": true, "run_at": true, "attempts": true, "lease": true, "leased_until": true, "fault": true, "held": true, "buried": true,
}

// A job whose row was changed in any authenticated column is not run: it is buried, and the
// organization is notified.
func TestForgedJobsAreNotRun(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.hook()
		scene := g.scene()
		g.kill("a drill")
		g.deactivateKillSwitch()
		notices := scene.jobRows(service.JobNotice)
		if len(notices) != 2 {
			t.Fatalf("%d notices are queued, want 2", len(notices))
		}
		refused := 0
		scene.editEachColumn(&notices[0], []string{"no"}, idleJobColumns, func(edit string) {
			for _, job := range g.claim(0, 100) {
				if strings.Contains(string(job.Body), string(notify.KillSwitchActivated)) {
					t.Errorf("%s: it is claimed as %+v", edit, job)
				}
			}
			refused++
			done(t, g.Jobs().Sweep(t.Context())) // also of a kind that nobody claims
			var waiting int
			query := "SELECT count(*) FROM jobs WHERE fault LIKE 'the job fails its authenticator%'"
			done(t, scene.direct.QueryRowContext(t.Context(), query).Scan(&waiting))
			if waiting != 1 {
				t.Errorf("%s: %d jobs are buried with the fault", edit, waiting)
			}
			// Its place and its fault are restored with it.
			if db.Kind == "postgres" {
				done(t, scene.exec("UPDATE jobs SET buried = false, held = false, fault = NULL, lease = NULL, leased_until = NULL, attempts = 0"))
			} else {
				done(t, scene.exec("UPDATE jobs SET place = 'first', fault = NULL, lease = NULL, leased_until = 0, attempts = 0"))
			}
		})
		if refused == 0 {
			t.Fatal("nothing was tried")
		}
		told, deliveries := g.fanOut()
		if kinds := strings.Join(kindsOf(told), " "); !strings.Contains(kinds, string(notify.LedgerTamperFound)) || !strings.Contains(kinds, string(notify.KillSwitchActivated)) {
			t.Errorf("told %s: want the drill, as it was, and the tampering", kinds)
		}
		if len(deliveries) != len(told) {
			t.Errorf("%d deliveries of %d notices", len(deliveries), len(told))
		}
	})
}

// Rows inserted into the queue send nothing, decide nothing, and do not delay the service's own
// jobs, whatever their kind, stream, lease or time.
func TestInsertedJobsAreNotRun(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		hook := g.hook()
		scene := g.scene()
		id := g.ask(g.open("pay"))
		var template row
		for _, r := range scene.jobRows(service.JobNotice) {
			template = r
		}
		stream := fmt.Sprint(hook.ID, "/", id)
		message := func() []byte {
			return []byte(`{"message_id":"msg-his","notice":` + text(template.value("body")) + `,"to":["him@example.com"],"webhook_id":"` + hook.ID.String() + `"}`)
		}
		far, hooks := int64(1)<<50, scene.rowsOf("webhooks")
		for name, change := range map[string]map[string]any{
			"an e-mail":             {"kind": service.JobEmail, "body": message(), "stream": "email/" + id.String()},
			"a webhook":             {"kind": service.JobWebhook, "body": message(), "stream": stream},
			"a deadline":            {"kind": service.JobDeadline, "body": []byte(id.String()), "stream": "a"},
			"of no kind":            {"kind": "nonsense", "stream": stream + "/1"},
			"of another's stream":   {"stream": "b"},
			"leased for ever":       {"kind": service.JobWebhook, "stream": stream + "/2", "leased_until": far, "attempts": int64(1)},
			"put off for ever":      {"kind": service.JobWebhook, "stream": stream + "/3", "run_at": far, "attempts": int64(1)},
			"with its mac emptied":  {"mac": []byte{}, "stream": "c"},
			"with another's mac":    {"mac": hooks[0].value("mac"), "stream": "d"},
			"of no organization":    {"org_id": make([]byte, 16), "stream": "e"},
			"that says it is older": {"due_at": int64(1), "stream": "f"},
		} {
			if err := scene.enqueue(template.with(map[string]any{"run_at": int64(0)}).with(change)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		done(t, g.Jobs().Sweep(t.Context()))
		for _, job := range g.claim(0, 100) {
			if strings.Contains(string(job.Body), "msg-his") || job.Kind == service.JobDeadline {
				t.Errorf("claimed %s %s", job.Kind, job.Body)
			}
		}
		if status := g.view(id).Status; status != ledger.ApprovalPending {
			t.Errorf("the approval is %s", status)
		}
		told, deliveries := g.fanOut()
		want := 0
		for _, job := range deliveries {
			if strings.Contains(string(job.Body), string(notify.ApprovalRequested)) {
				want++
			}
		}
		if want != 1 || !strings.Contains(strings.Join(kindsOf(told), " "), string(notify.LedgerTamperFound)) {
			t.Errorf("told %v in %d deliveries: want the request, once, and the tampering", kindsOf(told), len(deliveries))
		}
	})
}

// A job that was authentic once and is restored runs until its last retry could have been due, and
// not later.
func TestOldJobsAreNotReplayed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.hook()
		scene := g.scene()
		g.kill("a drill")
		old := scene.jobRows(service.JobNotice)[0]
		if told, _ := g.fanOut(); len(told) != 1 {
			t.Fatalf("%d notices", len(told))
		}
		replay := func() int {
			t.Helper()
			done(t, scene.enqueue(old))
			told, _ := g.fanOut()
			return len(told)
		}
		if n := replay(); n != 1 {
			t.Errorf("within its time it is told %d times", n)
		}
		g.clock.Advance(30*24*time.Hour + time.Millisecond)
		if n := replay(); n != 0 {
			t.Errorf("long after it is told %d times", n)
		}
		if _, buried, err := g.Jobs().Count(t.Context()); err != nil || buried != 1 {
			t.Errorf("%d jobs are buried, error %v", buried, err)
		}
		// Retries do not make it younger.
		done(t, scene.enqueue(old.with(map[string]any{"run_at": g.clock.Now().UnixMilli(), "attempts": int64(0)})))
		if told, _ := g.fanOut(); len(told) != 0 {
			t.Error("with another time to run it is told")
		}
	})
}

// A job name inserted into the database suppresses no job: the notice of tampering is still sent,
// and once.
func TestForgedNamesSuppressNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.hook(string(notify.LedgerTamperFound))
		scene := g.scene()
		names := func() (names []string) {
			scene.each("SELECT name FROM job_names", nil, func(scan func(...any) error) error {
				var name string
				err := scan(&name)
				names = append(names, name)
				return err
			})
			return names
		}
		// On another day he has seen what the name of the finding looks like.
		g.hook()
		endpoint := scene.last("webhooks")
		id, org := endpoint.value("id"), endpoint.value("org_id")
		tampered := func() int {
			t.Helper()
			done(t, scene.update("webhooks SET url = 'http://127.0.0.1:9/his' WHERE id = ?", id))
			g.kill("a drill")
			g.deactivateKillSwitch()
			told, _ := g.fanOut()
			return strings.Count(strings.Join(kindsOf(told), " "), string(notify.LedgerTamperFound))
		}
		if n := tampered(); n != 1 {
			t.Fatalf("it is told %d times, want once", n)
		}
		seen := names()
		g.clock.Advance(8 * 24 * time.Hour)
		day := g.clock.Now().UnixMilli() / (24 * 60 * 60 * 1000)
		for _, name := range seen {
			finding, mac, _ := strings.Cut(name, "#")
			finding = finding[:strings.LastIndex(finding, "/")+1]
			for _, forged := range []string{
				fmt.Sprintf("%s%06d", finding, day), fmt.Sprintf("%s%06d#%s", finding, day, mac), fmt.Sprintf("%s%06d#x", finding, day), finding + "999999", finding + "999999#" + mac,
			} {
				done(t, scene.exec("INSERT INTO job_names (org_id, name) VALUES ("+scene.dialect.mark(1)+", "+scene.dialect.mark(2)+")", org, forged))
			}
		}
		if n := tampered(); n != 1 {
			t.Errorf("under forged names it is told %d times, want once", n)
		}
		if n := tampered(); n != 0 {
			t.Errorf("on the same day it is told %d times more", n)
		}
	})
}

// A deadline that is deleted, postponed, leased forever, buried or changed is queued again, and
// the approval advances in time.
func TestLostDeadlinesComeBack(t *testing.T) {
	losses := map[string]string{
		"deleted":         "DELETE FROM jobs WHERE kind = 'approval.deadline'",
		"put off":         "UPDATE jobs SET run_at = run_at + 400000000000 WHERE kind = 'approval.deadline'",
		"leased for ever": "UPDATE jobs SET leased_until = run_at + 400000000000 WHERE kind = 'approval.deadline'",
		"of another kind": "UPDATE jobs SET kind = 'nonsense' WHERE kind = 'approval.deadline'",
		"unsealed":        "UPDATE jobs SET due_at = due_at + 1 WHERE kind = 'approval.deadline'",
	}
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		for name, lose := range losses {
			id := g.ask(g.open("pay"))
			done(t, g.QueueDeadlines(t.Context())) // none is missing
			if jobs := scene.jobRows(service.JobDeadline); len(jobs) != 1 {
				t.Fatalf("%s: %d deadlines are queued for one approval", name, len(jobs))
			}
			done(t, scene.exec(lose))
			done(t, g.QueueDeadlines(t.Context()))
			g.clock.Set(time.UnixMilli(int64(g.view(id).ExpiresAt)))
			g.passTime()
			checkStatus(t, g.view(id), ledger.ApprovalTimedOut)
			record := must[*store.ApprovalRecord](t)(g.store.Approval(t.Context(), id))
			if record.Status != ledger.ApprovalTimedOut {
				t.Errorf("%s: it is stored as %s", name, record.Status)
			}
			done(t, scene.exec("DELETE FROM jobs"))
			g.clock.Advance(time.Hour)
		}
	})
}
