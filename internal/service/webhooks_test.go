package service_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

func (g *governed) hook(kinds ...string) *store.WebhookRecord {
	g.t.Helper()
	record, _, err := g.CreateWebhook(g.t.Context(), g.who.admin, &service.WebhookRequest{URL: "http://127.0.0.1:9/" + fmt.Sprint(len(kinds)), Events: kinds})
	if err != nil {
		g.t.Fatal(err)
	}
	return record
}

// fanOut claims all due jobs, fans notices out and returns what was claimed.
func (g *governed) fanOut() (notices []notify.Notice, deliveries []*service.Job) {
	g.t.Helper()
	for range 100 {
		jobs := g.claim(time.Second, 100)
		if len(jobs) == 0 {
			return notices, deliveries
		}
		for _, job := range jobs {
			switch job.Kind {
			case service.JobDeadline:
				done(g.t, g.Jobs().Deadline(g.t.Context(), job))
			case service.JobNotice:
				notices = append(notices, must[notify.Notice](g.t)(notify.Decode(job.Body)))
				done(g.t, g.Jobs().FanOut(g.t.Context(), job))
			default:
				deliveries = append(deliveries, job)
				done(g.t, g.Jobs().Finish(g.t.Context(), job))
			}
		}
	}
	g.t.Fatal("there is always another job")
	return nil, nil
}

func kindsOf(notices []notify.Notice) []string {
	var kinds []string
	for _, n := range notices {
		kinds = append(kinds, string(n.Kind))
	}
	slices.Sort(kinds)
	return kinds
}

