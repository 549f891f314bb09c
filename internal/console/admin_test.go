package console_test

import (
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
)

const rules = "rules:\n  - name: no-deletes\n    when: action.action_name == 'delete_all'\n    decision: deny\n    reason: nothing is deleted\n"

// Members read the policy sets in the console; admins check a draft without effect
// and put it in force, with each problem placed at its line.
func TestPoliciesAreReadCheckedAndPut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, "/policies").expect(t, http.StatusOK, "Only the built-in rules apply", "v0&#43;").without(t, "<textarea")
	draft := func(text, format string) url.Values {
		return url.Values{"document": {strings.ReplaceAll(text, "\n", "\r\n")}, "format": {format}, "replaces": {"0"}}
	}
	for _, path := range []string{"/policies/check", "/policies"} {
		bad := strings.Replace(rules, "action_name ==", "colour ==", 1)
		admin.post(t, path, draft(bad, "yaml")).expect(t, http.StatusUnprocessableEntity, "Line 3, column", "no-deletes", "action.colour", "Nothing was changed")
		admin.post(t, path, draft(hostile+"</textarea>", "json")).expect(t, http.StatusUnprocessableEntity, "Line 1, column 1", "&lt;script&gt;").without(t, "<script>", "<img src=x")
		admin.post(t, path, draft("", "yaml")).expect(t, http.StatusUnprocessableEntity, "Nothing was changed")
		member.post(t, path, draft(rules, "yaml")).expect(t, http.StatusForbidden, "for admins")
	}
	admin.post(t, "/policies/check", draft(rules, "yaml")).expect(t, http.StatusOK, "✓ Checked", "no-deletes", "not in force yet", "action.action_name")
	member.get(t, "/policies").expect(t, http.StatusOK, "Only the built-in rules apply")
	admin.post(t, "/policies", draft(rules, "yaml")).expect(t, http.StatusSeeOther)
	put := member.get(t, "/policies").expect(t, http.StatusOK, "no-deletes", "in force", "nothing is deleted").without(t, "Only the built-in rules apply")
	version := html.UnescapeString(regexp.MustCompile(`/policies/versions/[^"]+`).FindString(put.body))
	admin.get(t, "/policies").expect(t, http.StatusOK, "action.action_name == &#39;delete_all&#39;\n    decision: deny", "starts as a copy of the set in force")
	member.get(t, version).expect(t, http.StatusOK, "no-deletes", "in force", "delete_all", ">The document<")
	w.signedIn(t, w.rival, ledger.RoleAdmin).get(t, version).expect(t, http.StatusNotFound)
	if event := w.record(t, w.acme, w.open(t, w.acme, "tidy"), strings.Replace(harmless, "look_up", "delete_all", 1)); event.Status != ledger.EventDenied {
		t.Errorf("under the set, the action is %s", event.Status)
	}
}

// A draft replaces the set that its author saw, and not one that somebody else has put in force since.
// The author keeps the draft, sees the other set, and may then replace that one.
func TestPoliciesAreNotReplacedUnseen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	first, second := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleAdmin)
	seen := func(a *answer) string {
		t.Helper()
		found := regexp.MustCompile(`name="replaces" value="(\d+)"`).FindStringSubmatch(a.body)
		if found == nil {
			t.Fatalf("the form does not say what it replaces:\n%s", a.body)
		}
		return found[1]
	}
	draft := func(name, replaces string) url.Values {
		return url.Values{"document": {strings.Replace(rules, "no-deletes", name, 1)}, "format": {"yaml"}, "replaces": {replaces}}
	}
	for round := range 2 { // without a set, and with one
		atFirst, atSecond := seen(first.get(t, "/policies")), seen(second.get(t, "/policies"))
		theirs, mine := fmt.Sprintf("theirs-%d", round), fmt.Sprintf("mine-%d", round)
		second.post(t, "/policies", draft(theirs, atSecond)).expect(t, http.StatusSeeOther)
		checked := first.post(t, "/policies/check", draft(mine, atFirst)).expect(t, http.StatusOK, "✓ Checked")
		refused := first.post(t, "/policies", draft(mine, seen(checked))).expect(t, http.StatusConflict, "Nothing was changed", "Somebody put another set in force", theirs, mine).without(t, "has problems")
		first.get(t, "/policies").expect(t, http.StatusOK, theirs).without(t, mine)
		first.post(t, "/policies", draft(mine, seen(refused))).expect(t, http.StatusSeeOther)
		first.get(t, "/policies").expect(t, http.StatusOK, mine)
	}
	first.post(t, "/policies", draft("mine", "x")).expect(t, http.StatusUnprocessableEntity, "cannot be read", "delete_all")
	for _, path := range []string{"/policies", "/policies/check"} { // from a page that does not say what it replaces
		before := first.post(t, path, draft("mine", "")).expect(t, http.StatusConflict, "Nothing was changed", "before an update of the server", "mine-1").without(t, "has problems")
		if seen(before) == "" {
			t.Error("the page does not say what it replaces")
		}
	}
}

