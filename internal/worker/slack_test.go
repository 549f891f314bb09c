package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/notify/slacktest"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/worker"
)

// inSlack returns a world whose approvals appear in a Slack for tests, and a worker for it.
func inSlack(t *testing.T, db store.Store) (*world, *slacktest.Slack, *worker.Worker) {
	t.Helper()
	w, at := newWorld(t, db), slacktest.Start(t)
	w.set(`{"slack_channel":"` + slacktest.Channel + `"}`)
	slackWorker := w.slackWorker(at)
	return w, at, slackWorker
}

func (w *world) set(settings string) {
	w.t.Helper()
	if _, err := w.service.UpdateOrganization(w.t.Context(), w.admin, parse(w.t, settings)); err != nil {
		w.t.Fatal(err)
	}
}

// slackWorker returns a worker that sends to Slack; at may be nil.
func (w *world) slackWorker(at *slacktest.Slack) *worker.Worker {
	config := worker.Config{
		Service: w.service, Webhooks: notify.NewWebhooks(notify.Options{AllowPrivate: true}), Clock: w.clock.Now, Meter: w.meter,
		Random: func() float64 { return 0 },
		Log:    slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	w.t.Cleanup(config.Webhooks.Close)
	if at != nil {
		config.Slack = notify.NewSlack(notify.SlackConfig{Token: ledger.NewSecret(at.Token), SigningSecret: ledger.NewSecret(at.SigningSecret), URL: at.URL})
		w.t.Cleanup(config.Slack.Close)
	}
	return worker.New(config)
}

// headlines returns the first line of each message, with a mark if it has buttons that decide.
func headlines(at *slacktest.Slack) (lines []string) {
	for _, m := range at.Messages() {
		line := m.Lines()[0]
		if m.Buttons()[notify.SlackApprove] != nil && m.Buttons()[notify.SlackDeny] != nil {
			line += " [decide]"
		}
		lines = append(lines, line)
	}
	return lines
}

func expectHeadlines(t *testing.T, at *slacktest.Slack, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, headlines(at)); diff != "" {
		t.Errorf("the channel (-want +got):\n%s", diff)
	}
}

// An approval appears in the channel, and once more when it escalates, after which the older message
// cannot decide. However it ends, the newest message says so and has no buttons.
func TestSlackFollowsAnApproval(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w, at, worker := inSlack(t, open())
		var want []string
		for _, c := range []struct {
			name  string
			end   func(ledger.ChainID, ledger.ApprovalID)
			shows string
		}{
			{"approved", func(_ ledger.ChainID, id ledger.ApprovalID) { w.approve(id) }, "Approved"},
			{"denied", func(_ ledger.ChainID, id ledger.ApprovalID) {
				if _, err := w.service.DecideApproval(t.Context(), w.reviewer, id, &ledger.Verdict{}); err != nil {
					t.Fatal(err)
				}
			}, "Denied"},
			{"withdrawn", func(_ ledger.ChainID, id ledger.ApprovalID) {
				if _, err := w.service.CancelApproval(t.Context(), w.agent, id, ""); err != nil {
					t.Fatal(err)
				}
			}, "Cancelled: nobody waits for it any more"},
			{"completed", func(chain ledger.ChainID, _ ledger.ApprovalID) {
				if _, err := w.service.CompleteChain(t.Context(), w.agent, chain, &ledger.Completion{}); err != nil {
					t.Fatal(err)
				}
			}, "Cancelled: nobody waits for it any more"},
			{"timed out", func(ledger.ChainID, ledger.ApprovalID) { w.clock.Advance(hours * time.Hour) }, "Timed out: nobody decided"},
		} {
			chain := w.open(`{"name":"` + c.name + `"}`)
			id := w.askIn(chain)
			w.run(worker)
			expectHeadlines(t, at, append(slices.Clone(want), "Approval needed [decide]")...)
			c.end(chain, id)
			w.run(worker)
			want = append(want, c.shows)
			expectHeadlines(t, at, want...)
		}
		calls := len(at.Calls())
		id := w.ask()
		w.run(worker)
		w.clock.Advance(hours / 2 * time.Hour)
		w.run(worker)
		expectHeadlines(t, at, append(slices.Clone(want), "Approval still needed", "Approval still needed [decide]")...)
		w.approve(id)
		w.run(worker)
		expectHeadlines(t, at, append(slices.Clone(want), "Approval still needed", "Approved")...)
		if diff := cmp.Diff([]string{"chat.postMessage", "chat.postMessage", "chat.update", "chat.update"}, at.Calls()[calls:]); diff != "" {
			t.Errorf("calls of Slack (-want +got):\n%s", diff)
		}
		w.queue(1, 0) // the deadline
	})
}

