package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// The console shows and sets whom a key belongs to, for which agents it records
// and when it ends.
func TestKeysHaveOwnersAgentsAndAnEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for _, bad := range []url.Values{
		{"name": {"n"}, "role": {"agent"}, "days": {"0"}}, {"name": {"n"}, "role": {"agent"}, "days": {"soon"}}, {"name": {"n"}, "role": {"agent"}, "days": {"3651"}},
		{"name": {"n"}, "role": {"agent"}, "owner": {strings.Repeat("o", 201)}}, {"name": {"n"}, "role": {"agent"}, "agents": {strings.Repeat("a\n", 101)}},
		{"name": {"n"}, "role": {"agent"}, "agents": {"\u200b"}},
	} {
		admin.post(t, "/api-keys", admin.fill(t, "/api-keys", bad)).expect(t, http.StatusUnprocessableEntity, `role="alert"`, bad.Get("owner"))
	}
	form := admin.fill(t, "/api-keys", url.Values{
		"name": {"worker"}, "role": {"agent"}, "owner": {hostile}, "agents": {"intern\r\n\r\n " + hostile + " \r\nINTERN"}, "days": {"90"},
	})
	text := shownOnce(t, admin.post(t, "/api-keys", form).expect(t, http.StatusCreated, "Copy it now. It cannot be shown again").without(t, "<script>"))
	keys, err := w.service.APIKeys(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin), ledger.KeyID{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	made := keys[len(keys)-1]
	if made.Owner != hostile || len(made.Agents) != 2 || made.Agents[0] != "intern" || made.Agents[1] != hostile || made.ExpiresAt == nil ||
		*made.ExpiresAt-made.CreatedAt < 90*24*3600*1000-60_000 || *made.ExpiresAt-made.CreatedAt > 90*24*3600*1000+60_000 {
		t.Fatalf("made %+v", made)
	}
	page := admin.get(t, "/api-keys").expect(t, http.StatusOK, "&lt;script&gt;", "intern, ", "Owner", "Agents", "Expires", "Last used", ">never<", ">any<")
	page.without(t, text, "<script>", "<img src=x", `badge">expired`)
	// A use is shown once it is written down.
	if _, err := w.service.Authenticate(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if err := w.service.FlushKeyUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin.get(t, "/api-keys").expect(t, http.StatusOK, `data-label="Last used"><time`)
	w.elapsed.Store(int64(91 * 24 * time.Hour))
	admin = w.signedIn(t, w.acme, ledger.RoleAdmin)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, `badge">expired`).
		without(t, "/api-keys/"+made.ID.String()+"/rotate", "/api-keys/"+made.ID.String()+"/sign-in")
}

// The console rotates a key under its id and shows the new secret once.
func TestKeysAreRotated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	key := w.acme.keys[ledger.RoleAgent]
	here := "/api-keys/" + key.Record.ID.String() + "/rotate"
	form := admin.fill(t, "/api-keys", url.Values{"overlap": {"600"}})
	member.post(t, here, form).expect(t, http.StatusForbidden)
	w.signedIn(t, w.rival, ledger.RoleAdmin).post(t, here, form).expect(t, http.StatusNotFound)
	for _, bad := range []string{"", "-1", "604801", "soon"} {
		admin.post(t, here, admin.fill(t, "/api-keys", url.Values{"overlap": {bad}})).expect(t, http.StatusUnprocessableEntity)
	}
	text := shownOnce(t, admin.post(t, here, form).expect(t, http.StatusOK, "has a new secret", "old secret works until"))
	// A reload sends the form again, and changes nothing.
	admin.post(t, here, form).expect(t, http.StatusOK, "was already sent").without(t, text)
	for name, held := range map[string]string{"new": text, "old": key.Text.Reveal()} {
		if caller, err := w.service.Authenticate(t.Context(), held); err != nil || caller.Key != key.Record.ID {
			t.Errorf("the %s secret is %v: %v", name, caller, err)
		}
	}
	admin.get(t, "/api-keys").expect(t, http.StatusOK, "the old secret works until").without(t, text)
	admin.get(t, "/audit-log").expect(t, http.StatusOK, "api_key.rotate").without(t, text, key.Text.Reveal())
	w.elapsed.Store(int64(11 * time.Minute))
	if _, err := w.service.Authenticate(t.Context(), key.Text.Reveal()); err == nil {
		t.Error("the old secret is accepted after the overlap")
	}
	admin.get(t, "/api-keys").expect(t, http.StatusOK).without(t, "the old secret works until")
	admin.post(t, here, admin.fill(t, "/api-keys", url.Values{"overlap": {"0"}})).expect(t, http.StatusOK, "The old secret no longer works.")
	if _, err := w.service.Operator().RevokeKey(t.Context(), "acme", key.Record.ID); err != nil {
		t.Fatal(err)
	}
	admin.get(t, "/api-keys").expect(t, http.StatusOK, `badge">revoked`)
	admin.post(t, here, admin.fill(t, "/api-keys", url.Values{"overlap": {"0"}})).expect(t, http.StatusConflict, "make a new key")
	if strings.Contains(w.log.String(), text) {
		t.Error("the log contains the key")
	}
}