// The audit log lists every administrative act, newest first, and can be paged to
// its beginning.
func TestAuditLogSaysWhoChangedWhat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for i := range 51 {
		w.key(t, w.acme, fmt.Sprintf("planted-%02d", i), ledger.RoleAgent)
	}
	w.stop(t, w.acme, hostile)
	first := admin.get(t, "/audit-log").expect(t, http.StatusOK, "kill_switch.activate", "api_key.create", "&lt;script&gt;", "planted-50").
		without(t, "<script>", "<img src=x", "planted-00")
	admin.get(t, next(t, first)).expect(t, http.StatusOK, "planted-00", "organization.create", "← Newest")
	admin.get(t, "/audit-log?before=x").expect(t, http.StatusUnprocessableEntity)
}

// shownOnce finds the secret that an answer shows.
func shownOnce(t *testing.T, a *answer) string {
	t.Helper()
	found := regexp.MustCompile(`<p class="secret"><code tabindex="0" data-copy>([^<]+)</code>`).FindStringSubmatch(a.body)
	if found == nil || a.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("no secret is shown, or it may be stored:\n%s", a.body)
	}
	return found[1]
}

// A new API key is shown once and never again. A form sent twice makes one key, and
// a revoked key stops working.
func TestKeysAreMadeAndRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for _, bad := range []url.Values{{"role": {"agent"}}, {"name": {"n"}}, {"name": {"n"}, "role": {"owner"}}, {"name": {strings.Repeat("n", 201)}, "role": {"agent"}}} {
		admin.post(t, "/api-keys", admin.fill(t, "/api-keys", bad)).expect(t, http.StatusUnprocessableEntity, `role="alert"`, bad.Get("name")).without(t, "csk_"+"x")
	}
	form := admin.fill(t, "/api-keys", url.Values{"name": {hostile}, "role": {"agent"}})
	text := shownOnce(t, admin.post(t, "/api-keys", form).expect(t, http.StatusCreated, "Copy it now. It cannot be shown again").without(t, "<script>"))
	// A reload sends the form again, and makes nothing.
	admin.post(t, "/api-keys", form).expect(t, http.StatusCreated, "was already sent").without(t, text)
	if keys, err := w.service.APIKeys(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin), ledger.KeyID{}, 100); err != nil || len(keys) != 4 {
		t.Errorf("%d keys after a reload: %v", len(keys), err)
	}
	admin.post(t, "/api-keys", url.Values{"name": {"n"}, "role": {"agent"}}).expect(t, http.StatusUnprocessableEntity, "cannot be read")
	taken := admin.fill(t, "/api-keys", url.Values{"name": {"the member"}, "role": {"member"}})
	admin.post(t, "/api-keys", taken).expect(t, http.StatusConflict, "has the name", "the member")
	caller, err := w.service.Authenticate(t.Context(), text)
	if err != nil || caller.Name != hostile || caller.Role != ledger.RoleAgent {
		t.Fatalf("the key is %v: %v", caller, err)
	}
	listed := admin.get(t, "/api-keys").expect(t, http.StatusOK, "&lt;script&gt;", "this session", "<code>"+caller.Key.String()+"</code>").without(t, text, "<script>", "<img src=x")
	revoke := "/api-keys/" + caller.Key.String() + "/revoke"
	listed.expect(t, http.StatusOK, revoke)
	w.signedIn(t, w.rival, ledger.RoleAdmin).post(t, revoke, nil).expect(t, http.StatusNotFound)
	admin.post(t, revoke, nil).expect(t, http.StatusSeeOther)
	admin.get(t, "/api-keys").expect(t, http.StatusOK).without(t, revoke)
	if _, err := w.service.Authenticate(t.Context(), text); err == nil {
		t.Error("the revoked key still works")
	}
	admin.post(t, "/api-keys/nonsense/revoke", nil).expect(t, http.StatusNotFound)
	if strings.Contains(w.log.String(), text) {
		t.Error("the log contains the key")
	}
}

