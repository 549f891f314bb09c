package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"countersign/internal/canon"
	"countersign/internal/console"
	"countersign/internal/ledger"
)

// Each page is shown to the roles that may see it, and to no one of another
// organization.
func TestPagesByRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "close-the-books", `{"month":"october"}`)
	receipt := w.complete(t, w.acme, chain)
	nobody := w.browser(t)
	agent := w.signedIn(t, w.acme, ledger.RoleAgent)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	stranger := w.signedIn(t, w.rival, ledger.RoleAdmin)
	const (
		ok, unauthorized   = http.StatusOK, http.StatusUnauthorized
		forbidden, missing = http.StatusForbidden, http.StatusNotFound
	)
	absent := "00000000-0000-4000-8000-000000000000"
	cases := []struct {
		path                                    string
		nobody, agent, member, admin, strangers int
	}{
		{"/", ok, http.StatusSeeOther, ok, ok, ok},
		{"/sign-in", ok, ok, ok, ok, ok},
		{"/check", ok, ok, ok, ok, ok},
		{"/chains", unauthorized, forbidden, ok, ok, ok},
		{"/receipts", unauthorized, forbidden, ok, ok, ok},
		{"/chains/" + chain.String(), unauthorized, forbidden, ok, ok, missing},
		{"/chains/" + absent, unauthorized, forbidden, missing, missing, missing},
		{"/chains/nonsense", unauthorized, forbidden, missing, missing, missing},
		{"/receipts/" + receipt.String(), unauthorized, forbidden, ok, ok, missing},
		{"/receipts/" + absent, unauthorized, forbidden, missing, missing, missing},
		{"/receipts/nonsense", unauthorized, forbidden, missing, missing, missing},
		{"/console/console.css", ok, ok, ok, ok, ok},
		{"/console/nothing.css", missing, missing, missing, missing, missing},
	}
	for _, c := range cases {
		t.Run(c.path, func(t *testing.T) {
			t.Parallel()
			nobody.get(t, c.path).expect(t, c.nobody).without(t, "close-the-books")
			refused := agent.get(t, c.path).expect(t, c.agent).without(t, "close-the-books")
			if c.agent == forbidden {
				refused.expect(t, forbidden, "an agent&#39;s key", "Sign out")
			}
			member.get(t, c.path).expect(t, c.member)
			admin.get(t, c.path).expect(t, c.admin)
			stranger.get(t, c.path).expect(t, c.strangers).without(t, "close-the-books")
		})
	}
}

// The navigation marks the entry of the page that is shown, of a page below it as the
// way there, and no other.
func TestNavigationSaysWhereYouAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	marked := regexp.MustCompile(`<a href="([^"]+)" aria-current="([^"]+)">`)
	for path, want := range map[string]string{
		"/": "/ page", "/chains": "/chains page", "/chains/" + asked.Chain.String(): "/chains true", "/receipts": "/receipts page", "/check": "/check page", "/approvals?status=all": "/approvals page", page(asked.ID): "/approvals true", "/policies": "/policies page",
		"/kill-switch": "/kill-switch page", "/settings": "/settings page", "/api-keys": "/api-keys page", "/signing-keys": "/signing-keys page",
		"/public-links": "/public-links page", "/webhooks": "/webhooks page", "/audit-log": "/audit-log page",
	} {
		header, _, _ := strings.Cut(admin.get(t, path).expect(t, http.StatusOK).body, "<main")
		var got []string
		for _, found := range marked.FindAllStringSubmatch(header, -1) {
			got = append(got, found[1]+" "+found[2])
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s marks %q, want %q", path, got, want)
		}
	}
}

