package service_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/notify/slacktest"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// ann and bob are members of Slack.
const ann, bob = "U0ANN", "U0BOB"

// inSlack is an organization whose approvals appear in a Slack for tests, with a key for ann.
type inSlack struct {
	*governed
	at  *slacktest.Slack
	ann *service.NewKey
}

func governInSlack(t *testing.T, db *testdb.Database) *inSlack {
	t.Helper()
	at := slacktest.Start(t)
	app := notify.NewSlack(notify.SlackConfig{Token: ledger.NewSecret(at.Token), SigningSecret: ledger.NewSecret(at.SigningSecret), URL: at.URL})
	t.Cleanup(app.Close)
	g := governWith(t, db, app)
	g.settings(`{"slack_channel":"` + slacktest.Channel + `"}`)
	key, _ := g.newKey(&service.KeyRequest{Name: "ann", Role: ledger.RoleMember, SlackMember: slacktest.Team + "/" + ann})
	return &inSlack{governed: g, at: at, ann: key}
}

// sync does what the worker does with the jobs for Slack. It returns the newest message.
func (g *inSlack) sync() slacktest.Message {
	g.t.Helper()
	jobs, ctx := g.Jobs(), g.t.Context()
	for range 100 {
		claimed := must[[]*service.Job](g.t)(jobs.Claim(ctx, time.Minute, map[string]int{service.JobSlack: 10}))
		if len(claimed) == 0 {
			break
		}
		for _, job := range claimed {
			m := must[*service.SlackMessage](g.t)(jobs.Slack(ctx, job))
			if m == nil {
				done(g.t, jobs.Finish(ctx, job))
				continue
			}
			ts := must[string](g.t)(g.slack.Send(ctx, m.Channel, m.TS, m.Approval))
			done(g.t, jobs.FinishSlack(ctx, job, m, ts))
		}
	}
	messages := g.at.Messages()
	if len(messages) == 0 {
		return slacktest.Message{}
	}
	return messages[len(messages)-1]
}

// asked requests an approval and returns it with its message.
func (g *inSlack) asked() (ledger.ApprovalID, slacktest.Message) {
	g.t.Helper()
	id := g.ask(g.open("slack " + randomName()))
	return id, g.sync()
}

// press lets a member press a button of a message.
func (g *inSlack) press(m slacktest.Message, user, action string) error {
	g.t.Helper()
	return g.send(slacktest.Press{User: user, Action: action, Value: m.Buttons()[action].Value})
}

func (g *inSlack) send(p slacktest.Press) error {
	g.t.Helper()
	if p.At.IsZero() {
		p.At = g.clock.Now()
	}
	r := g.at.Request(g.t, "http://127.0.0.1/", p)
	body := must[[]byte](g.t)(io.ReadAll(r.Body))
	return g.PressSlackButton(g.t.Context(), r.Header.Get("X-Slack-Request-Timestamp"), r.Header.Get("X-Slack-Signature"), body)
}

// told returns what was told to members since the last call.
func (g *inSlack) told(seen *int) string {
	all := g.at.Told()
	news := all[*seen:]
	*seen = len(all)
	return strings.Join(news, "\n")
}

