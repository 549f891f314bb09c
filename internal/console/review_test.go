package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"countersign/internal/browsertest"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// waiter is a client whose call blocks until a person has decided.
func (w *world) waiter(t *testing.T, of *tenant, id ledger.ApprovalID) <-chan *service.ApprovalView {
	t.Helper()
	caller := w.caller(t, of)
	released := make(chan *service.ApprovalView, 1)
	go func() {
		view, err := w.service.Approval(t.Context(), caller, id, time.Hour)
		if err != nil {
			t.Error(err)
		}
		released <- view
	}()
	return released
}

func (b *tab) signIn(t *testing.T, w *world, role ledger.Role) {
	t.Helper()
	b.do(t, chromedp.Navigate(w.server.URL+"/sign-in#"+w.link(t, w.acme, role)), chromedp.WaitVisible(chromedp.ID("ready")))
	b.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
}

func (b *tab) harmless(t *testing.T) {
	t.Helper()
	if ask[bool](t, b, "window.owned === true") {
		t.Error("a script of a recorded text ran")
	}
}

// A person finds what an agent waits for, reads it and decides; the agent's
// client goes on at once.
//
//countersign:race
func TestBrowserReviews(t *testing.T) {
	t.Parallel()
	quoted := strings.ReplaceAll(trap, `"`, `\"`)
	body := `{"agent_name":"` + quoted + `","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":7500,"to":"` + quoted + strings.Repeat("x", 900) + `","lines":[` + strings.Repeat(`"a line",`, 40) + `"the last line"]}}`
	for name, c := range map[string]struct {
		width, height int64
		button        string
		status        ledger.ApprovalStatus
		says          string
	}{
		"approves at a desk": {1280, 900, "button.approve", ledger.ApprovalApproved, "✓ Approved by the member"},
		"denies on a phone":  {360, 740, "button.deny", ledger.ApprovalDenied, "✗ Denied by the member"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{})
			asked := w.waits(t, w.acme, body)
			released := w.waiter(t, w.acme, asked.ID)
			b := openTab(t)
			b.do(t, chromedp.EmulateViewport(c.width, c.height))
			b.signIn(t, w, ledger.RoleMember)
			b.says(t, "Waiting for a person", "7,500.00 USD")
			b.fits(t, "the overview")
			b.follow(t, chromedp.Click(chromedp.CSS(`nav a[href="/approvals"]`)), "/approvals")
			b.says(t, "send_payment", "23 h 59 min", trap)
			b.fits(t, "the list")
			b.follow(t, chromedp.Click(chromedp.CSS(`td a[href^="/approvals/"]`)), page(asked.ID))
			b.says(t, trap, "is above the threshold of 5,000.00 USD", "pay-the-bills", asked.PayloadSHA256)
			b.fits(t, "the approval")
			b.says(t, "the last line")
			if hidden := ask[string](t, b, innerScrolls); hidden != "" {
				t.Errorf("a part of the page is below a fold of its own: %s", hidden)
			}
			b.do(t, chromedp.SendKeys(chromedp.ID("comment"), "seen it"))
			b.follow(t, chromedp.Click(chromedp.CSS(c.button)), page(asked.ID))
			b.says(t, c.says, "seen it")
			b.fits(t, "the decision")
			b.harmless(t)
			b.quiet(t)
			if view := <-released; view.Status != c.status || view.Comment != "seen it" {
				t.Errorf("the client was released with %s and %q", view.Status, view.Comment)
			}
		})
	}
}

// innerScrolls are the elements of the content that hide a part of what is in them.
const innerScrolls = `[...document.querySelectorAll("main *")]
  .filter(e => !e.matches("textarea, thead") && (e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1) && /auto|scroll|hidden/.test(getComputedStyle(e).overflow))
  .map(e => e.tagName + "." + e.className).join(" ")`

// A keyboard is enough, and so is a browser without scripts.
func TestBrowserReviewsByKeyboard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+page(asked.ID)), chromedp.Focus(chromedp.ID("comment")), chromedp.KeyEvent("by keys\t"))
	if got := ask[string](t, b, "document.activeElement.textContent"); got != "Approve" {
		t.Fatalf("after the comment the focus is on %q", got)
	}
	b.follow(t, chromedp.KeyEvent("\r"), page(asked.ID))
	b.says(t, "✓ Approved by the member", "by keys")
}

