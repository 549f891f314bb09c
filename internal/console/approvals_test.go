package console_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// A reviewer sees what is asked, decides it with a comment, and the first decision
// stands. Looking at it decides nothing.
func TestReviewerDecides(t *testing.T) {
	t.Parallel()
	for verb, c := range map[string]struct {
		status     ledger.ApprovalStatus
		says, does string
	}{
		"approve": {ledger.ApprovalApproved, "✓ Approved by the member", "What it was allowed to do"},
		"deny":    {ledger.ApprovalDenied, "✗ Denied by the member", "What it would have done"},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{})
			asked := w.waits(t, w.acme, payment)
			member, here := w.signedIn(t, w.acme, ledger.RoleMember), page(asked.ID)
			member.get(t, "/approvals").expect(t, http.StatusOK, here, "treasurer", "send_payment", "7,500.00 USD", "23 h 59 min", "is above the threshold", "pay-the-bills", "staging", "<bdi>ACME Ltd</bdi>", "<title>(1) Approvals")
			member.get(t, here).expect(t, http.StatusOK, "<bdi>treasurer</bdi> wants to pay 7,500.00 USD to <bdi>ACME Ltd</bdi></h1>", "<dt>to</dt><dd>ACME Ltd</dd>", "send_payment", "is above the threshold of 5,000.00 USD", "financial_approval_threshold",
				"&#34;to&#34;: &#34;ACME Ltd&#34;", asked.PayloadSHA256, "pay-the-bills", ">Approve<", ">Deny<", "What it will do")
			for _, path := range []string{here + "/approve", here + "/deny"} {
				member.get(t, path).expect(t, http.StatusMethodNotAllowed)
			}
			if status := w.view(t, w.acme, asked.ID).Status; status != ledger.ApprovalPending {
				t.Fatalf("looking at it made the approval %s", status)
			}
			answered := member.post(t, here+"/"+verb, decision(asked, "I called them")).expect(t, http.StatusSeeOther)
			if to := answered.Header.Get("Location"); to != here {
				t.Errorf("the decision leads to %q, want %q", to, here)
			}
			member.get(t, here).expect(t, http.StatusOK, c.says, c.does, "I called them", "verified", "signature valid").without(t, ">Approve<", ">Deny<", "What it will do")
			member.get(t, "/approvals").expect(t, http.StatusOK, "Nothing is waiting", here, "by the member", "pay-the-bills", "<bdi>ACME Ltd</bdi>", "<title>Approvals")
			decided := w.view(t, w.acme, asked.ID)
			if decided.Status != c.status || decided.Comment != "I called them" || decided.Reviewer.Name != "the member" {
				t.Errorf("stored is %s by %v with %q", decided.Status, decided.Reviewer, decided.Comment)
			}
			// Sent again it changes nothing; the opposite is refused.
			member.post(t, here+"/"+verb, decision(asked, "")).expect(t, http.StatusSeeOther)
			other := map[string]string{"approve": "deny", "deny": "approve"}[verb]
			member.post(t, here+"/"+other, decision(asked, "")).expect(t, http.StatusConflict, "already, and the first decision stands", c.says)
		})
	}
}

// A payment of an amount in another currency, or of none at all, is not shown as one of nothing: neither in
// the lists, nor in the sentence and the facts of its page, nor among the earlier events of another.
func TestAmountsThatAreNotKnownAreNotNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "abroad")
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for _, payload := range []string{`{"amount":50000,"currency":"EUR","beneficiary":"Ann"}`, `{"beneficiary":"Ann"}`} {
		event := w.record(t, w.acme, chain, `{"agent_name":"clerk","action_type":"tool_call","action_name":"wire_transfer","payload":`+payload+`}`)
		for _, path := range []string{"/", "/approvals", "/approvals?status=all"} {
			member.get(t, path).expect(t, http.StatusOK, ">not known in USD<").without(t, `class="figure"><span class="none">none`)
		}
		member.get(t, page(event.Approval)).expect(t, http.StatusOK, "<bdi>clerk</bdi> wants to transfer an amount that is not known in US dollars to <bdi>Ann</bdi></h1>",
			`<dt>Amount</dt><dd><span class="none">not known in USD`)
	}
	after := w.record(t, w.acme, chain, payment)
	shown := member.get(t, page(after.Approval)).expect(t, http.StatusOK, "<dt>Amount</dt><dd><span class=\"amount\">7,500.00 USD")
	if n := strings.Count(shown.body, `data-label="Amount" class="figure"><span class="none">not known in USD`); n != 2 {
		t.Errorf("%d earlier events have an amount that is not known, want 2", n)
	}
}

