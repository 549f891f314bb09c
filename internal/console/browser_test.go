package console_test

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"countersign/internal/browsertest"
	"countersign/internal/ledger"
)

// tab is a real browser's tab, with everything that its console said.
type tab struct {
	ctx     context.Context
	console func(yield func(chromedp.ConsoleMessage, error) bool)
}

func TestMain(m *testing.M) {
	code := m.Run()
	browsertest.Stop()
	os.Exit(code)
}

func openTab(t *testing.T) *tab {
	t.Helper()
	ctx := browsertest.Open(t, 5*time.Minute)
	return &tab{ctx: ctx, console: chromedp.Console(ctx)}
}

func (b *tab) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// follow does what leads to another page, and waits until that is there.
func (b *tab) follow(t *testing.T, step chromedp.Action[chromedp.Void], path string) {
	t.Helper()
	if _, err := chromedp.RunResponse(b.ctx, step); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, b, "location.pathname"); got != path {
		t.Fatalf("the browser is at %s, want %s:\n%s", got, path, b.text(t))
	}
}

func (b *tab) text(t *testing.T) string {
	t.Helper()
	return ask[string](t, b, "document.body.innerText")
}

func (b *tab) says(t *testing.T, texts ...string) {
	t.Helper()
	page := b.text(t)
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %q:\n%s", text, page)
		}
	}
}

func ask[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// quiet checks that the console said nothing: no error of a script, no file that
// is missing, no breach of the content policy.
func (b *tab) quiet(t *testing.T) {
	t.Helper()
	const last = "the last message"
	ask[bool](t, b, `console.log("`+last+`"), true`)
	for message, err := range b.console {
		if err != nil {
			t.Fatal(err)
		}
		if message.Text == last {
			return
		}
		t.Errorf("the browser's console says %s", message)
	}
	t.Fatal("the browser's console ended early")
}

func (b *tab) fits(t *testing.T, what string) {
	t.Helper()
	if over := ask[int](t, b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); over > 0 {
		t.Errorf("%s is %d pixels wider than the screen", what, over)
	}
}

// trap marks the window of a page in which it runs.
const trap = `<script>window.owned=true</script><img src=x onerror="window.owned=true">`

// In a real browser a person signs in, reads chains and receipts and signs out. The
// link leaves the address bar, no recorded script runs, and the pages fit a phone.
func TestBrowserSignsInAndLooksAround(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	quoted := strings.ReplaceAll(trap, `"`, `\"`)
	chain := w.open(t, w.acme, trap, `{"`+quoted+`":"`+quoted+`"}`, `{"long":"`+strings.Repeat("x", 3000)+`"}`)
	receipt := w.complete(t, w.acme, chain)
	link := w.link(t, w.acme, ledger.RoleMember)
	b := openTab(t)

	b.do(t, chromedp.Navigate(w.server.URL+"/sign-in#"+link), chromedp.WaitVisible(chromedp.ID("ready")), chromedp.WaitNotVisible(chromedp.ID("link")))
	if address := ask[string](t, b, "location.href"); strings.Contains(address, link) {
		t.Error("the address bar still shows the link")
	}
	history, err := chromedp.Run(b.ctx, chromedp.NavigationEntries())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range history.Entries {
		if strings.Contains(entry.URL, link) {
			t.Error("the history still holds the link")
		}
	}
	b.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
	b.says(t, "The acme organization", trap, "✓ verified")
	if cookie := ask[string](t, b, "document.cookie"); cookie != "" {
		t.Error("a script can read the session's cookie")
	}

	b.follow(t, chromedp.Click(chromedp.CSS(`a[href^="/chains/"]`)), "/chains/"+chain.String())
	b.do(t, chromedp.Click(chromedp.CSS("td details summary")))
	b.says(t, trap, "This receipt is valid", quoted)
	b.follow(t, chromedp.Click(chromedp.CSS(`p a[href^="/receipts/"]`)), "/receipts/"+receipt.String())
	b.says(t, "This receipt is valid", "none: this is the first")

	phone := chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile)
	for _, path := range []string{"/", "/sign-in", "/check", "/chains/" + chain.String(), "/receipts/" + receipt.String()} {
		b.do(t, phone, chromedp.Navigate(w.server.URL+path))
		ask[bool](t, b, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
		b.fits(t, path)
		if ask[bool](t, b, "window.owned === true") {
			t.Errorf("a script of a recorded text ran on %s", path)
		}
	}
	b.do(t, chromedp.Navigate(w.server.URL+"/check"), chromedp.SendKeys(chromedp.ID("receipt_id"), receipt.String()))
	b.follow(t, chromedp.Click(chromedp.CSS("main button")), "/check")
	b.says(t, "This receipt is valid")
	b.fits(t, "the verdict")
	b.follow(t, chromedp.Click(chromedp.CSS(".who button")), "/")
	b.says(t, "Proof of what agents did")
	b.fits(t, "the start page")
	b.quiet(t)
}

// A button that is pressed twice sends its form once. A page that comes back from the browser's cache
// can send it again.
func TestBrowserSendsAFormOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	b := openTab(t)
	b.signIn(t, w, ledger.RoleAdmin)
	b.do(t, chromedp.Navigate(w.server.URL+"/signing-keys"))
	ask[bool](t, b, `window.sent = 0, window.addEventListener("submit", event => {
  window.sent += event.defaultPrevented ? 0 : 1;
  event.preventDefault();
}), true`)
	const press, sent = `document.querySelector('form[action="/signing-keys"] button').click()`, "window.sent"
	if got := ask[int](t, b, press+","+press+","+sent); got != 1 {
		t.Errorf("two presses send the form %d times", got)
	}
	if got := ask[int](t, b, `window.dispatchEvent(new PageTransitionEvent("pageshow")),`+press+","+sent); got != 2 {
		t.Errorf("after a return to the page, the form was sent %d times, want 2", got)
	}
	b.quiet(t)
}