// A link in a mailbox that is open in the same browser leads to the page, and not
// to a sign-in.
func TestBrowserFollowsALinkFromElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	address, err := url.Parse(w.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate("http://"+browsertest.Elsewhere+":"+address.Port()+"/check"))
	ask[bool](t, b, `(() => { const a = document.createElement("a"); a.id = "mail"; a.href = "`+w.server.URL+page(asked.ID)+`"; a.textContent = "open"; document.querySelector("main").prepend(a); return true })()`)
	b.follow(t, chromedp.Click(chromedp.ID("mail")), page(asked.ID))
	b.says(t, "send_payment", "Approve")
}

// The list shows what came in meanwhile, but not under the hands of a person.
func TestBrowserRefreshesTheList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+"/approvals"))
	b.says(t, "Nothing is waiting")
	w.waits(t, w.acme, payment)
	b.do(t, chromedp.WaitVisible(chromedp.CSS(`td a[href^="/approvals/"]`)))
	b.says(t, "send_payment")
	b.quiet(t)
}

// The list goes on refreshing after a click on a text. While the server does not answer, it stays
// and says so.
func TestBrowserKeepsTheListWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.waits(t, w.acme, payment)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+"/approvals"), chromedp.Click(chromedp.CSS("h1")))
	w.store.down.Store(true)
	b.do(t, chromedp.WaitVisible(chromedp.ID("stale")))
	b.says(t, "The server does not answer", "send_payment")
	w.store.down.Store(false)
	asked := w.waits(t, w.acme, supplier)
	b.do(t, chromedp.WaitVisible(chromedp.CSS(`td a[href="`+page(asked.ID)+`"]`)))
	b.says(t, "Northern Machines Ltd", "send_payment")
	if ask[bool](t, b, `document.getElementById("stale") !== null`) {
		t.Error("the page still says that the server does not answer")
	}
	if title := ask[string](t, b, "document.title"); !strings.HasPrefix(title, "(2) ") {
		t.Errorf("the title is %q, want the number of waiting approvals in it", title)
	}
}

