package console_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"countersign/internal/console"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/servicetest"
)

// inspector runs axe-core on the pages of a tab.
type inspector struct {
	*tab
	axe  string
	base string
}

func newInspector(t *testing.T, base string) *inspector {
	t.Helper()
	fetch := exec.CommandContext(t.Context(), "../../scripts/install-axe")
	fetch.Stderr = os.Stderr
	path, err := fetch.Output()
	if err != nil {
		t.Fatal(err)
	}
	axe, err := os.ReadFile(strings.TrimSpace(string(path)))
	if err != nil {
		t.Fatal(err)
	}
	return &inspector{tab: openTab(t), axe: string(axe), base: base}
}

// findViolations answers with one line for each element that breaks a rule.
const findViolations = `axe.run(document, { preload: false, resultTypes: ["violations"], elementRef: false%s }).then((found) =>
	found.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.target.join(" ") + ": " + n.failureSummary)))`

// inspect holds the page that is shown to all rules on a phone, and to those of colour at a
// desk in the dark; in the long run also the other way round.
func (i *inspector) inspect(t *testing.T, name string) {
	t.Helper()
	ask[bool](t, i.tab, i.axe+`;document.querySelectorAll("details").forEach(d => d.open = true), true`)
	const colours = `, runOnly: ["color-contrast", "link-in-text-block"]`
	looks := []struct {
		name, scheme, rules string
		size                chromedp.Action[chromedp.Void]
	}{
		{"phone", "light", "", phoneSize},
		{"desk, dark", "dark", colours, deskSize},
		{"desk", "light", "", deskSize},
		{"phone, dark", "dark", colours, phoneSize},
	}
	for _, look := range looks[:nightly.Count(2, len(looks))] {
		i.do(t, look.size, emulateMedia("screen", look.scheme))
		found, err := chromedp.Run(i.ctx, chromedp.Evaluate[[]string](fmt.Sprintf(findViolations, look.rules), chromedp.EvalAwaitPromise))
		if err != nil {
			t.Fatal(err)
		}
		for _, violation := range found {
			t.Errorf("%s (%s): %s", name, look.name, violation)
		}
	}
}

// emulateMedia shows pages on a screen or on paper, to somebody who prefers a colour scheme.
func emulateMedia(media, scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media:    media,
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

var (
	deskSize  = chromedp.EmulateViewport(1440, 900)
	phoneSize = chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile)
)

// visit opens each address and inspects it.
func (i *inspector) visit(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		i.do(t, deskSize, chromedp.Navigate(i.base+path))
		i.inspect(t, path)
	}
}