// The overview lists chains and receipts with their state and marks a receipt that
// is not valid.
func TestOverviewShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, "/").expect(t, http.StatusOK, "No chains yet", "No receipts yet")
	w.open(t, w.acme, "still-running", `{}`, `{}`)
	receipt := w.complete(t, w.acme, w.open(t, w.acme, "all-done", `{}`))
	member.get(t, "/").expect(t, http.StatusOK,
		"still-running", "active", "staging", "all-done", "completed", "CSN-", "/receipts/"+receipt.String(), "✓ verified",
		"<dt>Receipts sealed</dt><dd>1</dd>", "<dt>Chains active</dt><dd>1</dd>")
	w.store.rewrite(receipt, "all-done", "all-gone")
	member.get(t, "/").expect(t, http.StatusOK, "✗ not valid").without(t, "✓ verified")
}

// Paging through the overview shows every chain and every receipt exactly once.
func TestListsAreTurnedPageByPage(t *testing.T) {
	t.Parallel()
	const total = 23
	w := newWorld(t, setup{})
	for i := range total {
		w.complete(t, w.acme, w.open(t, w.acme, fmt.Sprintf("chain-%02d", i)))
	}
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	lists := []struct {
		name    string
		section *regexp.Regexp
		row     *regexp.Regexp
	}{
		{"chains", regexp.MustCompile(`(?s)id="chains".*id="receipts"`), regexp.MustCompile(`>(chain-\d\d)</a>`)},
		{"receipts", regexp.MustCompile(`(?s)id="receipts".*`), regexp.MustCompile(`>(CSN-\d{4}-\d{5})</a>`)},
	}
	older := regexp.MustCompile(`<a href="([^"]+)">Older →</a>`)
	for _, list := range lists {
		t.Run(list.name, func(t *testing.T) {
			t.Parallel()
			seen := make(map[string]bool)
			next, turned := "/", 0
			for ; next != ""; turned++ {
				section := list.section.FindString(member.get(t, next).expect(t, http.StatusOK).body)
				for _, row := range list.row.FindAllStringSubmatch(section, -1) {
					if seen[row[1]] {
						t.Errorf("%s is listed twice", row[1])
					}
					seen[row[1]] = true
				}
				if next = ""; older.MatchString(section) {
					next = html.UnescapeString(older.FindStringSubmatch(section)[1])
				}
			}
			if len(seen) != total || turned != 3 {
				t.Errorf("found %d of %d on %d pages, want all on 3", len(seen), total, turned)
			}
		})
	}
	for _, bad := range []string{"/?chains_before=x", "/?receipts_before=x", "/?receipts_before=-1"} {
		member.get(t, bad).expect(t, http.StatusUnprocessableEntity, "is not a page of the list")
	}
}

// The events of a long chain are shown in pages.
func TestEventsAreTurnedPageByPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	payloads := make([]string, 30)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`{"step":%d}`, i+1)
	}
	here := "/chains/" + w.open(t, w.acme, "long", payloads...).String()
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, here).expect(t, http.StatusOK, "step-25", here+"?after=25#events").without(t, "step-26")
	member.get(t, here+"?after=25").expect(t, http.StatusOK, "step-26", "step-30", "← First").without(t, "step-25<", "Next →")
	member.get(t, here+"?after=x").expect(t, http.StatusUnprocessableEntity)
}

// A page of events ends early where the payloads are large. The rest is on the next pages, and
// nothing is shown as changed.
func TestEventsWithLargePayloadsAreTurnedPageByPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	payloads := make([]string, 6)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`{"note":%q}`, strings.Repeat("x", 400<<10))
	}
	here := "/chains/" + w.open(t, w.acme, "large", payloads...).String()
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	const alarm = "were changed outside the service"
	member.get(t, here).expect(t, http.StatusOK, "step-3", here+"?after=3#events").without(t, "step-4", alarm)
	member.get(t, here+"?after=3").expect(t, http.StatusOK, "step-4", "step-6", "← First").without(t, "Next →", alarm)
}

// The page of a chain shows the beginning of a long payload and its size.
func TestLongPayloadsAreCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "large", `{"text":"`+strings.Repeat("é", 100_000)+`"}`)
	page := w.signedIn(t, w.acme, ledger.RoleMember).get(t, "/chains/"+chain.String()).expect(t, http.StatusOK, "200011 bytes", "The first 4096 of 200011 bytes")
	if len(page.body) > 50_000 {
		t.Errorf("the page has %d bytes", len(page.body))
	}
}