// Over plain HTTP a browser does not say which site a form comes from, and must
// be brought to tell its origin instead.
func TestBrowserSignsInOverPlainHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	address, err := url.Parse(w.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.do(t, chromedp.Navigate("http://"+browsertest.Elsewhere+":"+address.Port()+"/sign-in#"+w.link(t, w.acme, ledger.RoleAdmin)), chromedp.WaitVisible(chromedp.ID("ready")))
	if ask[bool](t, b, "isSecureContext") {
		t.Fatal("the browser trusts this address, so the test shows nothing")
	}
	// The button has the focus: a keyboard is enough.
	b.follow(t, chromedp.KeyEvent("\r"), "/")
	b.says(t, "The acme organization", "admin")
	b.quiet(t)
}

// A browser without scripts can sign in by pasting the link.
func TestBrowserSignsInWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	link := w.server.URL + "/sign-in#" + w.link(t, w.acme, ledger.RoleMember)
	b := openTab(t)
	b.do(t, chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	b.do(t, chromedp.Navigate(link), chromedp.WaitNotVisible(chromedp.ID("ready")), chromedp.SendKeys(chromedp.ID("link"), link))
	b.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
	b.says(t, "The acme organization")
}

// A page on paper has a long payload as a whole, is dark on white whatever colours the screen has,
// and shows nothing to press.
func TestBrowserPrintsPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	lines := strings.Repeat(`"a line of the report",`, 200) + `"the last"`
	chain := w.open(t, w.acme, "reporting", `{"report":[`+lines+`]}`)
	receipt := w.complete(t, w.acme, chain)
	waiting := w.waits(t, w.acme, payment)
	b := openTab(t)
	b.signIn(t, w, ledger.RoleAdmin)
	// The width of A4 without its margins.
	b.do(t, chromedp.EmulateViewport(720, 1000), emulateMedia("print", "dark"))
	for _, path := range []string{"/chains/" + chain.String(), "/receipts/" + receipt.String(), page(waiting.ID), "/audit-log"} {
		b.do(t, chromedp.Navigate(w.server.URL+path))
		b.fits(t, path)
		if colour := ask[string](t, b, `getComputedStyle(document.body).backgroundColor`); colour != "rgb(255, 255, 255)" {
			t.Errorf("%s is printed on %s", path, colour)
		}
		if cut := ask[int](t, b, `[...document.querySelectorAll("pre")].filter(p => p.scrollHeight > p.clientHeight + 1).length`); cut > 0 {
			t.Errorf("%s: %d texts are cut", path, cut)
		}
		if buttons := ask[int](t, b, `[...document.querySelectorAll("button, nav, input:not([type=hidden])")].filter(e => e.checkVisibility()).length`); buttons > 0 {
			t.Errorf("%s: %d buttons, fields or menus are printed", path, buttons)
		}
	}
	b.quiet(t)
}