// A session ends with its key, and says so; a rotation leaves it alone.
func TestSessionsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	expires := ledger.TimeOf(time.Now().Add(time.Hour))
	key, err := w.service.Operator().CreateKey(t.Context(), "acme", &service.KeyRequest{Name: "short", Role: ledger.RoleAdmin, ExpiresAt: &expires})
	if err != nil {
		t.Fatal(err)
	}
	b, late := w.browser(t), w.browser(t)
	b.post(t, "/sign-in", url.Values{"link": {w.linkFor(t, w.acme, key)}}).expect(t, http.StatusSeeOther)
	link := w.linkFor(t, w.acme, key)
	b.get(t, "/api-keys").expect(t, http.StatusOK)
	if _, err := w.service.Operator().RotateKey(t.Context(), "acme", &service.Rotation{Key: key.Record.ID}); err != nil {
		t.Fatal(err)
	}
	b.get(t, "/api-keys").expect(t, http.StatusOK)
	form := b.fill(t, "/api-keys", url.Values{"name": {"n"}, "role": {"agent"}})
	w.elapsed.Store(int64(time.Hour))
	for _, path := range []string{"/", "/api-keys", "/approvals"} {
		if answer := b.get(t, path); path != "/" {
			answer.expect(t, http.StatusUnauthorized, "API key has expired")
		}
	}
	b.post(t, "/api-keys", form).expect(t, http.StatusUnauthorized, "API key has expired")
	b.get(t, "/sign-in").expect(t, http.StatusOK)
	// A link that was made before is of no use either, though it is still fresh.
	w.elapsed.Store(int64(time.Hour))
	late.post(t, "/sign-in", url.Values{"link": {link}}).expect(t, http.StatusUnauthorized, "expired")
}