// A member whom an admin has entered at a key decides by pressing a button. The decision is that of
// the key, the audit log names the member, and the message shows the verdict. Pressing again changes
// nothing.
func TestAPressInSlackDecides(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g, seen := governInSlack(t, db), 0
		for _, c := range []struct {
			action, other string
			status        ledger.ApprovalStatus
			headline      string
		}{
			{notify.SlackApprove, notify.SlackDeny, ledger.ApprovalApproved, "Approved"},
			{notify.SlackDeny, notify.SlackApprove, ledger.ApprovalDenied, "Denied"},
		} {
			id, m := g.asked()
			if lines := m.Lines(); !slices.Contains(lines, "Action: send_payment") || !slices.Contains(lines, "Amount: 9,000.00 USD") || lines[0] != "Approval needed" {
				t.Errorf("the message says %q", lines)
			}
			done(t, g.press(m, ann, c.action))
			view := g.view(id)
			if view.Status != c.status || view.Reviewer == nil || view.Reviewer.Key != g.ann.Record.ID || view.Comment != string(c.status)+" in Slack" {
				t.Errorf("%s: the approval is %s, by %+v: %q", c.action, view.Status, view.Reviewer, view.Comment)
			}
			acts := g.acts()
			if act := acts[len(acts)-1]; act.Actor.Key != g.ann.Record.ID || !strings.Contains(string(act.Detail), `"slack_member":"`+slacktest.Team+"/"+ann+`"`) ||
				!strings.Contains(act.Sentence(), "as the Slack member "+slacktest.Team+"/"+ann) {
				t.Errorf("%s: the audit log says %s, in words %q", c.action, act.Detail, act.Sentence())
			}
			again := g.sync()
			if lines := again.Lines(); again.TS != m.TS || lines[0] != c.headline || !slices.Contains(lines, "Reviewer: ann") || len(again.Buttons()) > 0 {
				t.Errorf("%s: the message says %q, and has the buttons %v", c.action, lines, again.Buttons())
			}
			entries, calls := len(g.acts()), len(g.at.Calls())
			done(t, g.press(m, ann, c.action)) // delivered again
			if told := g.told(&seen); told != "" || len(g.acts()) != entries {
				t.Errorf("%s again: told %q, %d entries", c.action, told, len(g.acts())-entries)
			}
			done(t, g.press(m, ann, c.other))
			if told := g.told(&seen); !strings.Contains(told, ann+": The approval is "+string(c.status)+" already") {
				t.Errorf("%s after it: told %q", c.other, told)
			}
			checkStatus(t, g.view(id), c.status)
			if g.sync(); len(g.at.Calls()) != calls+1 {
				t.Errorf("Slack was called %d times for nothing", len(g.at.Calls())-calls-1)
			}
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// Nothing is decided by a press that Slack has not signed lately, with a button that the service did
// not make for exactly this approval and verdict, by a member who is not entered at a key of its
// organization, or with a key that may not decide it now. The member is told why, where it was
// Slack.
func TestPressesThatDecideNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g, seen := governInSlack(t, db), 0
		rival := g.within(t, "rival")
		rival.newKey(&service.KeyRequest{Name: "bob", Role: ledger.RoleAdmin, SlackMember: slacktest.Team + "/" + bob})
		_, other := g.asked()
		id, m := g.asked()
		yes, no := m.Buttons()[notify.SlackApprove].Value, m.Buttons()[notify.SlackDeny].Value
		plain, mac, _ := strings.Cut(yes, ".")
		another, _, _ := strings.Cut(other.Buttons()[notify.SlackApprove].Value, ".")
		const notOurs, notEntered = "belongs to no approval that is here", "you are not entered at an API key here. Your Slack member is "
		for name, c := range map[string]struct {
			press slacktest.Press
			code  fault.Code
			told  string
		}{
			"a forged signature":              {slacktest.Press{User: ann, Value: yes, Secret: "guessed"}, fault.CodeUnauthenticated, ""},
			"an old signature":                {slacktest.Press{User: ann, Value: yes, At: g.clock.Now().Add(-5*time.Minute - 2*time.Second)}, fault.CodeUnauthenticated, ""},
			"a signature of the future":       {slacktest.Press{User: ann, Value: yes, At: g.clock.Now().Add(5*time.Minute + 2*time.Second)}, fault.CodeUnauthenticated, ""},
			"an unreadable user":              {slacktest.Press{User: "../" + ann, Value: yes}, fault.CodeInvalid, ""},
			"a stranger":                      {slacktest.Press{User: "U0EVE", Value: yes}, "", "U0EVE: Nothing was decided: " + notEntered + slacktest.Team + "/U0EVE."},
			"the same id in another team":     {slacktest.Press{User: ann, Value: yes, Team: "T0OTHER"}, "", notEntered + "T0OTHER/" + ann},
			"a member of another key's org":   {slacktest.Press{User: bob, Value: yes}, "", notEntered + slacktest.Team + "/" + bob},
			"no value":                        {slacktest.Press{User: ann}, "", notOurs},
			"a value without a MAC":           {slacktest.Press{User: ann, Value: plain}, "", notOurs},
			"a value with an empty MAC":       {slacktest.Press{User: ann, Value: plain + "."}, "", notOurs},
			"the value of the other button":   {slacktest.Press{User: ann, Value: no}, "", notOurs},
			"the MAC at another approval":     {slacktest.Press{User: ann, Value: another + "." + mac}, "", notOurs},
			"an approval that does not exist": {slacktest.Press{User: ann, Value: "00000000-0000-7000-8000-000000000000." + mac}, "", notOurs},
			"an edited MAC":                   {slacktest.Press{User: ann, Value: plain + "." + strings.ToUpper(mac)}, "", notOurs},
			"the link":                        {slacktest.Press{User: ann, Action: "open"}, "", ""},
			"an action of somebody else":      {slacktest.Press{User: ann, Action: "approve_all", Value: yes}, "", ""},
		} {
			if c.press.Action == "" {
				c.press.Action = notify.SlackApprove
			}
			checkCode(t, name, g.send(c.press), c.code)
			if told := g.told(&seen); !strings.Contains(told, c.told) || (told == "") != (c.told == "") {
				t.Errorf("%s: told %q, want %q", name, told, c.told)
			}
		}
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		refused := func(name string, m slacktest.Message, want string) {
			t.Helper()
			done(t, g.press(m, ann, notify.SlackApprove))
			if told := g.told(&seen); !strings.Contains(told, want) {
				t.Errorf("%s: told %q, want %q", name, told, want)
			}
		}
		g.kill("enough")
		refused("the kill switch", m, "kill switch")
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		g.deactivateKillSwitch()

		g.put(`rules: [{name: deploys, when: "action.action_name == 'deploy'", decision: require_approval, reason: ask, approvers: [carol]}]`)
		named := g.record(g.open("named"), step(t, "deploy", "")).Event.Approval
		refused("a rule that names others", g.sync(), `the key "ann" is not among them`)
		checkStatus(t, g.view(named), ledger.ApprovalPending)

		own := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.callerOf(g.ann), chainNamed(t, "own"), "")).ID
		self := must[*service.Recorded](t)(g.RecordEvent(t.Context(), g.callerOf(g.ann), own, payment(t, gatedAmount, ""))).Event.Approval
		refused("her own action", g.sync(), "The key that recorded an action cannot decide it")
		checkStatus(t, g.view(self), ledger.ApprovalPending)

		late, lateMessage := g.asked()
		g.put(`rules: [{name: no payments, when: "action.action_name == 'send_payment'", decision: deny, reason: closed}]`)
		refused("a rule that denies it by now", lateMessage, "no payments")
		if view := g.view(late); view.Status != ledger.ApprovalDenied || view.Reviewer != nil {
			t.Errorf("what a rule denies by now is %s, by %+v", view.Status, view.Reviewer)
		}
		if lines := g.sync().Lines(); lines[0] != "Denied" || !slices.Contains(lines, "Policy: no payments") {
			t.Errorf("the message says %q", lines)
		}

		must[*ledger.KeyRecord](t)(g.UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: g.ann.Record.ID, SlackMember: new("")}))
		refused("a member who was removed", m, notEntered)
		must[*ledger.KeyRecord](t)(g.UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: g.ann.Record.ID, SlackMember: new(slacktest.Team + "/" + ann)}))
		must[*ledger.KeyRecord](t)(g.RevokeAPIKey(t.Context(), g.who.admin, g.ann.Record.ID))
		refused("a revoked key", m, notEntered)
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		checkIntact(t, g.Service, "acme", 0)
	})
}