// Links that people pass on lead to the public URL, whatever host name a proxy in between has used.
func TestLinksLeadToThePublicURL(t *testing.T) {
	t.Parallel()
	const public = "https://countersign.example.com"
	w := newWorld(t, setup{signed: true, public: public})
	w.exports(t, w.acme, ledger.ExportAdmins)
	admin, receipt := w.signedIn(t, w.acme, ledger.RoleAdmin), w.complete(t, w.acme, w.open(t, w.acme, "export", `{}`))
	key := "/api-keys/" + w.acme.keys[ledger.RoleMember].Record.ID.String() + "/sign-in"
	for want, got := range map[string]*answer{
		public + "/sign-in#csl_":   admin.post(t, key, admin.fill(t, "/api-keys", nil)),
		public + "/public/shares/": admin.post(t, "/public-links/shares", url.Values{"receipt_id": {receipt.String()}, "once": {"o"}}),
	} {
		if link := shownOnce(t, got.expect(t, http.StatusCreated)); !strings.HasPrefix(link, want) {
			t.Errorf("a link does not begin with %s", want)
		}
	}
}

// A reviewer needs no shell on the server: an admin makes the link.
func TestAdminsMakeSignInLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, reviewer := w.signedIn(t, w.acme, ledger.RoleAdmin), w.acme.keys[ledger.RoleMember].Record
	here := "/api-keys/" + reviewer.ID.String() + "/sign-in"
	form := admin.fill(t, "/api-keys", nil)
	w.signedIn(t, w.rival, ledger.RoleAdmin).post(t, here, form).expect(t, http.StatusNotFound)
	link := shownOnce(t, admin.post(t, here, form).expect(t, http.StatusCreated, "works once"))
	admin.post(t, here, form).expect(t, http.StatusCreated, "was already sent").without(t, "#csl_")
	if !strings.HasPrefix(link, w.server.URL+"/sign-in#csl_") {
		t.Fatalf("the link is not to this server: %d characters", len(link))
	}
	b := w.browser(t)
	b.post(t, "/sign-in", url.Values{"link": {link}}).expect(t, http.StatusSeeOther)
	b.get(t, "/").expect(t, http.StatusOK, reviewer.Name, ">member<")
	admin.get(t, "/audit-log").expect(t, http.StatusOK, "sign_in.create", "sign_in.use", reviewer.ID.String()).without(t, "csl_", "css_")
	if _, err := w.service.Operator().RevokeKey(t.Context(), "acme", reviewer.ID); err != nil {
		t.Fatal(err)
	}
	admin.post(t, here, admin.fill(t, "/api-keys", nil)).expect(t, http.StatusNotFound)
	admin.get(t, "/api-keys").expect(t, http.StatusOK).without(t, here)
	if strings.Contains(w.log.String(), "csl_") {
		t.Error("the log contains the link")
	}
}

// Admins make, import, retire and revoke signing keys of their own organization
// only.
func TestSigningKeysAreMadeAndEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, stranger := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.rival, ledger.RoleAdmin)
	listed := func() []*service.SigningKey {
		t.Helper()
		keys, err := w.service.SigningKeys(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin))
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	admin.post(t, "/signing-keys", url.Values{"name": {hostile}}).expect(t, http.StatusSeeOther)
	admin.get(t, "/signing-keys").expect(t, http.StatusOK, "&lt;script&gt;", ">active<").without(t, "<script>", "<img src=x")
	for _, bad := range []string{"", "AAAA", "no base64"} {
		refused := admin.post(t, "/signing-keys/import", url.Values{"name": {"the old one"}, "public_key": {bad}}).expect(t, http.StatusUnprocessableEntity, `role="alert"`, "32 bytes")
		if n := strings.Count(refused.body, `value="the old one"`); n != 1 {
			t.Errorf("what was sent is in %d fields, want the one that it was sent in", n)
		}
	}
	public := base64.StdEncoding.EncodeToString(make([]byte, 32))
	admin.post(t, "/signing-keys/import", url.Values{"name": {"old"}, "public_key": {public}}).expect(t, http.StatusSeeOther)
	admin.get(t, "/signing-keys").expect(t, http.StatusOK, ">historical<", html.EscapeString(public))
	keys := listed()
	if len(keys) != 3 {
		t.Fatalf("%d keys are listed, want 3", len(keys))
	}
	first, imported := "/signing-keys/"+keys[0].ID.String(), "/signing-keys/"+keys[2].ID.String()
	for _, end := range []string{"/retire", "/revoke"} {
		stranger.post(t, first+end, nil).expect(t, http.StatusNotFound)
	}
	admin.post(t, imported+"/retire", nil).expect(t, http.StatusConflict, "historical key signs nothing")
	admin.post(t, first+"/retire", nil).expect(t, http.StatusSeeOther)
	admin.post(t, imported+"/revoke", nil).expect(t, http.StatusSeeOther)
	admin.get(t, "/signing-keys").expect(t, http.StatusOK, ">retired<", ">revoked<").without(t, first+"/retire", imported+"/revoke")
	if keys = listed(); keys[0].Status != ledger.SigningRetired || keys[1].Status != ledger.SigningActive || keys[2].Status != ledger.SigningRevoked {
		t.Errorf("the keys are %s, %s and %s", keys[0].Status, keys[1].Status, keys[2].Status)
	}
}

