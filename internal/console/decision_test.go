package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// supplier is a payment with a payee that stands under another name than "to".
const supplier = `{"agent_name":"clerk","action_type":"tool_call","action_name":"pay_supplier","payload":{"amount_usd":18450.75,"supplier":"Northern Machines Ltd"}}`

// busy asks for a payment in a chain with metadata, after other actions.
func (w *world) busy(t *testing.T, of *tenant, before int) *service.ApprovalView {
	t.Helper()
	chain, err := w.service.OpenChain(t.Context(), w.caller(t, of), &ledger.Chain{Name: "month-end", Environment: "production", Metadata: []byte(`{"run":"W46"}`)}, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range before {
		w.record(t, of, chain.ID, strings.Replace(harmless, "look_up", fmt.Sprintf("step-%d", i+1), 1))
	}
	return w.view(t, of, w.record(t, of, chain.ID, supplier).Approval)
}

// The page of an approval tells what the chain says of itself, and the last few things
// that happened in it before. An agent's key sees neither.
func TestApprovalPageTellsWhatHappenedBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member, agent := w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.acme, ledger.RoleAgent)
	long := w.busy(t, w.acme, 7)
	member.get(t, page(long.ID)).expect(t, http.StatusOK, "<dt>run</dt><dd>W46</dd>", "month-end", "production", "Earlier in this chain", "step-3", "step-7", "has 2 more before them").
		without(t, "step-2", "step-1")
	agent.get(t, page(long.ID)).expect(t, http.StatusOK, "Northern Machines Ltd").without(t, "W46", "month-end", "step-7")
	member.get(t, page(w.busy(t, w.acme, 0).ID)).expect(t, http.StatusOK, "the chain’s first action")
	member.get(t, page(w.busy(t, w.acme, 2).ID)).expect(t, http.StatusOK, "step-1", "step-2").without(t, "earlier")
}

// The page of an approval shows the events right before it, also if their payloads are large.
func TestEarlierEventsWithLargePayloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	payloads := make([]string, 7)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`{"note":%q}`, strings.Repeat("x", 400<<10))
	}
	chain := w.open(t, w.acme, "large", payloads...)
	event := w.record(t, w.acme, chain, `{"agent_name":"clerk","action_type":"tool_call","action_name":"pay","payload":{"amount_usd":9000}}`)
	w.signedIn(t, w.acme, ledger.RoleMember).get(t, page(event.Approval)).
		expect(t, http.StatusOK, "The last 5 events", "has 2 more before them", "step-3", "step-4", "step-5", "step-6", "step-7").
		without(t, "step-2", "changed outside the service")
}

// What was changed of the events before is marked on the page of an approval, and what
// was changed of the action itself cannot be approved from any page.
func TestApprovalPageMarksWhatWasChanged(t *testing.T) {
	for name, edit := range map[string]struct{ sqlite, postgres string }{
		"a payload": {
			`UPDATE events SET payload = CAST('{"amount_usd":9000}' AS BLOB) WHERE sequence = %d`,
			`update events set payload = convert_to('{"amount_usd":9000}', 'utf8') where sequence = %d`,
		},
		"an event, gone": {`DELETE FROM events WHERE sequence = %d`, `alter table approvals drop constraint if exists approvals_chain_id_sequence_fkey; delete from events where sequence = %d`},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				w := newWorld(t, setup{db: db})
				member := w.signedIn(t, w.acme, ledger.RoleMember)
				asked := w.busy(t, w.acme, 2)
				change := func(sequence int) {
					t.Helper()
					statement := edit.sqlite
					if db.Kind != "sqlite" {
						statement = edit.postgres
					}
					if _, err := db.Direct(t).ExecContext(t.Context(), fmt.Sprintf(statement, sequence)); err != nil {
						t.Fatal(err)
					}
				}
				change(1)
				member.get(t, page(asked.ID)).expect(t, http.StatusOK, "✗ changed outside the service", "step-2", ">Approve<").without(t, "step-1")
				change(3)
				member.get(t, page(asked.ID)).expect(t, http.StatusInternalServerError, "changed outside the service").without(t, ">Approve<", ">Deny<")
				member.get(t, page(asked.ID)+"/standing").expect(t, http.StatusInternalServerError)
				member.get(t, "/approvals").expect(t, http.StatusOK, "some waiting approvals are not shown").without(t, "pay_supplier", "(1)", "9,000")
				member.post(t, page(asked.ID)+"/approve", decision(asked, "")).expect(t, http.StatusInternalServerError)
			})
		})
	}
}

