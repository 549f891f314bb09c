package console_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"countersign/internal/ledger"
)

// The pages of chains and of receipts show every one exactly once.
func TestChainsAndReceiptsHavePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, "/chains").expect(t, http.StatusOK, "No chains yet")
	member.get(t, "/receipts").expect(t, http.StatusOK, "No receipts yet")
	for i := range 23 {
		w.complete(t, w.acme, w.open(t, w.acme, fmt.Sprintf("chain-%02d", i)))
	}
	first := member.get(t, "/chains").expect(t, http.StatusOK, "chain-22", "chain-03").without(t, "chain-02", "← Newest")
	member.get(t, next(t, first)).expect(t, http.StatusOK, "chain-02", "chain-00", "← Newest").without(t, "chain-03", "Older →")
	first = member.get(t, "/receipts").expect(t, http.StatusOK, "-00023", "-00004", "✓ verified").without(t, "-00003")
	member.get(t, next(t, first)).expect(t, http.StatusOK, "-00003", "-00001", "← Newest").without(t, "-00004", "Older →")
	for _, bad := range []string{"/chains?before=x", "/receipts?before=x", "/receipts?before=-1"} {
		member.get(t, bad).expect(t, http.StatusUnprocessableEntity, "is not a page of the list")
	}
}

// A page that is not there says so, and leads on.
func TestMissingPagesLeadOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for _, path := range []string{"/receipts/nonsense", "/chains/nonsense", "/approvals/nonsense"} {
		w.signedIn(t, w.acme, ledger.RoleMember).get(t, path).expect(t, http.StatusNotFound, "Not found", `<a href="/chains">chains</a>`, "Request id")
	}
}

// Times are those of the reader's zone, with UTC on hover, and ids can be copied.
func TestBrowserShowsLocalTimesAndCopies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	b := openTab(t)
	b.do(t, chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
		return err
	}))
	b.signIn(t, w, ledger.RoleMember)
	b.do(t, chromedp.Navigate(w.server.URL+page(asked.ID)))
	at := asked.RequestedAt.Std()
	local := at.In(time.FixedZone("", 5*3600+1800)).Format("2006-01-02 15:04:05") + " UTC+5:30"
	b.says(t, local)
	if got, want := ask[string](t, b, `[...document.querySelectorAll("time")].find(e => e.textContent === "`+local+`").title`), at.Format("2006-01-02 15:04:05 UTC"); got != want {
		t.Errorf("on hover it says %q, want %q", got, want)
	}
	// Without the clipboard, which a browser gives only over TLS, what is selected is copied.
	ask[bool](t, b, `Object.defineProperty(navigator, "clipboard", {value: undefined}), document.addEventListener("copy", () => { window.copied = getSelection().toString() }), true`)
	b.do(t, chromedp.Click(chromedp.CSS("code[data-copy] + button.copy")))
	if got := ask[string](t, b, "window.copied"); got != asked.PayloadSHA256 {
		t.Errorf("copied is %q", got)
	}
	b.quiet(t)
}

// On a phone each navigation is one line high, and shows where the page stands.
func TestBrowserNavigationIsOneLineOnAPhone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	b := openTab(t)
	b.do(t, chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	b.signIn(t, w, ledger.RoleAdmin)
	for path, name := range map[string]string{"/": "Overview", "/chains": "Chains", "/receipts": "Receipts", "/kill-switch": "Kill switch", "/audit-log": "Audit log"} {
		b.do(t, chromedp.Navigate(w.server.URL+path))
		if lines := ask[int](t, b, `Math.max(...[...document.querySelectorAll(".bar nav, .second")].map(n => new Set([...n.querySelectorAll("a")].map(a => Math.round(a.getBoundingClientRect().top))).size))`); lines != 1 {
			t.Errorf("on %s a navigation has %d lines", path, lines)
		}
		here := ask[string](t, b, `[...document.querySelectorAll("[aria-current=page]")].filter(a => { const r = a.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth }).map(a => a.textContent).join(" ")`)
		if here != name {
			t.Errorf("on %s the marked entry in sight is %q, want %q", path, here, name)
		}
		b.fits(t, path)
	}
	b.quiet(t)
}
