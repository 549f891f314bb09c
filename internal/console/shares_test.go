package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"countersign/internal/bundle"
	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
)

// exports sets who may take evidence out.
func (w *world) exports(t *testing.T, of *tenant, who ledger.Export) {
	t.Helper()
	patch, err := canon.Parse([]byte(`{"evidence_export":"` + string(who) + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.service.UpdateOrganization(t.Context(), w.callerOf(t, of, ledger.RoleAdmin), patch); err != nil {
		t.Fatal(err)
	}
}

// Admins download the evidence of a receipt and share it, where the organization allows it.
// A share's link is shown once and ends when it is revoked.
func TestEvidenceIsDownloadedAndShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{signed: true})
	receipt := w.complete(t, w.acme, w.open(t, w.acme, "export", `{"note":"planted-note"}`))
	path, list := "/receipts/"+receipt.String(), "/public-links/shares"
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	stranger := w.signedIn(t, w.rival, ledger.RoleAdmin)

	admin.get(t, path).expect(t, http.StatusOK, "turned off", `href="/settings#evidence"`).without(t, "Download evidence")
	admin.get(t, path+"/bundle").expect(t, http.StatusForbidden, "evidence_export")
	admin.post(t, list, url.Values{"receipt_id": {receipt.String()}, "once": {"o"}}).expect(t, http.StatusForbidden, "evidence_export")
	w.exports(t, w.acme, ledger.ExportAdmins)
	w.exports(t, w.rival, ledger.ExportAdmins)

	member.get(t, path).expect(t, http.StatusOK).without(t, "/bundle", list)
	member.get(t, path+"/bundle").expect(t, http.StatusForbidden, "for admins")
	member.get(t, list).expect(t, http.StatusForbidden, "for admins")
	stranger.get(t, path+"/bundle").expect(t, http.StatusNotFound)
	servicetest.Eventually(t, "the receipt is in a checkpoint", func() bool { return admin.get(t, path+"/bundle").StatusCode == http.StatusOK })
	admin.get(t, path+"/bundle").expect(t, http.StatusOK, "countersign-bundle-v1").without(t, "planted-note")
	whole := admin.get(t, path+"/bundle?payloads=yes").expect(t, http.StatusOK, "planted-note")
	if sent := whole.Header.Get("Content-Disposition"); whole.Header.Get("Content-Type") != bundle.MediaType || !regexp.MustCompile(`^attachment; filename="CSN-\d{4}-00001.bundle"$`).MatchString(sent) {
		t.Errorf("the file is sent as %q", sent)
	}

	offered := admin.get(t, path).expect(t, http.StatusOK, path+"/bundle?payloads=yes", "Share the receipt")
	form := url.Values{"days": {"30"}}
	for _, hidden := range regexp.MustCompile(`name="(receipt_id|once)" value="([^"]+)"`).FindAllStringSubmatch(offered.body, -1) {
		form.Set(hidden[1], hidden[2])
	}
	stranger.post(t, list, form).expect(t, http.StatusNotFound)
	link := shownOnce(t, admin.post(t, list, form).expect(t, http.StatusCreated, "Copy it now. It cannot be shown again", path))
	text, found := strings.CutPrefix(link, w.server.URL+"/public/shares/")
	if !found {
		t.Fatalf("the link is not to this server: %d characters", len(link))
	}
	if shared, err := w.service.OpenShare(t.Context(), text); err != nil || strings.Contains(string(shared), "planted-note") {
		t.Errorf("the share serves %d bytes: %v", len(shared), err)
	}
	admin.post(t, list, form).expect(t, http.StatusCreated, "already created and shown").without(t, text)
	form.Set("days", "0")
	admin.post(t, list, form).expect(t, http.StatusUnprocessableEntity, "1 to 3650 days")
	admin.get(t, "/public-links").expect(t, http.StatusOK, list, "None yet")
	listed := admin.get(t, list).expect(t, http.StatusOK, path, ">active<").without(t, text, "do not work at present")
	revoke := regexp.MustCompile(list + `/[0-9a-f-]+/revoke`).FindString(listed.body)
	stranger.post(t, revoke, nil).expect(t, http.StatusNotFound)
	w.exports(t, w.acme, ledger.ExportOff)
	admin.get(t, list).expect(t, http.StatusOK, "do not work at present", revoke)
	admin.post(t, revoke, nil).expect(t, http.StatusSeeOther)
	admin.get(t, list).expect(t, http.StatusOK, ">revoked<").without(t, revoke)
	if strings.Contains(w.log.String(), text) {
		t.Error("the log contains the link")
	}
}

// In a real browser an admin shares a receipt from its page. The pages fit a phone.
func TestBrowserSharesAReceipt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	receipt := w.complete(t, w.acme, w.open(t, w.acme, "export", `{}`))
	w.exports(t, w.acme, ledger.ExportAdmins)
	b := openTab(t)
	fits := func(name string) {
		b.do(t, chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
		b.fits(t, name)
	}
	b.do(t, chromedp.Navigate(w.server.URL+"/sign-in#"+w.link(t, w.acme, ledger.RoleAdmin)), chromedp.WaitVisible(chromedp.ID("ready")))
	b.follow(t, chromedp.Click(chromedp.CSS("#sign-in button")), "/")
	b.do(t, chromedp.Navigate(w.server.URL+"/receipts/"+receipt.String()))
	b.says(t, "Download evidence", "Without payloads")
	fits("receipt")
	b.follow(t, chromedp.Click(chromedp.CSS(`form[action="/public-links/shares"] button`)), "/public-links/shares")
	b.says(t, "Copy it now. It cannot be shown again", "Copy")
	fits("shares")
	b.quiet(t)
}