// A reviewer is told of what was taken out of a payload without a digest, by its place,
// and of the digests where there are some.
func TestReviewersAreToldWhatIsNotBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	ask := func(payload string) *service.ApprovalView {
		return w.waits(t, w.acme, strings.Replace(payment, `"to":"ACME Ltd"`, payload, 1))
	}
	const alarm = "not covered by a digest"
	member.get(t, page(ask(`"to":"ACME Ltd"`).ID)).expect(t, http.StatusOK).without(t, alarm, "covered by digests")
	bound := ask(`"password":"hunter2"`)
	member.get(t, page(bound.ID)).expect(t, http.StatusOK, "covered by digests", *bound.RedactionsSHA256).without(t, alarm)
	member.get(t, page(ask(`"to":"[REDACTED]"`).ID)).expect(t, http.StatusOK, alarm, "<code>/to</code>").without(t, "covered by digests, whose", "and others")
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf(`"n%02d":"cut...[truncated]"`, i))
	}
	member.get(t, page(ask(strings.Join(many, ",")).ID)).expect(t, http.StatusOK, alarm, "<code>/n09</code>", "and others").without(t, "<code>/n10</code>")
}

// A decision that is not possible is refused with the reason, changes nothing and
// keeps what was typed.
func TestDecisionsThatAreRefused(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		before func(*testing.T, *world) // before the action is recorded
		after  func(*testing.T, *world, *service.ApprovalView)
		form   url.Values // nil: the one of the page
		body   string     // "": a payment
		status int
		says   string
		stands ledger.ApprovalStatus
		page   []string // what the page says beforehand
	}{
		{
			name:  "expired",
			after: func(_ *testing.T, w *world, _ *service.ApprovalView) { w.elapsed.Store(int64(2 * time.Hour)) }, before: func(t *testing.T, w *world) {
				w.settings(t, w.acme, `{"approval_timeout_hours":1}`)
			},
			status: http.StatusConflict, says: "The approval expired at", stands: ledger.ApprovalTimedOut, page: []string{"Expired without a decision"},
		},
		{
			name:   "stopped",
			after:  func(t *testing.T, w *world, _ *service.ApprovalView) { w.stop(t, w.acme, "odd transfers") },
			status: http.StatusConflict, says: "The kill switch is active", stands: ledger.ApprovalPending,
			page: []string{"Nothing can be approved until an admin deactivates it", ">Deny<"},
		},
		{
			name:   "not among the approvers",
			before: func(t *testing.T, w *world) { w.govern(t, w.acme, `["the controller"]`) }, body: harmless,
			status: http.StatusForbidden, says: "is not among them", stands: ledger.ApprovalPending,
			page: []string{"By policy, only these may decide: the controller", "ask-first"},
		},
		{
			name:   "another payload",
			form:   url.Values{"payload_sha256": {strings.Repeat("0", 64)}, "comment": {"keep this"}},
			status: http.StatusConflict, says: "another payload than the one you saw", stands: ledger.ApprovalPending, page: []string{">Approve<"},
		},
		{
			name: "no payload", form: url.Values{"comment": {"keep this"}},
			status: http.StatusUnprocessableEntity, says: "which payload you read", stands: ledger.ApprovalPending,
		},
		{
			name: "a comment that is too long", form: url.Values{"payload_sha256": {"x"}, "comment": {strings.Repeat("é", 2001)}},
			status: http.StatusUnprocessableEntity, says: "Comment must", stands: ledger.ApprovalPending,
		},
		{
			name: "a form that is no text", form: url.Values{"payload_sha256": {"x"}, "comment": {"\xff"}},
			status: http.StatusUnprocessableEntity, says: "cannot be read", stands: ledger.ApprovalPending,
		},
		{
			name: "a form that is too large", form: url.Values{"comment": {strings.Repeat("x", 300_000)}},
			status: http.StatusRequestEntityTooLarge, says: "larger than 262144 bytes", stands: ledger.ApprovalPending,
		},
		{
			name:   "the chain is completed",
			after:  func(t *testing.T, w *world, asked *service.ApprovalView) { w.complete(t, w.acme, asked.Chain) },
			status: http.StatusConflict, says: "The approval is cancelled already", stands: ledger.ApprovalCancelled, page: []string{"The chain was completed before anyone decided"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{})
			if c.before != nil {
				c.before(t, w)
			}
			asked := w.waits(t, w.acme, cmp.Or(c.body, payment))
			member := w.signedIn(t, w.acme, ledger.RoleMember)
			if c.after != nil {
				c.after(t, w, asked)
			}
			member.get(t, page(asked.ID)).expect(t, http.StatusOK, c.page...)
			form := c.form
			if form == nil {
				form = decision(asked, "keep this")
			}
			refused := member.post(t, page(asked.ID)+"/approve", form).expect(t, c.status, c.says, `role="alert"`)
			if c.status == http.StatusConflict && c.stands.Open() {
				refused.expect(t, c.status, "keep this") // what was typed is not lost
			}
			if got := w.view(t, w.acme, asked.ID); got.Status != c.stands {
				t.Errorf("the approval is %s, want %s", got.Status, c.stands)
			}
		})
	}
}