const hostile = `<script>document.title="owned"</script>"'><img src=x onerror=alert(1)>{{.}}`

// Recorded texts are escaped on every page that shows them.
func TestTextsAreEscaped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	quoted := string(canon.AppendString(nil, hostile))
	chain := w.open(t, w.acme, hostile)
	w.record(t, w.acme, chain, strings.ReplaceAll(`{"agent_name":~,"action_type":~,"action_name":~,"parent_agent_name":~,"payload":{~:~},"metadata":{~:~}}`, "~", quoted))
	receipt := w.complete(t, w.acme, chain)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	for _, path := range []string{"/", "/chains/" + chain.String(), "/receipts/" + receipt.String()} {
		member.get(t, path).expect(t, http.StatusOK, "&lt;script&gt;", "{{.}}").without(t, "<script>", "<img src=x", `"owned"`)
	}
	w.browser(t).post(t, "/check", url.Values{"receipt_id": {hostile}}).
		expect(t, http.StatusUnprocessableEntity, "&lt;script&gt;").without(t, "<script>", "<img src=x")
}

// Every answer of the console carries its security headers and a request id, and no
// page is cached.
func TestEveryAnswerIsGuarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	chain := asked.Chain
	receipt := w.complete(t, w.acme, w.open(t, w.acme, "sealed"))
	const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
	fill := strings.NewReplacer("{$}", "", "{chain_id}", chain.String(), "{receipt_id}", receipt.String(), "{approval_id}", asked.ID.String(), "{asset}", "console.css")
	for _, pattern := range console.New(console.Config{Service: w.service}).Patterns() {
		// Signed in anew for each: one of the routes signs out.
		browsers := map[string]*browser{"nobody": w.browser(t), "a member": w.signedIn(t, w.acme, ledger.RoleMember)}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
			for who, b := range browsers {
				answered := b.send(t, method, fill.Replace(pattern), nil, http.Header{"Sec-Fetch-Site": {"none"}})
				allowed := policy
				asking := regexp.MustCompile(`/console/(approval|refresh)\.js`).MatchString(answered.body)
				if method == http.MethodHead && who == "a member" { // the same without a body
					asking = pattern == "/approvals" || pattern == "/approvals/{approval_id}"
				}
				if asking { // a script which asks this server, and no other
					allowed += "; connect-src 'self'"
				}
				for name, want := range map[string]string{
					"Content-Security-Policy": allowed,
					"X-Content-Type-Options":  "nosniff",
					"Referrer-Policy":         "no-referrer",
				} {
					if got := answered.Header.Get(name); got != want {
						t.Errorf("%s %s by %s: %s is %q, want %q", method, pattern, who, name, got, want)
					}
				}
				if stored := answered.Header.Get("Cache-Control"); stored != "no-store" && pattern != "/console/{asset}" {
					t.Errorf("%s %s by %s: Cache-Control is %q, want no-store", method, pattern, who, stored)
				}
				if listed := answered.Header.Get("Allow"); answered.StatusCode == http.StatusMethodNotAllowed &&
					(listed == "" || strings.Contains(listed, http.MethodGet) != strings.Contains(listed, http.MethodHead)) {
					t.Errorf("%s %s by %s: 405, and Allow is %q", method, pattern, who, listed)
				}
				if answered.Header.Get("X-Request-Id") == "" {
					t.Errorf("%s %s by %s: no request id", method, pattern, who)
				}
			}
		}
	}
}

// The console answers its own paths and leaves all others to the next handler.
func TestPathsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for _, path := range []string{"/docs", "/v1/chains", "/chain", "/chains/a/b", "/nothing"} {
		w.browser(t).get(t, path).expect(t, http.StatusTeapot)
	}
}