// The page of the keys fits a phone and a desk, with everything on it opened.
func TestBrowserManagesKeys(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("nightly_", 25)
	for place, width := range map[string]int64{"on a phone": 390, "at a desk": 1280} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{})
			b := openTab(t)
			b.do(t, chromedp.EmulateViewport(width, 844))
			b.signIn(t, w, ledger.RoleAdmin)
			b.do(t, chromedp.Navigate(w.server.URL+"/api-keys"), chromedp.SendKeys(chromedp.ID("name"), name),
				chromedp.SendKeys(chromedp.ID("owner"), strings.Repeat("long-owner-", 15)+"@example.com"),
				chromedp.SendKeys(chromedp.ID("agents"), "intern\n"+strings.Repeat("agent_", 30)+"\n"+trap))
			ask[bool](t, b, `document.getElementById("days").value = "90", true`)
			b.fits(t, "the form")
			b.follow(t, chromedp.Click(chromedp.CSS(`form[action="/api-keys"] button`)), "/api-keys")
			b.says(t, "The key "+name+" was created", "csk_", "long-owner-", "intern", trap)
			b.fits(t, "the new key")
			rotate := `document.querySelectorAll('form[action$="/rotate"]')`
			ask[bool](t, b, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
			b.fits(t, "the list, opened")
			last := ask[string](t, b, `[...`+rotate+`].at(-1).getAttribute("action")`)
			ask[bool](t, b, `document.querySelector('form[action="`+last+`"] select').value = "600", true`)
			b.follow(t, chromedp.Click(chromedp.CSS(`form[action="`+last+`"] button`)), last)
			b.says(t, "The key "+name+" has a new secret", "csk_", "old secret works until")
			b.fits(t, "the rotated key")
			// Keys that were used, rotated and revoked have the longest lines of all.
			for _, key := range w.acme.keys {
				if _, err := w.service.Authenticate(t.Context(), key.Text.Reveal()); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.service.FlushKeyUse(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := w.service.Operator().RevokeKey(t.Context(), "acme", w.acme.keys[ledger.RoleMember].Record.ID); err != nil {
				t.Fatal(err)
			}
			b.do(t, chromedp.Navigate(w.server.URL+"/api-keys"))
			b.says(t, "the old secret works until", "revoked")
			b.fits(t, "the list with a revoked key")
			ask[bool](t, b, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
			b.fits(t, "the list with a revoked key, opened")
			if broken := ask[int](t, b, `[...document.querySelectorAll("td summary")].filter(s => s.getClientRects().length && s.offsetHeight > 40).length`); broken > 0 {
				t.Errorf("%d controls are broken into several lines", broken)
			}
			b.harmless(t)
			b.quiet(t)
		})
	}
}

// A list of many keys has pages, and leads back from the last to the first.
func TestManyKeysHavePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for i := range 48 { // and one of each role
		w.key(t, w.acme, fmt.Sprintf("key %d", i+4), ledger.RoleAgent)
	}
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	first := admin.get(t, "/api-keys").expect(t, http.StatusOK, "key 50", "Next →").without(t, "key 51", "← First")
	last := regexp.MustCompile(`/api-keys\?after=[0-9a-f-]+`).FindString(first.body)
	admin.get(t, last).expect(t, http.StatusOK, "key 51", `<a href="/api-keys">← First</a>`).without(t, "key 50", "Next →")
}

// The forms about a key lead back to the page of the list that has it: what was refused is there to be
// corrected, and what was changed is in sight. A sign-in link says whose it is.
func TestKeyFormsStayOnTheirPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	var last *service.NewKey
	for i := range 60 {
		key, err := w.service.Operator().CreateKey(t.Context(), "acme", &service.KeyRequest{Name: fmt.Sprintf("key %d", i), Role: ledger.RoleMember})
		if err != nil {
			t.Fatal(err)
		}
		last = key
	}
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	id := last.Record.ID.String()
	next := regexp.MustCompile(`href="(/api-keys\?after=[^"]+)"`).FindStringSubmatch(admin.get(t, "/api-keys").expect(t, http.StatusOK).without(t, id).body)
	if next == nil {
		t.Fatal("the list has one page")
	}
	second := next[1]
	page := admin.get(t, second).expect(t, http.StatusOK, "key 59")
	actions := map[string]string{}
	for _, found := range regexp.MustCompile(`action="(/api-keys/`+id+`/([a-z-]+)[^"]*)"`).FindAllStringSubmatch(page.body, -1) {
		actions[found[2]] = html.UnescapeString(found[1])
	}
	admin.post(t, actions["sign-in-as"], url.Values{"sign_in_as": {"with space"}}).expect(t, http.StatusUnprocessableEntity, "was not changed", `value="with space"`)
	admin.post(t, actions["sign-in"], admin.fill(t, second, nil)).expect(t, http.StatusCreated, "The sign-in link for key 59 is ready")
	for _, form := range []string{"sign-in-as", "revoke"} {
		answer := admin.post(t, actions[form], url.Values{"sign_in_as": {"alice@example.com"}}).expect(t, http.StatusSeeOther)
		if to, want := answer.Header.Get("Location"), second+"#key-"+id; to != want {
			t.Errorf("%s leads to %s, want %s", form, to, want)
		}
	}
}