// While Slack fails, nothing is lost, nothing else waits, and another worker, like one after a restart,
// carries on. What ended before anybody was asked is not shown.
func TestSlackRecovers(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w, at, worker := inSlack(t, open())
		r := w.receiver()
		at.Respond(func(_ string, answer http.ResponseWriter, _ *http.Request) bool {
			answer.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
		lost, kept := w.ask(), w.ask()
		w.run(worker)
		if got := len(r.arrived(t)); got != 2 {
			t.Errorf("%d webhooks arrived", got)
		}
		w.approve(lost)
		w.clock.Advance(notify.Backoff(1, 0))
		w.run(worker)
		at.Refuse("not_in_channel")
		w.clock.Advance(notify.Backoff(2, 0))
		w.run(worker)
		expectHeadlines(t, at)
		checkLog(t, w, r, lost.String(), kept.String(), at.Token, slacktest.Channel)
		at.Refuse("")
		worker = w.slackWorker(at)
		w.clock.Advance(notify.Backoff(3, 0))
		w.run(worker)
		expectHeadlines(t, at, "Approval needed [decide]")
		w.approve(kept)
		w.run(worker)
		expectHeadlines(t, at, "Approved")
		w.queue(2, 0) // the deadlines
	})
}

// As long as Slack only asks to wait, a message is retried when it says, and never given up. Having
// waited does not count when something else fails afterwards.
func TestSlackAsksToWait(t *testing.T) {
	t.Parallel()
	w, at, worker := inSlack(t, testdb.SQLite(t).Open(t))
	at.Respond(func(_ string, answer http.ResponseWriter, _ *http.Request) bool {
		answer.Header().Set("Retry-After", "60")
		answer.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	w.ask()
	w.run(worker)
	const attempts = notify.MaxAttempts + 3
	for n := 1; n < attempts; n++ {
		w.clock.Advance(time.Minute - time.Millisecond)
		w.run(worker)
		if got := len(at.Calls()); got != n {
			t.Fatalf("%d calls before minute %d is over", got, n)
		}
		w.clock.Advance(time.Millisecond)
		w.run(worker)
	}
	at.Refuse("internal_error")
	w.clock.Advance(time.Minute)
	w.run(worker)
	at.Refuse("")
	w.clock.Advance(time.Minute)
	w.run(worker)
	expectHeadlines(t, at, "Approval needed [decide]")
	w.queue(1, 0) // the deadline
}

// A message that Slack will never accept is given up, and holds up nothing.
func TestSlackRefusesAMessage(t *testing.T) {
	t.Parallel()
	w, at, worker := inSlack(t, testdb.SQLite(t).Open(t))
	at.Refuse("invalid_blocks")
	id := w.ask()
	w.run(worker)
	w.queue(1, 1) // the deadline, and the message
	at.Refuse("")
	w.approve(id)
	w.run(worker)
	expectHeadlines(t, at) // nobody was asked
	if n := w.meter.get("slack buried"); n != 1 {
		t.Errorf("%d burials are counted", n)
	}
}

// stoppedStore is a store whose worker is stopped when it ends a job for Slack.
type stoppedStore struct {
	store.Store
	stop func()
}

func (s *stoppedStore) FinishJob(ctx context.Context, job *store.Job, follow []*store.Job) error {
	if job.Kind == service.JobSlack {
		s.stop()
	}
	return errors.Join(ctx.Err(), s.Store.FinishJob(ctx, job, follow))
}

// A worker that is stopped after Slack has taken a message still stores where the message is, so that it
// is not posted again.
func TestAPostedMessageIsNotPostedAgain(t *testing.T) {
	t.Parallel()
	stopped := &stoppedStore{Store: testdb.SQLite(t).Open(t), stop: func() {}}
	w, at, worker := inSlack(t, stopped)
	w.ask()
	ctx, stop := context.WithCancel(t.Context())
	stopped.stop = stop
	if _, err := worker.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	stopped.stop = func() {}
	if ctx.Err() == nil {
		t.Fatal("the worker was not stopped")
	}
	w.run(w.slackWorker(at))
	expectHeadlines(t, at, "Approval needed [decide]")
}

// Without a Slack app, jobs for Slack are dropped with one warning. Without a channel there are none.
func TestWithoutASlackApp(t *testing.T) {
	t.Parallel()
	w, at, _ := inSlack(t, testdb.SQLite(t).Open(t))
	worker := w.slackWorker(nil)
	w.ask()
	w.ask()
	w.run(worker)
	w.queue(2, 0) // the deadlines
	if n := strings.Count(w.log.String(), "--slack-token-file"); n != 1 {
		t.Errorf("the log has %d warnings", n)
	}
	w.set(`{"slack_channel":null}`)
	before := w.meter.get(service.JobSlack + " done")
	w.ask()
	w.run(worker)
	if n := w.meter.get(service.JobSlack+" done") - before; n != 0 || len(at.Calls()) > 0 {
		t.Errorf("%d jobs for Slack, and the calls %q", n, at.Calls())
	}
}