// Every event that endpoints subscribe to is delivered once.
func TestWhatIsTold(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"fallback_approvers":["boss@example.com"],"auto_pause":{"max_events":4}}`)
		g.hook()
		g.hook(string(notify.ApprovalDecided), string(notify.KillSwitchActivated))
		chain := g.open("told")
		decided, late := g.ask(chain), g.ask(chain)
		g.ask(chain)
		g.approve(decided)
		g.kill("an incident")
		g.deactivateKillSwitch()
		told, _ := g.fanOut()
		g.clock.Set(time.UnixMilli(int64(g.view(late).EscalatesAt)))
		g.passJobs(&told)
		g.clock.Set(time.UnixMilli(int64(g.view(late).ExpiresAt)))
		g.passJobs(&told)
		for range 2 {
			g.record(chain, step(t, "look", "")) // the second is one too many
		}
		g.complete(chain)
		g.passJobs(&told)
		want := []string{
			"approval.decided", "approval.escalated", "approval.escalated", "approval.requested", "approval.requested", "approval.requested",
			"approval.timed_out", "approval.timed_out", "chain.auto_paused", "chain.completed", "kill_switch.activated", "kill_switch.deactivated",
		}
		if got := kindsOf(told); !slices.Equal(got, want) {
			t.Errorf("told %v\nwant %v", got, want)
		}
		for _, n := range told {
			if n.Organization != "acme" || n.Kind == notify.ApprovalDecided && (n.Status != "approved" || n.Reviewer != "test" || n.ApprovalID != decided.String()) {
				t.Errorf("told %+v", n)
			}
		}
	})
}

func (g *governed) passJobs(told *[]notify.Notice) {
	g.t.Helper()
	for range 3 {
		g.clock.Advance(2 * time.Second) // past the leases of what is claimed
		more, _ := g.fanOut()
		*told = append(*told, more...)
	}
}

// A notice becomes one delivery for each endpoint that subscribes to it and one e-mail, each in
// its own stream, so that one receiver does not delay another.
func TestFanOut(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.put(`rules: [{name: ask, when: "action.action_name == 'deploy'", decision: require_approval, reason: r, approvers: [test, ann@example.com]}]`)
		all, requested := g.hook(), g.hook(string(notify.ApprovalRequested))
		g.hook(string(notify.ChainCompleted))
		gone, deleted := g.hook(), g.hook()
		done(t, g.Jobs().DisableWebhook(t.Context(), g.who.id, gone.ID))
		done(t, g.DeleteWebhook(t.Context(), g.who.admin, deleted.ID))
		id := g.record(g.open("fan"), step(t, "deploy", "")).Event.Approval
		_, deliveries := g.fanOut()
		var streams []string
		for _, job := range deliveries {
			streams = append(streams, job.Kind+" "+job.Stream)
		}
		slices.Sort(streams)
		want := []string{"email email/" + id.String(), "webhook " + all.ID.String() + "/" + id.String(), "webhook " + requested.ID.String() + "/" + id.String()}
		slices.Sort(want)
		if !slices.Equal(streams, want) {
			t.Errorf("deliveries %v\nwant %v", streams, want)
		}
		seen := map[string]bool{}
		for _, job := range deliveries {
			d, err := g.Jobs().Delivery(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			seen[d.MessageID] = true
			if job.Kind == service.JobEmail && !slices.Equal(d.To, []string{"ann@example.com"}) {
				t.Errorf("a letter to %v", d.To)
			}
			if job.Kind == service.JobWebhook && (d.Webhook == nil || d.Secret.Reveal() == "") {
				t.Error("a delivery without its endpoint")
			}
			if bytes.Contains(d.Notice, []byte("payload")) {
				t.Error("a payload is told")
			}
		}
		if len(seen) != 1 {
			t.Errorf("one message has the ids %v", seen)
		}
		// What is queued for an endpoint that goes is not delivered any more.
		done(t, g.DeleteWebhook(t.Context(), g.who.admin, all.ID))
		done(t, g.Jobs().DisableWebhook(t.Context(), g.who.id, requested.ID))
		for _, job := range deliveries {
			if job.Kind == service.JobWebhook {
				_, err := g.Jobs().Delivery(t.Context(), job)
				checkCode(t, "a delivery to an endpoint that is gone", err, fault.CodeNotFound)
			}
		}
	})
}

// Endpoints are created and deleted by acts; repeating one changes nothing.
func TestWebhooksAreActs(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		acts := len(g.acts())
		request := &service.WebhookRequest{URL: "http://127.0.0.1:9/hook"}
		hook, secret, err := g.CreateWebhook(t.Context(), g.who.admin, request)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(hook.Secret, []byte(secret.Reveal())) || !strings.HasPrefix(secret.Reveal(), "whsec_") {
			t.Error("the secret is stored as it is")
		}
		second := g.hook()
		g.testHook(hook.ID)
		for range 2 {
			done(t, g.Jobs().DisableWebhook(t.Context(), g.who.id, hook.ID))
			done(t, g.DeleteWebhook(t.Context(), g.who.admin, second.ID))
		}
		g.checkActs(t, acts, []wantedAct{
			{"webhook.create", "first admin", hook.ID.String()}, {"webhook.create", "first admin", second.ID.String()},
			{"webhook.test", "first admin", hook.ID.String()},
			{"webhook.disable", ledger.ActorService.Name, hook.ID.String()}, {"webhook.delete", "first admin", second.ID.String()},
		})
		if listed := must[[]*store.WebhookRecord](t)(g.Webhooks(t.Context(), g.who.admin)); len(listed) != 1 || listed[0].DisabledAt == nil {
			t.Errorf("%d endpoints are listed", len(listed))
		}
		done(t, g.DeleteWebhook(t.Context(), g.who.admin, hook.ID))
		if org := must[*ledger.Organization](t)(g.Organization(t.Context(), g.who.admin)); org.Controls.Webhooks != 0 {
			t.Errorf("%d endpoints are counted", org.Controls.Webhooks)
		}
		strict := serve(t, service.Config{Store: g.store, Keys: g.ring, Clock: g.clock.Now})
		_, _, err = strict.CreateWebhook(t.Context(), g.who.admin, request)
		checkCode(t, "a private address", err, fault.CodeInvalid)
		for _, who := range []*service.Caller{g.who.member, newTenant(t, g.Service, "other").admin} {
			if err := g.DeleteWebhook(t.Context(), who, second.ID); err == nil {
				t.Errorf("a %s deletes an endpoint that is not theirs", who.Role)
			}
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// unfinishing is a store in which the next job cannot be finished.
type unfinishing struct {
	store.Store
	fails bool
}

func (u *unfinishing) FinishJob(ctx context.Context, job *store.Job, follow []*store.Job) error {
	if u.fails {
		u.fails = false
		return fmt.Errorf("the disk is busy: %w", store.ErrUnavailable)
	}
	return u.Store.FinishJob(ctx, job, follow)
}

// E-mails to addresses that a chain names are limited, and a notice that is fanned out a second time
// because the store failed does not count twice: everyone is notified.
func TestRetriedMailsCountOnce(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	failing := &unfinishing{Store: g.store}
	g.Service = g.over(failing)
	addresses := []string{"ann@example.com", "bob@example.com", "cem@example.com"}
	chain := request(t, ledger.ParseChainRequest, `{"name":"retried","fallback_approvers":["`+strings.Join(addresses, `","`)+`"]}`)
	opened := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, chain, ""))
	asked := []ledger.ApprovalID{g.ask(opened.ID), g.ask(opened.ID)}
	g.fanOut()
	approval := must[*service.ApprovalView](t)(g.Approval(t.Context(), g.who.agent, asked[0], 0))
	g.clock.Advance(approval.EscalatesAt.Std().Sub(g.clock.Now()))
	for _, id := range asked {
		must[ledger.Time](t)(g.AdvanceApproval(t.Context(), id))
	}
	notices := must[[]*service.Job](t)(g.Jobs().Claim(t.Context(), time.Second, map[string]int{service.JobNotice: 10}))
	for _, notice := range notices {
		failing.fails = true
		if err := g.Jobs().FanOut(t.Context(), notice); err == nil {
			t.Fatal("the job was finished")
		}
		done(t, g.Jobs().FanOut(t.Context(), notice))
	}
	_, deliveries := g.fanOut()
	var to []string
	for _, job := range deliveries {
		to = append(to, must[*service.Delivery](t)(g.Jobs().Delivery(t.Context(), job)).To...)
	}
	if want := slices.Concat(addresses, addresses[:2]); !slices.Equal(to, want) { // one chain may send five in an hour
		t.Errorf("e-mails to %v\nwant %v", to, want)
	}
}