// Whoever runs the organization can do so from a phone.
func TestBrowserAdministersOnAPhone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"auto_pause":{"max_events":1}}`)
	paused := w.open(t, w.acme, "runaway", `{}`, `{}`)
	w.govern(t, w.acme, `["the controller"]`)
	w.complete(t, w.acme, w.waits(t, w.acme, payment).Chain)
	w.key(t, w.acme, trap+strings.Repeat("k", 100), ledger.RoleAgent)
	b := openTab(t)
	b.do(t, chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	b.signIn(t, w, ledger.RoleAdmin)
	b.fits(t, "the overview")
	b.follow(t, chromedp.Click(chromedp.CSS(`form[action$="/resume"] button`)), "/chains/"+paused.String())

	b.do(t, chromedp.Navigate(w.server.URL+"/kill-switch"), chromedp.SendKeys(chromedp.ID("reason"), trap), chromedp.Click(chromedp.CSS(`input[name="confirm"]`)))
	b.follow(t, chromedp.Click(chromedp.CSS("button.danger")), "/kill-switch")
	b.says(t, "The kill switch is active.", trap)
	for _, path := range []string{"/", "/approvals", "/approvals?status=all", "/kill-switch", "/policies", "/settings", "/api-keys", "/signing-keys", "/public-links", "/webhooks", "/audit-log"} {
		b.do(t, chromedp.Navigate(w.server.URL+path))
		ask[bool](t, b, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
		b.says(t, "The kill switch is active.")
		b.fits(t, path)
		b.harmless(t)
	}
	b.do(t, chromedp.Navigate(w.server.URL+"/api-keys"), chromedp.SendKeys(chromedp.ID("name"), "nightly"))
	b.follow(t, chromedp.Click(chromedp.CSS(`form[action="/api-keys"] button`)), "/api-keys")
	b.says(t, "The key nightly was created", "csk_")
	b.fits(t, "the new key")
	b.do(t, chromedp.Navigate(w.server.URL+"/policies"))
	ask[string](t, b, `document.getElementById("document").value = ""`)
	b.do(t, chromedp.SendKeys(chromedp.ID("document"), rules), chromedp.Click(chromedp.CSS(`input[value="yaml"]`)))
	b.follow(t, chromedp.Click(chromedp.CSS(`form[action="/policies/check"] button`)), "/policies/check")
	b.says(t, "Checked: this set can be put in force", "no-deletes")
	b.fits(t, "the checked set")
	b.quiet(t)
}

// What was refused, and what was checked, is in sight after a form has been sent, however much the page
// has above the form.
func TestBrowserShowsWhatWasRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for i := range 20 { // as many as there can be
		hook := url.Values{"url": {fmt.Sprintf("https://hooks.example/%d", i)}}
		admin.post(t, "/webhooks", admin.fill(t, "/webhooks", hook)).expect(t, http.StatusCreated)
	}
	var set strings.Builder
	set.WriteString("rules:\n")
	for i := range 30 {
		fmt.Fprintf(&set, "  - {name: rule-%d, when: 'true', decision: deny, reason: no}\n", i)
	}
	admin.post(t, "/policies", url.Values{"document": {set.String()}, "format": {"yaml"}, "replaces": {"0"}}).expect(t, http.StatusSeeOther)
	b := openTab(t)
	b.do(t, chromedp.Navigate(w.server.URL+"/sign-in#"+w.link(t, w.acme, ledger.RoleAdmin)), chromedp.WaitVisible(chromedp.ID("ready")))
	b.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
	send := func(path, form, says string) {
		t.Helper()
		b.follow(t, chromedp.Click(chromedp.CSS(form)), path)
		b.do(t, chromedp.WaitReady(chromedp.CSS("[autofocus]:focus"))) // browsers focus some time after the page is loaded
		seen := `(() => { const at = document.activeElement, box = at.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight ? at.innerText : "out of sight" })()`
		if got := ask[string](t, b, seen); !strings.Contains(got, says) {
			t.Errorf("after %s the reader sees %q, want %q", path, got, says)
		}
	}
	b.do(t, chromedp.Navigate(w.server.URL+"/webhooks"), chromedp.SendKeys(chromedp.ID("url"), "https://hooks.example/20"))
	send("/webhooks", `form[action="/webhooks"] button`, "20")
	b.do(t, chromedp.Navigate(w.server.URL+"/policies"))
	send("/policies/check", `form[action="/policies/check"] button`, "✓ Checked")
	b.do(t, chromedp.SendKeys(chromedp.ID("document"), "x"))
	send("/policies", `button[formaction="/policies"]`, "Nothing was changed")
}

// However small a phone and however long the name of the key, the header shows what the session may do.
func TestBrowserAlwaysShowsTheRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	b := openTab(t)
	link := w.linkFor(t, w.acme, w.key(t, w.acme, strings.Repeat("a long name ", 10), ledger.RoleMember))
	b.do(t, chromedp.Navigate(w.server.URL+"/sign-in#"+link), chromedp.WaitVisible(chromedp.ID("ready")))
	b.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
	for width := int64(320); width <= 480; width += 10 {
		b.do(t, chromedp.EmulateViewport(width, 740, chromedp.EmulateMobile), chromedp.Navigate(w.server.URL+"/check"))
		const hidden = `(() => { const role = document.querySelector(".role"); return Math.ceil(role.getBoundingClientRect().right - role.parentElement.getBoundingClientRect().right) })()`
		if over := ask[int](t, b, hidden); over > 0 {
			t.Errorf("at %d pixels, %d of the role are cut off", width, over)
		}
		b.fits(t, "the header")
	}
}

// The pages fit windows of every width, from a phone to a wide screen, whatever words people and agents
// choose as names.
func TestBrowserFitsEveryWidth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	long := strings.Repeat("a_very_long_name_without_spaces_", 3)
	request := strings.NewReplacer("treasurer", long, "send_payment", "pay_"+long[:90], "7500", "98765432.1", "ACME Ltd", long).Replace(payment)
	var receipt ledger.ReceiptID
	for range 2 {
		asked := w.waits(t, w.acme, request)
		w.waits(t, w.acme, strings.Replace(payment, "7500", "1234567.5", 1))
		member.post(t, page(asked.ID)+"/approve", decision(asked, "")).expect(t, http.StatusSeeOther)
		receipt = w.complete(t, w.acme, asked.Chain)
	}
	waiting := w.waits(t, w.acme, request)
	if _, err := w.service.OpenChain(t.Context(), w.caller(t, w.acme), &ledger.Chain{Name: long, Environment: long}, ""); err != nil {
		t.Fatal(err)
	}
	w.settings(t, w.acme, `{"auto_pause":{"max_events":1}}`)
	w.record(t, w.acme, w.open(t, w.acme, long, `{}`), harmless) // paused
	admin := w.signedInWith(t, w.acme, w.key(t, w.acme, long, ledger.RoleAdmin))
	admin.post(t, "/signing-keys", url.Values{"name": {long}}).expect(t, http.StatusSeeOther)
	webhook := url.Values{"url": {"https://hooks.example/" + long}, "description": {long}}
	admin.post(t, "/webhooks", admin.fill(t, "/webhooks", webhook)).expect(t, http.StatusCreated)
	set := fmt.Sprintf(`{"rules":[{"name":%[1]q,"when":"chain.name == '%[1]s'","decision":"require_approval","reason":%[1]q,"approvers":[%[1]q]}]}`, long)
	put, err := w.service.PutPolicy(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin), &service.PolicyDocument{Text: []byte(set)})
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.signIn(t, w, ledger.RoleAdmin)
	for _, path := range []string{
		"/", "/approvals", "/approvals?status=all", page(waiting.ID), "/chains", "/chains/" + waiting.Chain.String(), "/receipts", "/receipts/" + receipt.String(),
		"/policies", "/policies/versions/" + put.Version, "/policies/packs/starter", "/settings", "/api-keys", "/signing-keys", "/public-links", "/webhooks", "/audit-log",
	} {
		admin.get(t, path).expect(t, http.StatusOK)
		b.do(t, chromedp.Navigate(w.server.URL+path))
		for _, width := range []int64{320, 360, 480, 640, 769, 800, 900, 961, 1025, 1153, 1280} {
			b.do(t, chromedp.EmulateViewport(width, 800))
			b.fits(t, fmt.Sprintf("%s in a window of %d pixels", path, width))
		}
	}
}

// brokenWords are those in a table's cells that go on in another line. What no
// person reads as a word, such as a hash, may.
const brokenWords = `(() => {
  const broken = [];
  for (const cell of document.querySelectorAll("td")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/(?<![^\s-])[^\s-]{1,24}(?![^\s-])/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(line => Math.round(line.top))).size > 1) broken.push(word[0]);
      }
    }
  }
  return broken.join(" ");
})()`

// At a desk no table has to break its words.
func TestBrowserKeepsWordsWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for i, verdict := range []string{"/approve", "/deny", ""} {
		asked := w.waits(t, w.acme, strings.Replace(payment, "7500", []string{"7500", "1234567.5", "98765432.1"}[i], 1))
		if verdict != "" {
			member.post(t, page(asked.ID)+verdict, decision(asked, "")).expect(t, http.StatusSeeOther)
		}
		w.complete(t, w.acme, asked.Chain)
	}
	waits := w.waits(t, w.acme, payment)
	b := openTab(t)
	b.do(t, chromedp.EmulateViewport(1280, 800))
	b.signIn(t, w, ledger.RoleAdmin)
	for _, path := range []string{
		"/", "/approvals", "/approvals?status=all", "/chains/" + waits.Chain.String(), "/api-keys", "/signing-keys", "/policies", "/webhooks", "/audit-log",
	} {
		b.do(t, chromedp.Navigate(w.server.URL+path))
		ask[bool](t, b, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
		b.fits(t, path)
		if broken := ask[string](t, b, brokenWords); broken != "" {
			t.Errorf("%s breaks %s", path, broken)
		}
	}
	b.quiet(t)
}