// A payload that is too large to be read for a list costs the least urgent rows their payees,
// and pushes no approval out of sight.
func TestListsKeepEveryRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.waits(t, w.acme, supplier)
	for i := range 3 {
		w.waits(t, w.acme, fmt.Sprintf(`{"agent_name":"clerk","action_type":"tool_call","action_name":"pay-%d","payload":{"amount_usd":9000,"to":"Ann","text":%q}}`, i, strings.Repeat("x", 600_000)))
	}
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, "/approvals").expect(t, http.StatusOK, "pay-0", "pay-1", "pay-2", "pay_supplier", "<bdi>Northern Machines Ltd</bdi>", "<bdi>Ann</bdi>", ">not read</span>", "<title>(4) Approvals")
	member.get(t, "/").expect(t, http.StatusOK, "pay_supplier", "<title>(4) The acme organization")
}

// What should keep a reviewer from a quick decision stands above the payload, as the
// buttons are in sight at once.
func TestWarningsComeFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for says, more := range map[string]string{
		"also names another recipient":  `,"payee":"Eve"`,
		"also names 2 other recipients": `,"payee":"Eve","recipient":"Mallory"`,
		"not covered by a digest":       `,"note":"[REDACTED]"`,
		"Only the first 262144 of 300":  `,"text":"` + strings.Repeat("x", 300_000) + `"`,
	} {
		asked := w.waits(t, w.acme, strings.Replace(payment, `"to":"ACME Ltd"`, `"to":"ACME Ltd"`+more, 1))
		above, _, _ := strings.Cut(member.get(t, page(asked.ID)).expect(t, http.StatusOK).body, "What it will do")
		if !strings.Contains(above, says) {
			t.Errorf("above the payload it does not say %q", says)
		}
	}
	member.get(t, page(w.waits(t, w.acme, payment).ID)).expect(t, http.StatusOK).without(t, `class="limits"`, `class="alarm"`)
}

// Once an approval is settled, its page offers the next one that the person can decide,
// and never one that they cannot.
func TestTheNextApprovalIsOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	first, second := w.waits(t, w.acme, payment), w.waits(t, w.acme, supplier)
	w.elapsed.Add(int64(time.Second)) // it expires later
	third := w.waits(t, w.acme, strings.Replace(supplier, "Northern Machines Ltd", "Harbour Tools", 1))
	own := w.callerOf(t, w.acme, ledger.RoleMember)
	chain, err := w.service.OpenChain(t.Context(), own, &ledger.Chain{Name: "own"}, "")
	if err != nil {
		t.Fatal(err)
	}
	w.recordAs(t, own, chain.ID, payment)
	w.waits(t, w.rival, payment)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, page(first.ID)).expect(t, http.StatusOK).without(t, "Next:", page(second.ID))
	for _, step := range []struct {
		decide *service.ApprovalView
		says   []string
	}{
		{first, []string{page(second.ID), "Next: <bdi>clerk</bdi> wants to pay 18,450.75 USD to <bdi>Northern Machines Ltd</bdi>", "1 more waiting"}},
		{second, []string{page(third.ID), "Next:", "Harbour Tools"}},
		{third, []string{"Nothing else is waiting for you"}},
	} {
		member.post(t, page(step.decide.ID)+"/deny", decision(step.decide, "")).expect(t, http.StatusSeeOther)
		member.get(t, page(step.decide.ID)).expect(t, http.StatusOK, step.says...)
	}
	w.signedIn(t, w.acme, ledger.RoleAgent).get(t, page(first.ID)).expect(t, http.StatusOK).without(t, "Next:", "Nothing else is waiting")
}