// Admins add, test and delete webhooks of their own organization only, and a
// webhook's secret is shown once.
func TestWebhooksAreAddedTestedAndDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for _, bad := range []url.Values{{}, {"url": {"ftp://hooks.example"}}, {"url": {"https://127.0.0.1/"}}, {"url": {"https://hooks.example/"}, "events": {"nothing.known"}}} {
		admin.post(t, "/webhooks", admin.fill(t, "/webhooks", bad)).expect(t, http.StatusUnprocessableEntity, `role="alert"`, bad.Get("url"), "None yet")
	}
	form := admin.fill(t, "/webhooks", url.Values{"url": {"https://hooks.example/in"}, "description": {hostile}, "events": {"approval.requested", "approval.decided"}})
	secret := shownOnce(t, admin.post(t, "/webhooks", form).expect(t, http.StatusCreated, "Copy it now. It cannot be shown again"))
	admin.post(t, "/webhooks", form).expect(t, http.StatusCreated, "was already sent").without(t, secret)
	admin.get(t, "/webhooks").expect(t, http.StatusOK, "https://hooks.example/in", "approval.requested, approval.decided", "&lt;script&gt;").without(t, secret, "<script>", "<img src=x")
	hooks, err := w.service.Webhooks(t.Context(), w.callerOf(t, w.acme, ledger.RoleAdmin))
	if err != nil || len(hooks) != 1 {
		t.Fatalf("%d webhooks: %v", len(hooks), err)
	}
	here, stranger := "/webhooks/"+hooks[0].ID.String(), w.signedIn(t, w.rival, ledger.RoleAdmin)
	stranger.post(t, here+"/test", nil).expect(t, http.StatusNotFound)
	stranger.post(t, here+"/delete", nil).expect(t, http.StatusNotFound)
	admin.get(t, here).expect(t, http.StatusOK, "No deliveries yet", "https://hooks.example/in", "&lt;script&gt;").without(t, "<script>")
	tested := admin.get(t, admin.post(t, here+"/test", nil).expect(t, http.StatusSeeOther).Header.Get("Location")).
		expect(t, http.StatusOK, "✓ The test was delivered: the receiver answered 204", "webhook.test", "Send again")
	again := regexp.MustCompile(here + `/deliveries/[^"]+`).FindString(tested.body)
	stranger.get(t, here).expect(t, http.StatusNotFound)
	stranger.post(t, again, nil).expect(t, http.StatusNotFound)
	admin.get(t, admin.post(t, again, nil).expect(t, http.StatusSeeOther).Header.Get("Location")).expect(t, http.StatusOK, "The message is queued")
	admin.post(t, here+"/delete", nil).expect(t, http.StatusSeeOther)
	admin.get(t, "/webhooks").expect(t, http.StatusOK, "None yet")
	admin.post(t, here+"/test", nil).expect(t, http.StatusNotFound)
	if strings.Contains(w.log.String(), secret) {
		t.Error("the log contains the secret")
	}
}