// The page of an approval offers no decision to the key that asked for it, and
// refuses one that it sends.
func TestNobodyDecidesTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	own := w.callerOf(t, w.acme, ledger.RoleMember)
	chain, err := w.service.OpenChain(t.Context(), own, &ledger.Chain{Name: "own"}, "")
	if err != nil {
		t.Fatal(err)
	}
	asked := w.view(t, w.acme, w.recordAs(t, own, chain.ID, payment).Approval)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, page(asked.ID)).expect(t, http.StatusOK, "was recorded with your own key. Another person has to decide").without(t, ">Approve<", ">Deny<")
	for _, verb := range []string{"/approve", "/deny"} {
		member.post(t, page(asked.ID)+verb, decision(asked, "")).expect(t, http.StatusForbidden, "cannot decide it: use another key")
	}
	w.signedIn(t, w.acme, ledger.RoleAdmin).post(t, page(asked.ID)+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
}

// Under the two-person rule the page shows the first approval and waits for a second
// person.
func TestTwoPeopleApprove(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"two_person_approval":true}`)
	asked := w.waits(t, w.acme, payment)
	first, second := w.signedIn(t, w.acme, ledger.RoleMember), w.signedInWith(t, w.acme, w.key(t, w.acme, "the second", ledger.RoleMember))
	here := page(asked.ID)
	first.get(t, here).expect(t, http.StatusOK, "two people have to approve")
	first.post(t, here+"/approve", decision(asked, "fine by me")).expect(t, http.StatusSeeOther)
	first.get(t, here).expect(t, http.StatusOK, "One of two approvals given", "the member approved", "fine by me", "You gave the first of two", ">Deny<").without(t, ">Approve<")
	first.post(t, here+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
	second.get(t, here).expect(t, http.StatusOK, "One of two approvals given", ">Approve<")
	if got := w.view(t, w.acme, asked.ID); !got.Status.Open() {
		t.Fatalf("one person made the approval %s", got.Status)
	}
	second.post(t, here+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
	second.get(t, here).expect(t, http.StatusOK, "✓ Approved by the second")
}

// The page shows a yes that does not count any more, with the reason, and asks for two
// others.
func TestAYesThatDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"two_person_approval":true}`)
	asked := w.waits(t, w.acme, payment)
	leaver := w.key(t, w.acme, "the leaver", ledger.RoleMember)
	here := page(asked.ID)
	w.signedInWith(t, w.acme, leaver).post(t, here+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
	if _, err := w.service.RevokeAPIKey(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin), leaver.Record.ID); err != nil {
		t.Fatal(err)
	}
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, here).expect(t, http.StatusOK, "No approval counts any longer", "the leaver approved", "the key was revoked", "Two people have", ">Approve<")
	member.post(t, here+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
	member.get(t, here).expect(t, http.StatusOK, "One of two approvals given", "the key was revoked", "You gave the first of two")
}

// A yes that the rules deny by now is refused with what to do, and the page says by
// which rule the approval ended.
func TestTheRulesChangedWhileItWaited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	text := `{"rules":[{"name":"freeze","when":"true","decision":"deny","reason":"nothing is paid in May"}]}`
	if _, err := w.service.PutPolicy(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin), &service.PolicyDocument{Text: []byte(text)}); err != nil {
		t.Fatal(err)
	}
	member, here := w.signedIn(t, w.acme, ledger.RoleMember), page(asked.ID)
	member.post(t, here+"/approve", decision(asked, "")).expect(t, http.StatusConflict, "denies the action now", "record the action again", "✗ Denied by the rule freeze")
	member.get(t, here).expect(t, http.StatusOK, "✗ Denied by the rule freeze", "othing is paid in May", "an admin has to change the rule").without(t, ">Approve<", ">Deny<")
}