// A page without a next approval does not say that nothing else waits if something does that the person
// can deny, or may be able to decide beyond those that were looked at.
func TestNoNextApprovalIsNotNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	first := w.waits(t, w.acme, payment)
	w.waits(t, w.acme, supplier)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	w.stop(t, w.acme, "drill")
	member.post(t, page(first.ID)+"/deny", decision(first, "")).expect(t, http.StatusSeeOther)
	member.get(t, page(first.ID)).expect(t, http.StatusOK, "Others are waiting that you can deny, but not approve").without(t, "Nothing else")

	w = newWorld(t, setup{})
	settled := w.waits(t, w.acme, payment)
	member = w.signedIn(t, w.acme, ledger.RoleMember)
	member.post(t, page(settled.ID)+"/deny", decision(settled, "")).expect(t, http.StatusSeeOther)
	w.govern(t, w.acme, `["first admin"]`)
	chain := w.open(t, w.acme, "many")
	for n := 1; n <= 51; n++ {
		w.record(t, w.acme, chain, payment)
		if n == 50 {
			member.get(t, page(settled.ID)).expect(t, http.StatusOK, "Nothing else is waiting for you.")
		}
	}
	member.get(t, page(settled.ID)).expect(t, http.StatusOK, "More are waiting.").without(t, "Nothing else")
	w.signedIn(t, w.acme, ledger.RoleAdmin).get(t, page(settled.ID)).expect(t, http.StatusOK, "Next:", "49+ more waiting")
}

// How an approval stands is told to those who see its page, and to no one else.
func TestStandingByRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked, next := w.waits(t, w.acme, payment), w.waits(t, w.acme, payment)
	here := page(asked.ID) + "/standing"
	member, agent := w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.acme, ledger.RoleAgent)
	pending := member.get(t, here).expect(t, http.StatusOK, `"mark":"pending-0-false"`, `"open":true`).without(t, next.ID.String())
	if got := pending.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("the type is %q", got)
	}
	member.get(t, page(asked.ID)).expect(t, http.StatusOK, `data-mark="pending-0-false"`)
	w.signedIn(t, w.acme, ledger.RoleAdmin).post(t, page(asked.ID)+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
	member.get(t, here).expect(t, http.StatusOK, `"mark":"approved-0-false"`, `"open":false`, "This has been approved by first admin.", page(next.ID))
	agent.get(t, here).expect(t, http.StatusOK, `"open":false`).without(t, next.ID.String())
	w.signedIn(t, w.rival, ledger.RoleAdmin).get(t, here).expect(t, http.StatusNotFound).without(t, "approved")
	refused := w.browser(t).get(t, here).expect(t, http.StatusUnauthorized).without(t, "approved")
	if len(refused.Cookies()) != 0 {
		t.Error("the next sign-in would lead to an answer for a script")
	}
	member.get(t, "/approvals/nonsense/standing").expect(t, http.StatusNotFound)
}

// inSight are the buttons of the decision that lie in the window as it was opened, with
// nothing in front of them.
const inSight = `[...document.querySelectorAll("form.decide button")].filter(button => {
  const r = button.getBoundingClientRect();
  const inside = r.top >= 0 && r.left >= 0 && r.bottom <= innerHeight && r.right <= innerWidth;
  return inside && document.elementFromPoint((r.left + r.right) / 2, (r.top + r.bottom) / 2) === button;
}).map(button => button.textContent).join(" ")`