func (g *inSlack) callerOf(key *service.NewKey) *service.Caller {
	g.t.Helper()
	return must[*service.Caller](g.t)(g.Authenticate(g.t.Context(), key.Text.Reveal()))
}

// A server without a Slack app believes nobody.
func TestWithoutASlackAppNobodyPresses(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	checkCode(t, "a press", g.PressSlackButton(t.Context(), "1", "v0=", []byte("payload={}")), fault.CodeNotFound)
}

// slowEvent calls a function when an event is read for the first time.
type slowEvent struct {
	store.Store
	once sync.Once
	then func()
}

func (s *slowEvent) Event(ctx context.Context, at store.EventAt) (*ledger.StoredEvent, error) {
	s.once.Do(s.then)
	return s.Store.Event(ctx, at)
}

// A member who is removed from the key after the press arrived and before it is committed decides
// nothing.
func TestAMemberIsRemovedDuringAPress(t *testing.T) {
	t.Parallel()
	g, seen := governInSlack(t, testdb.SQLite(t)), 0
	id, m := g.asked()
	before := g.Service
	g.Service = g.over(&slowEvent{Store: g.store, then: func() {
		must[*ledger.KeyRecord](t)(before.UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: g.ann.Record.ID, SlackMember: new("T1/U1")}))
	}})
	done(t, g.press(m, ann, notify.SlackApprove))
	if told := g.told(&seen); !strings.Contains(told, "you are not entered") {
		t.Errorf("told %q", told)
	}
	checkStatus(t, g.view(id), ledger.ApprovalPending)
}