// Admins issue a public link for a receipt or an approval, which is shown once and
// ends when it is revoked.
func TestPublicLinksAreIssuedAndRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	receipt := w.complete(t, w.acme, asked.Chain)
	admin, member := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember)
	stranger := w.signedIn(t, w.rival, ledger.RoleAdmin)
	for artifact, path := range map[string]string{"approval": page(asked.ID), "receipt": "/receipts/" + receipt.String()} {
		member.get(t, path).expect(t, http.StatusOK).without(t, "Create public link")
		offered := admin.get(t, path).expect(t, http.StatusOK, "Create public link")
		form := url.Values{"days": {"30"}}
		for _, hidden := range regexp.MustCompile(`name="(artifact_type|artifact_id|once)" value="([^"]+)"`).FindAllStringSubmatch(offered.body, -1) {
			form.Set(hidden[1], hidden[2])
		}
		stranger.post(t, "/public-links", form).expect(t, http.StatusNotFound)
		link := shownOnce(t, admin.post(t, "/public-links", form).expect(t, http.StatusCreated, "Copy it now. It cannot be shown again"))
		token, found := strings.CutPrefix(link, w.server.URL+"/public/v2/verify/")
		if !found {
			t.Fatalf("the link is not to this server: %d characters", len(link))
		}
		result, err := w.service.VerifyToken(t.Context(), token)
		if err != nil || result.Artifact != artifact {
			t.Fatalf("the link shows %v: %v", result, err)
		}
		// A form sent again finds the link, and has nothing to show.
		admin.post(t, "/public-links", form).expect(t, http.StatusCreated, "already created and shown").without(t, token)
		form.Set("once", "")
		admin.post(t, "/public-links", form).expect(t, http.StatusUnprocessableEntity)
		listed := admin.get(t, "/public-links").expect(t, http.StatusOK, path, ">active<").without(t, token)
		revoke := regexp.MustCompile(`/public-links/[0-9a-f-]+/revoke`).FindString(listed.body)
		stranger.post(t, revoke, nil).expect(t, http.StatusNotFound)
		admin.post(t, revoke, nil).expect(t, http.StatusSeeOther)
		admin.get(t, "/public-links").expect(t, http.StatusOK, ">revoked<").without(t, revoke)
		if _, err := w.service.VerifyToken(t.Context(), token); err == nil {
			t.Error("the revoked link still works")
		}
		if strings.Contains(w.log.String(), token) {
			t.Error("the log contains the link")
		}
	}
	for _, days := range []string{"0", "x", "99999"} {
		bad := url.Values{"days": {days}, "once": {"o"}, "artifact_type": {"receipt"}, "artifact_id": {receipt.String()}}
		admin.post(t, "/public-links", bad).expect(t, http.StatusUnprocessableEntity, "1 to 3650 days")
	}
}

// Imported approvals have a page of their own, with what is known of their keys, and admins
// confirm a key and take that back.
func TestImportedApprovalsAreShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, member, stranger := w.signedIn(t, w.acme, ledger.RoleAdmin), w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.rival, ledger.RoleAdmin)
	const path = "/imported-approvals"
	member.get(t, "/approvals").expect(t, http.StatusOK).without(t, path)
	member.get(t, path).expect(t, http.StatusOK, "No approvals were imported")
	from, lines := servicetest.NewElsewhere(t), []string{}
	for range 26 {
		_, line := from.Decide(func(a *ledger.Approval) { a.AgentName = "<script>alert(1)</script>" })
		lines = append(lines, line)
	}
	imported, err := w.service.Operator().ImportApprovals(t.Context(), w.acme.slug, strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	member.get(t, "/approvals").expect(t, http.StatusOK, path)
	first := member.get(t, path).expect(t, http.StatusOK, "not evaluated", "✓ valid", "planted-reviewer", "Next →").without(t, "<script>alert", "trusted<")
	next := regexp.MustCompile(`/imported-approvals\?after=[0-9a-f-]+`).FindString(first.body)
	if rows := strings.Count(member.get(t, next).expect(t, http.StatusOK, "← First").body, "planted-reviewer"); rows != 1 {
		t.Errorf("the last page has %d rows, want 1", rows)
	}
	member.get(t, path+"?after=x").expect(t, http.StatusUnprocessableEntity)
	stranger.get(t, path).expect(t, http.StatusOK, "No approvals were imported")
	w.signedIn(t, w.acme, ledger.RoleAgent).get(t, path).expect(t, http.StatusForbidden)
	w.browser(t).get(t, path).expect(t, http.StatusUnauthorized)
	key := "/signing-keys/" + imported.Keys[0].ID.String()
	admin.get(t, "/signing-keys").expect(t, http.StatusOK, ">historical<", key+"/confirm").without(t, key+"/retract")
	stranger.post(t, key+"/confirm", nil).expect(t, http.StatusNotFound)
	member.post(t, key+"/confirm", nil).expect(t, http.StatusForbidden)
	admin.post(t, key+"/confirm", nil).expect(t, http.StatusSeeOther)
	admin.get(t, "/signing-keys").expect(t, http.StatusOK, ">confirmed<", key+"/retract").without(t, key+"/confirm")
	member.get(t, path).expect(t, http.StatusOK, "<td data-label=\"Key\">trusted</td>").without(t, "<td data-label=\"Key\">not evaluated</td>")
	admin.post(t, key+"/retract", nil).expect(t, http.StatusSeeOther)
	member.get(t, path).expect(t, http.StatusOK, "<td data-label=\"Key\">not evaluated</td>")
}