// At a desk and on a phone both buttons are in sight without scrolling, below the
// sentence, whatever the payload, and they stay so to the end of the page.
func TestBrowserShowsTheButtonsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	short := w.busy(t, w.acme, 7)
	long := w.waits(t, w.acme, fmt.Sprintf(`{"agent_name":"%[1]s","action_type":"tool_call","action_name":"%[1]s","payload":{"amount_usd":9000,"to":%[2]q,"lines":[%[3]s1]}}`,
		strings.Repeat("long name ", 9), strings.Repeat("payee ", 500), strings.Repeat("1,", 200)))
	b := openTab(t)
	b.signIn(t, w, ledger.RoleAdmin)
	for _, size := range [][2]int64{{1440, 900}, {390, 844}} {
		for _, asked := range []*service.ApprovalView{short, long} {
			b.do(t, chromedp.EmulateViewport(size[0], size[1]), chromedp.Navigate(w.server.URL+page(asked.ID)))
			for _, place := range []string{"0", "document.body.scrollHeight / 2", "document.body.scrollHeight"} {
				ask[bool](t, b, "scrollTo(0, "+place+"), true")
				if got := ask[string](t, b, inSight); got != "Approve Deny" {
					t.Errorf("at %d × %d, scrolled to %s, in sight is %q", size[0], size[1], place, got)
				}
			}
			ask[bool](t, b, "scrollTo(0, 0), true")
			if !ask[bool](t, b, `(h => h.bottom < document.querySelector("form.decide").getBoundingClientRect().top)(document.querySelector("h1").getBoundingClientRect())`) {
				t.Errorf("at %d × %d the sentence is not whole", size[0], size[1])
			}
			if hidden := ask[string](t, b, innerScrolls); hidden != "" {
				t.Errorf("at %d × %d a part of the page is below a fold of its own: %s", size[0], size[1], hidden)
			}
			b.fits(t, "the approval")
		}
		b.do(t, chromedp.Navigate(w.server.URL+page(short.ID)))
		if got, want := ask[string](t, b, `document.querySelector("h1").innerText`), "clerk wants to pay 18,450.75 USD to Northern Machines Ltd"; got != want {
			t.Errorf("the page begins with %q, want %q", got, want)
		}
	}
	b.quiet(t)
}