// send fills in and sends a form of the page, and inspects the answer.
func (i *inspector) send(t *testing.T, form string, fields map[string]string, path string) {
	t.Helper()
	for name, value := range fields {
		ask[bool](t, i.tab, fmt.Sprintf(`document.querySelector(%q).elements[%q].value = %q, true`, form, name, value))
	}
	i.follow(t, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector(%q).requestSubmit(), undefined`, form)), path)
	i.inspect(t, "the answer of "+form)
}

// No page has anything that axe-core knows to keep people out: at a desk and on a
// phone, in light and dark, empty and full, with every banner.
func TestPagesAreAccessible(t *testing.T) {
	t.Parallel()
	provider := newSignOn(alice)
	w := newWorld(t, setup{api: true, signed: true, sso: provider})
	paths := furnish(t, w)
	i := newInspector(t, w.server.URL)

	provider.to = w.server.URL + callbackPath
	i.visit(t, beginPath)
	i.says(t, "No key is for you yet")
	w.personal(t, w.acme, "alice", alice)
	w.personal(t, w.rival, "guest", alice)
	i.visit(t, beginPath)
	i.says(t, "Choose an organization")

	i.visit(t, "/", "/sign-in", "/check", "/verify", paths["public link"])
	i.do(t, chromedp.Navigate(w.server.URL+"/sign-in#"+w.link(t, w.rival, ledger.RoleAdmin)), chromedp.WaitVisible(chromedp.ID("ready")))
	i.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
	i.inspect(t, "the empty overview")
	i.visit(t, "/policies")
	i.follow(t, chromedp.Click(chromedp.CSS(".who button")), "/")

	i.signIn(t, w, ledger.RoleAdmin)
	fill := func(pattern string) string {
		for name, id := range paths {
			pattern = strings.ReplaceAll(pattern, name, id)
		}
		return strings.TrimSuffix(pattern, "{$}")
	}
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for _, pattern := range console.New(console.Config{Service: w.service}).Patterns() {
		if strings.HasPrefix(pattern, beginPath) {
			continue // seen above
		}
		path := fill(pattern)
		answer := admin.get(t, path)
		if answer.StatusCode == http.StatusMethodNotAllowed || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
			continue // it takes forms alone, or is no page
		}
		answer.expect(t, http.StatusOK)
		i.visit(t, path)
	}
	i.visit(t, paths["decided"], "/chains/nonsense", "/approvals?status=all", "/chains?q=nothing")
	i.do(t, chromedp.Navigate(w.server.URL+"/check"))
	i.send(t, "main form", map[string]string{"receipt_id": paths["{receipt_id}"]}, "/check")
	i.do(t, chromedp.Navigate(w.server.URL+"/api-keys"))
	i.send(t, `form[action="/api-keys"]`, map[string]string{"name": "a key"}, "/api-keys")

	w.stop(t, w.acme, "an exercise")
	receipt, err := ledger.ParseID(paths["{receipt_id}"])
	if err != nil {
		t.Fatal(err)
	}
	w.store.rewrite(ledger.ReceiptID{UUID: receipt}, "audited", "altered")
	if _, err := w.service.CheckReceipt(t.Context(), ledger.ReceiptID{UUID: receipt}); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the finding is kept", func() bool {
		findings, err := w.service.Findings(t.Context(), w.callerOf(t, w.acme, ledger.RoleMember))
		return err == nil && len(findings) == 1
	})
	i.visit(t, "/", "/kill-switch", "/tampering", "/receipts/"+paths["{receipt_id}"])
}

// furnish puts something on every page, and names the ids that their addresses need.
func furnish(t *testing.T, w *world) map[string]string {
	t.Helper()
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	sealed := w.complete(t, w.acme, w.open(t, w.acme, "audited", `{"month":"october","lines":[{"n":1}]}`))
	w.exports(t, w.acme, ledger.ExportAdmins)
	servicetest.Eventually(t, "the receipt is in a checkpoint", func() bool {
		return admin.get(t, "/receipts/"+sealed.String()+"/bundle").StatusCode == http.StatusOK
	})
	decided := w.waits(t, w.acme, payment)
	admin.post(t, page(decided.ID)+"/approve", decision(decided, "fine")).expect(t, http.StatusSeeOther)
	asked := w.busy(t, w.acme, 3)
	admin.post(t, "/webhooks", admin.fill(t, "/webhooks", url.Values{"url": {"https://hooks.example/in"}})).expect(t, http.StatusCreated)
	hooks, err := w.service.Webhooks(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin))
	if err != nil {
		t.Fatal(err)
	}
	admin.post(t, "/webhooks/"+hooks[0].ID.String()+"/test", nil).expect(t, http.StatusSeeOther)
	_, line := servicetest.NewElsewhere(t).Decide(func(*ledger.Approval) {})
	if _, err := w.service.Operator().ImportApprovals(t.Context(), w.acme.slug, strings.NewReader(line)); err != nil {
		t.Fatal(err)
	}
	link := shownOnce(t, admin.post(t, "/public-links", admin.fill(t, "/receipts/"+sealed.String(), url.Values{
		"days": {"30"}, "artifact_type": {"receipt"}, "artifact_id": {sealed.String()},
	})).expect(t, http.StatusCreated))
	admin.post(t, "/policies", url.Values{"document": {rules}, "format": {"yaml"}, "replaces": {"0"}}).expect(t, http.StatusSeeOther)
	version := regexp.MustCompile(`/policies/versions/([^"]+)`).FindStringSubmatch(admin.get(t, "/policies").body)
	return map[string]string{
		"{receipt_id}": sealed.String(), "{approval_id}": asked.ID.String(), "{chain_id}": asked.Chain.String(), "{webhook_id}": hooks[0].ID.String(),
		"{version}": html.UnescapeString(version[1]), "{pack}": "starter", "{asset}": "console.css", "public link": strings.TrimPrefix(link, w.server.URL), "decided": page(decided.ID),
	}
}