// A store that is down gives an error page and does not end the session.
func TestStoreThatDoesNotAnswerIsNoSignOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	b := w.signedIn(t, w.acme, ledger.RoleMember)
	w.store.down.Store(true)
	refused := b.get(t, "/").expect(t, http.StatusServiceUnavailable, "Storage unavailable", "Request id")
	refused.expect(t, http.StatusServiceUnavailable, refused.Header.Get("X-Request-Id"))
	b.get(t, "/console/console.css").expect(t, http.StatusOK)
	w.store.down.Store(false)
	b.get(t, "/").expect(t, http.StatusOK, "The acme organization")
}

// No page shows a key, a link or a session, and the log holds no secret and no
// recorded text or id.
func TestNothingSecretLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "planted-name", `{"planted":"planted-payload"}`)
	asked := w.view(t, w.acme, w.record(t, w.acme, chain, strings.Replace(payment, "ACME Ltd", "planted-payee", 1)).Approval)
	receipt := w.complete(t, w.acme, chain)
	link := w.link(t, w.acme, ledger.RoleAdmin)
	b := w.browser(t)
	b.post(t, "/sign-in", url.Values{"link": {link}}).expect(t, http.StatusSeeOther)
	secrets := []string{link, b.session(t)}
	for _, key := range w.acme.keys {
		secrets = append(secrets, key.Text.Reveal(), fmt.Sprintf("%x", key.Record.Hash))
	}
	for _, path := range []string{"/", "/sign-in", "/check", "/chains/" + chain.String(), "/receipts/" + receipt.String(),
		"/approvals", page(asked.ID), "/kill-switch", "/policies", "/settings", "/api-keys", "/public-links", "/webhooks", "/audit-log"} {
		b.get(t, path).expect(t, http.StatusOK).without(t, secrets...)
	}
	b.post(t, page(asked.ID)+"/approve", decision(asked, "planted-comment")).expect(t, http.StatusConflict).without(t, secrets...)
	b.post(t, "/check", url.Values{"receipt_id": {receipt.String()}}).expect(t, http.StatusOK).without(t, secrets...)
	b.post(t, "/sign-in", url.Values{"link": {link}}).expect(t, http.StatusUnauthorized).without(t, secrets...)
	b.get(t, "/nothing?"+link)
	log := w.log.String()
	if !strings.Contains(log, `"route":"/chains/{chain_id}"`) || !strings.Contains(log, `"request_id":"web_`) {
		t.Fatalf("the log does not name routes and requests:\n%s", log)
	}
	for _, planted := range append(secrets, chain.String(), receipt.String(), asked.ID.String(), asked.PayloadSHA256, "planted") {
		if strings.Contains(log, planted) {
			t.Errorf("the log contains %q", planted)
		}
	}
}

// next is where a page's link to older entries leads.
func next(t *testing.T, a *answer) string {
	t.Helper()
	found := regexp.MustCompile(`<a href="([^"]+)">Older →</a>`).FindStringSubmatch(a.body)
	if found == nil {
		t.Fatalf("%s has no link to older entries:\n%s", a.Request.URL.Path, a.body)
	}
	return html.UnescapeString(found[1])
}

// Admins are told on the overview how often links by approval ids are opened, members are
// not, and nobody where none was.
func TestOverviewTellsOfLegacyLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	const line = "Old links that contain the id of an approval were opened"
	admin.get(t, "/").expect(t, http.StatusOK).without(t, line)
	for range 2 {
		w.service.NoteLegacyUse("/public/approvals/{approval_id}", w.caller(t, w.acme).Org)
	}
	if err := w.service.FlushLegacyUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin.get(t, "/").expect(t, http.StatusOK, line+" 2 times in the last 30 days", "/public-links")
	member.get(t, "/").expect(t, http.StatusOK).without(t, line)
	w.signedIn(t, w.rival, ledger.RoleAdmin).get(t, "/").expect(t, http.StatusOK).without(t, line)
}