// The lists of approvals fit windows of any width, whatever words agents and rules are named with.
func TestBrowserListsApprovalsWithLongNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	long := strings.Repeat("long_name_", 10)
	admin := w.callerOf(t, w.acme, ledger.RoleAdmin)
	set := fmt.Sprintf(`{"rules":[{"name":%q,"when":"true","decision":"require_approval","reason":%q}]}`, long, long)
	if _, err := w.service.PutPolicy(t.Context(), admin, &service.PolicyDocument{Text: []byte(set)}); err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"agent_name":%[1]q,"action_type":"tool_call","action_name":%[1]q,"payload":{"amount_usd":9000,"to":%[1]q}}`, long)
	denied := w.waits(t, w.acme, body)
	w.waits(t, w.acme, body)
	if _, err := w.service.DecideApproval(t.Context(), admin, denied.ID, &ledger.Verdict{}); err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.signIn(t, w, ledger.RoleAdmin)
	for _, width := range []int64{320, 390, 970, 1000, 1160, 1280} {
		b.do(t, chromedp.EmulateViewport(width, 844))
		for _, path := range []string{"/", "/approvals"} {
			b.do(t, chromedp.Navigate(w.server.URL+path))
			b.fits(t, fmt.Sprintf("%s at a width of %d", path, width))
		}
	}
	b.quiet(t)
}

// A page that is open while somebody else decides says so by itself, takes the buttons
// away and leads to the next.
func TestBrowserSaysThatItWasDecidedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked, next := w.waits(t, w.acme, payment), w.waits(t, w.acme, supplier)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+page(asked.ID)))
	ask[bool](t, b, "window.sameDocument = true")
	w.signedIn(t, w.acme, ledger.RoleAdmin).post(t, page(asked.ID)+"/deny", decision(asked, "")).expect(t, http.StatusSeeOther)
	b.do(t, chromedp.WaitVisible(chromedp.CSS("#meanwhile .say")))
	b.says(t, "This has been denied by first admin.")
	if !ask[bool](t, b, `window.sameDocument === true && document.querySelector("form.decide") === null`) {
		t.Error("the page was loaded again, or still has its buttons")
	}
	b.follow(t, chromedp.Click(chromedp.CSS("#meanwhile a")), page(next.ID))
	b.says(t, "Northern Machines Ltd")
	b.follow(t, chromedp.Click(chromedp.CSS("button.approve")), page(next.ID))
	b.says(t, "✓ Approved by the member", "Nothing else is waiting for you")
	b.quiet(t)
}

// A page that is open says if the server no longer answers, and what has changed meanwhile. Once
// nothing has, it says nothing.
func TestBrowserSaysWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+page(asked.ID)))
	w.store.down.Store(true)
	b.do(t, chromedp.WaitVisible(chromedp.CSS("#meanwhile .say")))
	b.says(t, "The server does not answer", "Approve")
	w.store.down.Store(false)
	b.do(t, chromedp.WaitNotPresent(chromedp.CSS("#meanwhile .say")))
	admin.post(t, "/kill-switch/activate", url.Values{"confirm": {"yes"}, "reason": {"odd transfers"}}).expect(t, http.StatusSeeOther)
	b.do(t, chromedp.WaitVisible(chromedp.CSS("#meanwhile .say")))
	b.says(t, "The kill switch is active now: nothing can be approved.")
	admin.post(t, "/kill-switch/deactivate", sureToDeactivate(t, admin)).expect(t, http.StatusSeeOther)
	b.do(t, chromedp.WaitNotPresent(chromedp.CSS("#meanwhile .say")))
}

// A page that is open asks how its approval stands once at a time, however slow the server is.
func TestBrowserPollsOneAtATime(t *testing.T) {
	t.Parallel()
	slow := &slowReads{held: make(chan struct{})}
	w := newWorld(t, setup{limits: slow})
	asked := w.waits(t, w.acme, payment)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+page(asked.ID)))
	slow.on.Store(true)
	b.do(t, chromedp.Sleep(8*time.Second)) // two polls would be due after the first
	if most := slow.most.Load(); most != 1 {
		t.Errorf("the page sent %d requests at once", most)
	}
	close(slow.held)
}

// slowReads holds the reads of a console while it is on, and counts how many it holds.
type slowReads struct {
	countingLimits
	on        atomic.Bool
	now, most atomic.Int32
	held      chan struct{}
}

func (s *slowReads) Read(ctx context.Context, _ *service.Caller) (release func(), err error) {
	if s.on.Load() {
		if n := s.now.Add(1); n > s.most.Load() {
			s.most.Store(n)
		}
		select {
		case <-s.held:
		case <-ctx.Done():
		}
		s.now.Add(-1)
	}
	return func() {}, nil
}

// Who decides is led from one approval to the next.
func TestBrowserGoesOnToTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	first, second := w.waits(t, w.acme, payment), w.waits(t, w.acme, supplier)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+"/approvals"))
	if got := ask[string](t, b, "document.title"); !strings.HasPrefix(got, "(2) Approvals") {
		t.Errorf("the title is %q", got)
	}
	b.do(t, chromedp.Navigate(w.server.URL+page(first.ID)))
	b.follow(t, chromedp.Click(chromedp.CSS("button.approve")), page(first.ID))
	b.says(t, "✓ Approved", "Next: clerk wants to pay 18,450.75 USD to Northern Machines Ltd")
	b.follow(t, chromedp.Click(chromedp.CSS(".next a")), page(second.ID))
	b.follow(t, chromedp.Click(chromedp.CSS("button.deny")), page(second.ID))
	b.says(t, "✗ Denied", "Nothing else is waiting for you")
	b.quiet(t)
}

// Without scripts both buttons are in sight too, the decision is taken, and a page that
// shows an older standing says so when it is used.
func TestBrowserDecidesWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	first, second := w.waits(t, w.acme, payment), w.waits(t, w.acme, supplier)
	b := openTab(t)
	b.do(t, chromedp.EmulateViewport(390, 844))
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}), chromedp.Navigate(w.server.URL+page(first.ID)))
	if got := ask[string](t, b, inSight); got != "Approve Deny" {
		t.Errorf("in sight is %q", got)
	}
	b.follow(t, chromedp.Click(chromedp.CSS("button.approve")), page(first.ID))
	b.says(t, "✓ Approved by the member")
	b.follow(t, chromedp.Click(chromedp.CSS(".next a")), page(second.ID))
	w.signedIn(t, w.acme, ledger.RoleAdmin).post(t, page(second.ID)+"/deny", decision(second, "")).expect(t, http.StatusSeeOther)
	b.follow(t, chromedp.Click(chromedp.CSS("button.approve")), page(second.ID)+"/approve")
	b.says(t, "the first decision stands", "✗ Denied by first admin")
}