// Someone who can write the database but has no key file gains nothing: neither by entering himself at
// a key, nor by saying that a message is elsewhere.
func TestForgedSlackRows(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g, seen := governInSlack(t, db), 0
		id, m := g.asked()
		scene := g.scene()
		for what, caller := range map[string]*service.Caller{"a key without a member": g.who.admin, "another's key": g.callerOf(g.ann)} {
			was := scene.keyRow(caller)
			done(t, scene.replace(was, was.with(map[string]any{"slack_member": slacktest.Team + "/" + bob})))
			done(t, g.press(m, bob, notify.SlackApprove))
			if told := g.told(&seen); !strings.Contains(told, "you are not entered") {
				t.Errorf("%s: told %q", what, told)
			}
			checkStatus(t, g.view(id), ledger.ApprovalPending)
			done(t, scene.replace(scene.keyRow(caller), was))
		}
		insert := "INSERT INTO job_names (org_id, name) SELECT org_id, 'slack/" + id.String() + "/9999999999.000100/requested/C0EVIL#AAAA' FROM jobs LIMIT 1"
		if _, err := g.db.Direct(t).ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		done(t, g.press(m, ann, notify.SlackApprove))
		if again := g.sync(); again.TS != m.TS || again.Lines()[0] != "Approved" {
			t.Errorf("the message says %q", again.Lines())
		}
	})
}

// An approval that was decided, and whose row is put back to before, is not asked for again: reviewers
// are refused, in Slack as elsewhere, and no message shows it as waiting.
func TestADecidedApprovalIsPutBack(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g, seen := governInSlack(t, db), 0
		scene := g.scene()
		for _, action := range []string{notify.SlackApprove, notify.SlackDeny} {
			id, m := g.asked()
			before := scene.copyOf("approvals")
			done(t, g.press(m, ann, action))
			decided := g.sync()
			after := scene.copyOf("approvals")
			scene.rollBack(before)

			_, err := g.Approval(t.Context(), g.who.member, id, 0)
			checkCode(t, action+", viewed", err, fault.CodeEvidenceTampered)
			_, err = g.Jobs().Slack(t.Context(), &service.Job{Org: g.who.id, Kind: service.JobSlack, Body: []byte(`{"approval_id":"` + id.String() + `"}`)})
			checkCode(t, action+", shown in Slack", err, fault.CodeEvidenceTampered)
			g.told(&seen)
			done(t, g.press(m, ann, notify.SlackApprove))
			if told := g.told(&seen); !strings.Contains(told, "was changed outside the service") {
				t.Errorf("%s, pressed again: told %q", action, told)
			}
			if got := must[*service.ApprovalView](t)(g.Approval(t.Context(), g.who.agent, id, 0)); got.Status != ledger.ApprovalPending {
				t.Errorf("%s: the agent reads %s", action, got.Status)
			}
			g.auditFinds(action, ledger.CheckChain)
			scene.rollBack(after)
			if again := g.sync(); again.TS != decided.TS || again.Changes != decided.Changes {
				t.Errorf("%s: the message was changed to %q", action, again.Lines())
			}
		}
	})
}

