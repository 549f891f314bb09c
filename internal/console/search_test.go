package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"countersign/internal/ledger"
)

// The lists of chains, receipts and approvals are searched with the box above them, page by
// page. Where nothing is found the page says what was looked for and how to widen it.
func TestSearchBox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for i := range 23 {
		w.complete(t, w.acme, w.open(t, w.acme, fmt.Sprintf("report %02d", i)))
	}
	w.open(t, w.acme, "invoice run")
	asked := w.waits(t, w.acme, payment)
	at := func(path, text string) string { return path + "?" + url.Values{"q": {text}}.Encode() }

	first := member.get(t, at("/chains", "REPORT")).expect(t, http.StatusOK, "report 22", "report 03", `value="REPORT"`).without(t, "report 02", "invoice run")
	member.get(t, next(t, first)).expect(t, http.StatusOK, "report 02", "report 00", "← Newest", `value="REPORT"`).without(t, "report 03")
	member.get(t, at("/chains", "run invoice since:2020-01-01")).expect(t, http.StatusOK, "invoice run").without(t, "report 22")
	first = member.get(t, at("/receipts", "report")).expect(t, http.StatusOK, "-00023", "-00004").without(t, "-00003")
	member.get(t, next(t, first)).expect(t, http.StatusOK, "-00003", "-00001").without(t, "-00004")
	member.get(t, at("/approvals", fmt.Sprintf("agent:%q action:%q", asked.AgentName, asked.ActionName))).expect(t, http.StatusOK, page(asked.ID), "Search results")
	member.get(t, at("/approvals", "agent:"+asked.AgentName)+"&status=denied").expect(t, http.StatusOK, "No approval found", "Search results: denied")
	// The box keeps the status that is chosen below it, and "Show all" means all of that status.
	const status = `<input type="hidden" name="status" value="denied">`
	member.get(t, "/approvals?status=denied").expect(t, http.StatusOK, status)
	member.get(t, "/approvals?q=nothing&status=denied").expect(t, http.StatusOK, status, `<a href="/approvals?status=denied">Show all</a>`)
	member.get(t, "/approvals?q=nothing").expect(t, http.StatusOK).without(t, `name="status"`)

	// A search can be limited to what waits, and no link of it leads to another list than it says.
	const pending = "/approvals?q=agent%3Atreasurer&amp;status=pending"
	found := member.get(t, "/approvals?q=agent%3Atreasurer&status=denied").expect(t, http.StatusOK, `<a href="`+pending+`">pending</a>`).without(t, ">waiting</a>")
	member.get(t, html.UnescapeString(pending)).expect(t, http.StatusOK, page(asked.ID), "Search results: pending", `<a href="`+pending+`" aria-current="page">`)
	if strings.Contains(found.body, page(asked.ID)) {
		t.Error("a search among the denied finds what waits")
	}
	// A search that cannot be read says nothing about what waits.
	member.get(t, "/approvals?q=%ff").expect(t, http.StatusUnprocessableEntity, "cannot be read").without(t, "Nothing is waiting", "No approvals.")

	for path, text := range map[string]string{
		"/chains":    `agent:nobody decision:deny metadata.customer=<b>`,
		"/receipts":  `nothing until:2020-01-01`,
		"/approvals": `"no such" name`,
	} {
		member.get(t, at(path, text)).expect(t, http.StatusOK, "found for <strong>"+html.EscapeString(text), "leave out a condition", `<a href="`+path+`">Show all</a>`)
	}
	for text, want := range map[string]string{
		"colour:red":                          "colour: is not a search condition",
		"agent:":                              "agent: needs a value",
		"decision:denied":                     "must be one of allow",
		"since:yesterday":                     "must be a date like",
		"since:2026-11-02 until:2026-11-01":   "until must be later",
		"-":                                   "a letter or a digit",
		strings.Repeat("a", 501):              "at most 500 characters",
		strings.Repeat("metadata.a=b ", 6):    "at most 5 metadata conditions",
		"metadata.a=b\x00":                    "cannot be read",
		`<script>alert("x")</script>:planted`: "is not a search condition",
	} {
		member.get(t, at("/chains", text)).expect(t, http.StatusUnprocessableEntity, want, `role="alert"`).without(t, "<script>alert", "report 22")
	}
	member.get(t, at("/approvals", "decision:deny")).expect(t, http.StatusUnprocessableEntity, "cannot be searched by decision")
}

// The box works with the keyboard alone, also on a phone.
func TestBrowserSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.open(t, w.acme, "invoice run")
	w.open(t, w.acme, "payroll")
	b := openTab(t)
	b.do(t, chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	b.signIn(t, w, ledger.RoleMember)
	for _, path := range []string{"/chains", "/receipts", "/approvals"} {
		b.do(t, chromedp.Navigate(w.server.URL+path+"?q=invoice"))
		b.fits(t, path)
	}
	b.do(t, chromedp.Navigate(w.server.URL+"/chains"), chromedp.Focus(chromedp.ID("q")), chromedp.KeyEvent("invoice"))
	b.follow(t, chromedp.KeyEvent("\r"), "/chains")
	b.says(t, "invoice run")
	if ask[bool](t, b, `document.body.innerText.includes("payroll")`) {
		t.Error("the search shows a chain that does not match")
	}
	b.quiet(t)
}