// An agent sees only the approvals of its own chains and decides none. Strangers see
// nothing of them.
func TestApprovalsByRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	here := page(asked.ID)
	agent := w.signedIn(t, w.acme, ledger.RoleAgent)
	otherAgent := w.signedInWith(t, w.acme, w.key(t, w.acme, "another agent", ledger.RoleAgent))
	stranger, nobody := w.signedIn(t, w.rival, ledger.RoleAdmin), w.browser(t)
	const ok, missing, unauthorized = http.StatusOK, http.StatusNotFound, http.StatusUnauthorized
	agent.get(t, "/approvals").expect(t, ok, here, "send_payment")
	agent.get(t, here).expect(t, ok, "an agent’s key").without(t, ">Approve<", ">Deny<", "/chains/")
	otherAgent.get(t, "/approvals").expect(t, ok, "Nothing is waiting").without(t, "send_payment")
	stranger.get(t, "/approvals").expect(t, ok, "Nothing is waiting").without(t, "send_payment")
	nobody.get(t, "/approvals").expect(t, unauthorized).without(t, "send_payment")
	for b, status := range map[*browser]int{otherAgent: missing, stranger: missing, nobody: unauthorized} {
		b.get(t, here).expect(t, status).without(t, "send_payment")
	}
	for b, status := range map[*browser]int{agent: http.StatusForbidden, otherAgent: http.StatusForbidden, stranger: missing, nobody: unauthorized} {
		for _, verb := range []string{"/approve", "/deny"} {
			b.post(t, here+verb, decision(asked, "")).expect(t, status).without(t, "send_payment")
		}
	}
	if got := w.view(t, w.acme, asked.ID); got.Status != ledger.ApprovalPending {
		t.Errorf("the approval is %s", got.Status)
	}
	for _, bad := range []string{"/approvals/nonsense", "/approvals/00000000-0000-4000-8000-000000000000"} {
		agent.get(t, bad).expect(t, missing)
	}
}

// A decision that another site sends through a signed-in browser is refused.
func TestDecisionsFromOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for _, header := range []http.Header{{"Sec-Fetch-Site": {"cross-site"}}, {"Sec-Fetch-Site": {"same-site"}}, {"Origin": {"https://attacker.example"}}, {"Origin": {"null"}}} {
		member.send(t, http.MethodPost, page(asked.ID)+"/approve", decision(asked, ""), header).expect(t, http.StatusForbidden, "another site")
	}
	if got := w.view(t, w.acme, asked.ID); got.Status != ledger.ApprovalPending {
		t.Errorf("the approval is %s", got.Status)
	}
}

// Approvals can be filtered by status and paged, each listed once.
func TestApprovalsAreFilteredAndTurned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	chain := w.open(t, w.acme, "many")
	for i := range 23 {
		body := strings.Replace(payment, "send_payment", fmt.Sprintf("pay-%02d", i), 1)
		asked := w.view(t, w.acme, w.record(t, w.acme, chain, body).Approval)
		if verb := []string{"", "approve", "deny"}[min(i, 2)]; verb != "" {
			member.post(t, page(asked.ID)+"/"+verb, decision(asked, "")).expect(t, http.StatusSeeOther)
		}
	}
	member.get(t, "/approvals").expect(t, http.StatusOK, "pay-00", "Time left", "pay-22", "Recently settled")
	member.get(t, "/approvals?status=approved").expect(t, http.StatusOK, "pay-01").without(t, "pay-00", "pay-02")
	all := member.get(t, "/approvals?status=all").expect(t, http.StatusOK, "pay-22", "pay-03").without(t, "pay-02")
	member.get(t, next(t, all)).expect(t, http.StatusOK, "pay-02", "pay-00", "← Newest").without(t, "pay-03")
	denied := member.get(t, "/approvals?status=denied").expect(t, http.StatusOK, "pay-03").without(t, "pay-02")
	member.get(t, next(t, denied)).expect(t, http.StatusOK, "pay-02").without(t, "pay-01", "Older →")
	for _, bad := range []string{"?status=nonsense", "?before=x", "?before_id=x", "?before=2026-01-01T00:00:00.000Z"} {
		member.get(t, "/approvals"+bad).expect(t, http.StatusUnprocessableEntity)
	}
}