// Whoever deletes where the newest message is, and puts back the job that followed it, does not take
// its buttons away.
func TestTheNewestMessageKeepsItsButtons(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := governInSlack(t, db)
		scene := g.scene()
		id, first := g.asked()
		g.clock.Advance(13 * time.Hour)
		must[ledger.Time](t)(g.AdvanceApproval(t.Context(), id))
		claimed := must[[]*service.Job](t)(g.Jobs().Claim(t.Context(), time.Minute, map[string]int{service.JobSlack: 1}))
		m := must[*service.SlackMessage](t)(g.Jobs().Slack(t.Context(), claimed[0]))
		ts := must[string](t)(g.slack.Send(t.Context(), m.Channel, m.TS, m.Approval))
		done(t, g.Jobs().FinishSlack(t.Context(), claimed[0], m, ts))
		var follow row
		for _, r := range scene.jobRows(service.JobSlack) {
			if strings.Contains(text(r.value("body")), ts) {
				follow = r
			}
		}
		newest := g.sync()
		if newest.TS != ts || len(newest.Buttons()) != 2 || len(g.at.Messages()) != 2 {
			t.Fatalf("the newest message is %q", newest.Lines())
		}
		done(t, scene.exec("DELETE FROM job_names WHERE name LIKE '%"+ts+"%'"))
		done(t, scene.enqueue(follow))
		if again := g.sync(); again.TS != ts || len(again.Buttons()) != 2 {
			t.Errorf("the newest message says %q, with %d buttons", again.Lines(), len(again.Buttons()))
		}
		if first.TS >= ts {
			t.Errorf("messages at %s and %s", first.TS, ts)
		}
	})
}

// Under the two-person rule, the message counts the votes and keeps its buttons until two have
// approved.
func TestSlackCountsVotes(t *testing.T) {
	t.Parallel()
	g := governInSlack(t, testdb.SQLite(t))
	g.newKey(&service.KeyRequest{Name: "bob", Role: ledger.RoleMember, SlackMember: slacktest.Team + "/" + bob})
	g.settings(`{"two_person_approval":true}`)
	id, m := g.asked()
	if !slices.Contains(m.Lines(), "Approved: 0 of 2") {
		t.Errorf("before: %q", m.Lines())
	}
	for range 2 { // the second yes of one person is none
		done(t, g.press(m, ann, notify.SlackApprove))
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		if m = g.sync(); !slices.Contains(m.Lines(), "Approved: 1 of 2, by ann") || len(m.Buttons()) != 2 {
			t.Errorf("after one: %q, %d buttons", m.Lines(), len(m.Buttons()))
		}
	}
	done(t, g.press(m, bob, notify.SlackApprove))
	checkStatus(t, g.view(id), ledger.ApprovalApproved)
	if m = g.sync(); !slices.Contains(m.Lines(), "Approved: 2 of 2, by ann, bob") || len(m.Buttons()) > 0 {
		t.Errorf("after two: %q, %d buttons", m.Lines(), len(m.Buttons()))
	}
}

// A member who cannot be told why nothing was decided, because Slack is down, gets no other answer, and
// nothing is decided.
func TestTellingAMemberFails(t *testing.T) {
	t.Parallel()
	g := governInSlack(t, testdb.SQLite(t))
	id, m := g.asked()
	g.at.Respond(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	done(t, g.press(m, "U0EVE", notify.SlackApprove))
	checkStatus(t, g.view(id), ledger.ApprovalPending)
}