// If more approvals wait than the list shows, it shows those that expire first, whenever they were
// requested, and leads to the others. It does not say that nothing was settled if it did not look that
// far.
func TestTheMostUrgentApprovalsAreListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	settled := w.waits(t, w.acme, supplier)
	member.post(t, page(settled.ID)+"/deny", decision(settled, "")).expect(t, http.StatusSeeOther)
	first := w.waits(t, w.acme, payment)
	for range 49 {
		w.record(t, w.acme, first.Chain, payment)
	}
	w.elapsed.Add(int64(time.Second)) // it expires last
	last := w.record(t, w.acme, first.Chain, payment).Approval
	const pending = "/approvals?status=pending"
	list := member.get(t, "/approvals").expect(t, http.StatusOK, "(50&#43;) Approvals", "These are the most urgent", page(first.ID), `<a href="`+pending+`">`, "All of the newest approvals still wait").
		without(t, page(last), "No approvals.")
	member.get(t, next(t, list)).expect(t, http.StatusOK)
	older := member.get(t, pending).expect(t, http.StatusOK, "Status: pending", "pending</a>", page(last))
	older = member.get(t, next(t, older)).expect(t, http.StatusOK)
	member.get(t, next(t, older)).expect(t, http.StatusOK, page(first.ID)).without(t, page(settled.ID))
}

// Texts of an agent or a reviewer are escaped on every page, and characters that
// reorder text are shown as escapes.
func TestApprovalTextsAreEscapedAndVisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	quoted := string(canon.AppendString(nil, hostile))
	body := strings.ReplaceAll(`{"agent_name":~,"action_type":~,"action_name":~,"payload":{"amount_usd":9000,~:~,"turned":"\u202e000,9"},"metadata":{"category":"financial"}}`, "~", quoted)
	asked := w.waits(t, w.acme, body)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for _, path := range []string{"/", "/approvals", page(asked.ID)} {
		member.get(t, path).expect(t, http.StatusOK, "&lt;script&gt;").without(t, "<script>", "<img src=x", `"owned"`)
	}
	member.get(t, page(asked.ID)).expect(t, http.StatusOK, `\u202e000,9`).without(t, "\u202e")
	refused := url.Values{"payload_sha256": {"x"}, "comment": {hostile + "</textarea>"}}
	member.post(t, page(asked.ID)+"/deny", refused).expect(t, http.StatusConflict, "&lt;script&gt;").without(t, "<script>", "<img src=x")
	member.post(t, page(asked.ID)+"/deny", decision(asked, hostile)).expect(t, http.StatusSeeOther)
	member.get(t, page(asked.ID)).expect(t, http.StatusOK, "&lt;script&gt;").without(t, "<script>", "<img src=x")
}

// A large payload is shown whole up to a limit, and beyond it the page says how much
// is shown.
func TestLargePayloadIsReadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for size, says := range map[int]string{50_000: `&#34;amount_usd&#34;: 9000`, 400_000: "Only the first 262144 of 400"} {
		body := fmt.Sprintf(`{"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":{"amount_usd":9000,"text":%q}}`, strings.Repeat("x", size))
		asked := w.waits(t, w.acme, body)
		member.get(t, page(asked.ID)).expect(t, http.StatusOK, says, asked.PayloadSHA256)
	}
}

// The page of an approval names every rule that applies, not only the one that
// decided.
func TestApprovalPageShowsAllRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	policy := `{"rules":[{"name":"second-pair-of-eyes","when":"action.has_amount","decision":"require_approval","reason":"Payments are looked at."}]}`
	caller, err := w.service.Authenticate(t.Context(), w.acme.keys[ledger.RoleAdmin].Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.service.PutPolicy(t.Context(), caller, &service.PolicyDocument{Text: []byte(policy)}); err != nil {
		t.Fatal(err)
	}
	chain := w.open(t, w.acme, "payments")
	event := w.record(t, w.acme, chain, `{"agent_name":"clerk","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":9000}}`)
	admin.get(t, "/approvals/"+event.Approval.String()).expect(t, http.StatusOK, "All rules that apply", "second-pair-of-eyes", "financial_approval_threshold", "Payments are looked at.")
}
