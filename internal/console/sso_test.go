package console_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/sso"
)

// signOn stands for package sso, which has its own tests: it proves whatever a test wants.
type signOn struct {
	who sso.Identity
	err error // nil: somebody is proven
	to  string
	// asked is called whenever the provider is; optional
	asked func()
}

func newSignOn(signInAs string) *signOn {
	return &signOn{who: sso.Identity{Issuer: "https://id.example.com", Subject: "subject-1", SignInAs: signInAs}, to: "https://id.example.com/authorize?state=x"}
}

var errForged = &sso.Error{Shown: "This sign-in was not begun in this browser.", Why: errors.New("forged")}

func keep(kind, text string) string {
	return kind + base64.RawURLEncoding.EncodeToString([]byte(text))
}

func kept(kind, text string) (string, error) {
	encoded, ok := strings.CutPrefix(text, kind)
	if !ok {
		return "", errForged
	}
	decoded, err := base64.RawURLEncoding.DecodeString(encoded)
	return string(decoded), err
}

func (s *signOn) Name() string { return "Example <Login>" }

func (s *signOn) Begin(_ context.Context, returnTo string) (address, cookie string, err error) {
	s.ask()
	return s.to, keep("flow-", returnTo), s.err
}

func (s *signOn) ask() {
	if s.asked != nil {
		s.asked()
	}
}

func (s *signOn) Finish(_ context.Context, cookie string, answer url.Values) (*sso.Identity, string, error) {
	s.ask()
	if answer.Get("state") == "of another flow" {
		return nil, "", sso.ErrNotBegun
	}
	to, err := kept("flow-", cookie)
	if err == nil {
		err = s.err
	}
	return &s.who, to, err
}

func (s *signOn) KeepProof(_ *sso.Identity, returnTo string) (string, error) {
	return keep("proof-", returnTo), nil
}

func (s *signOn) OpenProof(cookie string) (*sso.Identity, string, error) {
	to, err := kept("proof-", cookie)
	return &s.who, to, err
}

// personal makes a key for an identity.
func (w *world) personal(t *testing.T, of *tenant, name, signInAs string) *service.NewKey {
	t.Helper()
	key, err := w.service.Operator().CreateKey(t.Context(), of.slug, &service.KeyRequest{Name: name, Role: ledger.RoleMember, SignInAs: signInAs})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

const (
	beginPath    = "/sign-in/sso"
	callbackPath = "/sign-in/sso/callback"
	alice        = "alice@example.com"
)

// Every page that asks people to sign in offers it. Somebody with one key is signed in as it, comes to the page that they wanted, and has nothing of the
// flow left. The flow's cookie is guarded like the session's.
func TestSingleSignOnLeadsOn(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]http.Cookie{
		"plain": {Name: "countersign_sso", Path: "/", MaxAge: 600, HttpOnly: true, SameSite: http.SameSiteLaxMode},
		"TLS":   {Name: "__Host-countersign_sso", Path: "/", MaxAge: 600, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{sso: newSignOn(alice), tls: want.Secure})
			w.personal(t, w.acme, "alice", alice)
			b := w.browser(t)
			button := []string{"Sign in with Example &lt;Login&gt;", `href="https://console.example.com/sign-in/sso"`}
			b.get(t, "/").expect(t, http.StatusOK, append(button, `href="/sign-in"`)...)
			b.get(t, "/policies").expect(t, http.StatusUnauthorized, append(button, `href="/sign-in"`)...)
			b.get(t, "/sign-in").expect(t, http.StatusOK, append(button, `action="/sign-in"`)...)
			begun := b.get(t, beginPath).expect(t, http.StatusSeeOther)
			if to := begun.Header.Get("Location"); to != "https://id.example.com/authorize?state=x" {
				t.Errorf("the browser is sent to %s", to)
			}
			set := begun.Cookies()
			if len(set) != 1 {
				t.Fatalf("beginning sets %d cookies, want one", len(set))
			}
			got := http.Cookie{Name: set[0].Name, Path: set[0].Path, Domain: set[0].Domain, MaxAge: set[0].MaxAge, HttpOnly: set[0].HttpOnly, SameSite: set[0].SameSite, Secure: set[0].Secure}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the cookie differs (-want +got):\n%s", diff)
			}
			done := b.get(t, callbackPath+"?state=x&code=y").expect(t, http.StatusSeeOther)
			if to := done.Header.Get("Location"); to != "/policies" {
				t.Errorf("signing in leads to %s", to)
			}
			b.get(t, "/").expect(t, http.StatusOK, "The acme organization", "alice", "Sign out")
			b.get(t, callbackPath+"?state=x&code=y").expect(t, http.StatusUnauthorized, "not begun in this browser")
			b.get(t, beginPath).expect(t, http.StatusSeeOther)
			if to := b.get(t, callbackPath).expect(t, http.StatusSeeOther).Header.Get("Location"); to != "/" {
				t.Errorf("signing in again leads to %s", to)
			}
		})
	}
}

// wordySignOn keeps several times as much as it was given.
type wordySignOn struct{ *signOn }

func (s *wordySignOn) Begin(ctx context.Context, returnTo string) (address, cookie string, err error) {
	return s.signOn.Begin(ctx, strings.ReplaceAll(returnTo, "&", "&&&&&&"))
}

func (s *wordySignOn) KeepProof(who *sso.Identity, returnTo string) (string, error) {
	return s.signOn.KeepProof(who, strings.ReplaceAll(returnTo, "&", "&&&&&&"))
}

// Whatever a browser kept, single sign-on never leads to another site, and the answer to a flow of
// another browser signs nobody in.
func TestSingleSignOnStaysHere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{sso: newSignOn(alice)})
	w.personal(t, w.acme, "alice", alice)
	for _, foreign := range []string{"https://attacker.example/", "//attacker.example", "/\\attacker.example", "javascript:alert(1)", "/\r\nX: y", ""} {
		header := http.Header{"Cookie": {"countersign_sso=" + keep("flow-", foreign)}}
		answered := w.browser(t).send(t, http.MethodGet, callbackPath, nil, header).expect(t, http.StatusSeeOther)
		if to := answered.Header.Get("Location"); to != "/" {
			t.Errorf("%q leads to %q", foreign, to)
		}
	}
	for name, cookie := range map[string]string{
		"none": "", "a proof": "countersign_sso=" + keep("proof-", "/"), "two": "countersign_sso=" + keep("flow-", "/") + "; countersign_sso=" + keep("flow-", "/"),
		"a long one": "countersign_sso=" + keep("flow-", strings.Repeat("x", 3000)),
	} {
		answered := w.browser(t).send(t, http.MethodGet, callbackPath+"?code=planted-code", nil, http.Header{"Cookie": {cookie}}).expect(t, http.StatusUnauthorized)
		for _, set := range answered.Cookies() {
			if set.Value != "" {
				t.Errorf("%s: sets %s", name, set.Name)
			}
		}
	}
	b := w.browser(t)
	b.get(t, "/chains?q="+strings.Repeat("x", 1200)).expect(t, http.StatusUnauthorized)
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	if to := b.get(t, callbackPath).expect(t, http.StatusSeeOther).Header.Get("Location"); to != "/" {
		t.Errorf("a long page leads to %.50s", to)
	}
	// A page of other characters takes several times as much of the cookie as it has letters.
	w.listen(t, setup{sso: &wordySignOn{newSignOn(alice)}})
	for _, page := range []string{"/chains?" + strings.Repeat("&", 900), "/chains?q=x"} {
		b := w.browser(t)
		b.get(t, page).expect(t, http.StatusUnauthorized)
		begun := b.get(t, beginPath).expect(t, http.StatusSeeOther)
		for _, cookie := range begun.Cookies() {
			if len(cookie.Value) > 3000 {
				t.Errorf("a cookie has %d bytes", len(cookie.Value))
			}
		}
		b.get(t, callbackPath).expect(t, http.StatusSeeOther)
	}
	if log := w.log.String(); strings.Contains(log, "planted") || strings.Contains(log, "alice") {
		t.Errorf("the log has a code or an identity: %s", log)
	}
}

// An answer to no flow of the browser, such as one that another site sent it to or one of an older tab,
// does not end the flow that is under way. Any other answer does.
func TestStrayAnswersEndNoFlow(t *testing.T) {
	t.Parallel()
	stub := newSignOn(alice)
	w := newWorld(t, setup{sso: stub})
	w.personal(t, w.acme, "alice", alice)
	b := w.browser(t)
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	b.get(t, callbackPath+"?state=of+another+flow").expect(t, http.StatusUnauthorized, "not begun in this browser")
	b.get(t, callbackPath).expect(t, http.StatusSeeOther)
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	stub.err = errForged
	b.get(t, callbackPath).expect(t, http.StatusUnauthorized)
	stub.err = nil
	b.get(t, callbackPath).expect(t, http.StatusUnauthorized)
}

// heldReads counts the slots for reading that are held.
type heldReads struct {
	countingLimits
	held atomic.Int32
}

func (l *heldReads) Read(context.Context, *service.Caller) (release func(), err error) {
	l.held.Add(1)
	return func() { l.held.Add(-1) }, nil
}

// Somebody who is signed in already occupies none of their organization's reads while the provider is
// asked, which may take seconds.
//
//countersign:race
func TestSingleSignOnHoldsNoReads(t *testing.T) {
	t.Parallel()
	limits, stub, asked := &heldReads{}, newSignOn(alice), new(atomic.Int32)
	stub.asked = func() {
		asked.Add(1)
		if n := limits.held.Load(); n > 0 {
			t.Errorf("the provider is asked with %d slots for reading", n)
		}
	}
	w := newWorld(t, setup{sso: stub, limits: limits})
	w.personal(t, w.acme, "alice", alice)
	b := w.signedIn(t, w.acme, ledger.RoleMember)
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	b.get(t, callbackPath).expect(t, http.StatusSeeOther)
	if n := asked.Load(); n != 2 {
		t.Errorf("the provider was asked %d times", n)
	}
}

// Somebody without a key is told which identity was seen and what to do, gets no session and no key.
// Failures of a person count like failed sign-ins with a link; those of the provider do not.
func TestSingleSignOnRefusals(t *testing.T) {
	t.Parallel()
	stub := newSignOn("<mallory>@example.com")
	limits := &countingLimits{}
	w := newWorld(t, setup{sso: stub, limits: limits})
	b := w.browser(t)
	stub.err = &sso.Error{Shown: "The identity provider does not answer. Use a sign-in link.", Unavailable: true, Why: errors.New("down")}
	for range 3 {
		b.get(t, beginPath).expect(t, http.StatusServiceUnavailable, "Use a sign-in link", `action="/sign-in"`)
	}
	stub.err = nil
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	unknown := b.get(t, callbackPath).expect(t, http.StatusForbidden, "&lt;mallory&gt;@example.com", "Ask an admin", "--sign-in-as")
	for _, cookie := range unknown.Cookies() {
		if cookie.Value != "" {
			t.Errorf("somebody without a key gets %s", cookie.Name)
		}
	}
	b.get(t, callbackPath).expect(t, http.StatusUnauthorized)
	b.get(t, callbackPath).expect(t, http.StatusTooManyRequests, "60 s")
	b.post(t, beginPath, url.Values{"key": {uuid.NewString()}}).expect(t, http.StatusTooManyRequests)
	if limits.failures != 2 {
		t.Errorf("%d failures were counted", limits.failures)
	}
}

// While the provider is down, somebody who presses the button all the time does not fill the log: after
// some lines there is one every ten seconds, which says how many there were not. The refusals of people
// have a limit of their own.
func TestSingleSignOnFillsNoLog(t *testing.T) {
	t.Parallel()
	stub := newSignOn(alice)
	w := newWorld(t, setup{sso: stub})
	b := w.browser(t)
	// lines returns the number of lines with a reason, and how many more these say there were not.
	lines := func(reason string) (logged, unlogged int) {
		for line := range strings.Lines(w.log.String()) {
			var entry struct {
				Msg, Error     string
				UnloggedBefore int `json:"unlogged_before"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "single sign-on failed" && entry.Error == reason {
				logged, unlogged = logged+1, unlogged+entry.UnloggedBefore
			}
		}
		return logged, unlogged
	}
	down := &sso.Error{Shown: "It does not answer.", Unavailable: true, Why: errors.New("the provider is down")}
	stub.err = down
	for range 100 {
		b.get(t, beginPath).expect(t, http.StatusServiceUnavailable, "It does not answer.")
	}
	if n, _ := lines("the provider is down"); n < 1 || n > 30 {
		t.Errorf("100 attempts have %d lines in the log", n)
	}
	stub.err = nil
	b.get(t, callbackPath).expect(t, http.StatusUnauthorized)
	if n, _ := lines("forged"); n != 1 {
		t.Errorf("a refusal has %d lines in the log while the provider is down", n)
	}
	b.get(t, callbackPath+"?state=of+another+flow").expect(t, http.StatusUnauthorized)
	if n, _ := lines("the answer belongs to no flow of this browser"); n != 0 {
		t.Errorf("an answer to no flow, which anybody can send, has %d lines in the log", n)
	}
	w.elapsed.Add(int64(time.Minute))
	stub.err = down
	b.get(t, beginPath).expect(t, http.StatusServiceUnavailable)
	if logged, unlogged := lines("the provider is down"); logged+unlogged != 101 {
		t.Errorf("of 101 attempts the log has %d and says of %d that it has not", logged, unlogged)
	}
}

// Somebody with keys in several organizations chooses one with a form. The choice counts only with
// the proof of who they are, and only for a key that is theirs. Who then goes back is still signed in.
func TestSingleSignOnChoice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{sso: newSignOn(alice)})
	first, second := w.personal(t, w.acme, "alice", alice), w.personal(t, w.rival, "guest", alice)
	choose := func(key *service.NewKey) url.Values { return url.Values{"key": {key.Record.ID.String()}} }
	b := w.browser(t)
	b.post(t, beginPath, choose(first)).expect(t, http.StatusUnauthorized, "not begun in this browser")
	b.get(t, "/approvals").expect(t, http.StatusUnauthorized)
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	b.get(t, callbackPath).expect(t, http.StatusOK, "The acme organization: alice, member <code>"+w.acme.slug+"</code>", "The rival organization: guest, member <code>"+w.rival.slug+"</code>", first.Record.ID.String(), second.Record.ID.String())
	again := b.get(t, callbackPath+"?state=of+another+flow").expect(t, http.StatusOK, first.Record.ID.String(), second.Record.ID.String()) // loaded again
	for _, cookie := range again.Cookies() {
		t.Errorf("loading the choice again sets %s", cookie.Name)
	}
	b.get(t, "/policies").expect(t, http.StatusUnauthorized)
	b.post(t, beginPath, nil).expect(t, http.StatusUnprocessableEntity)
	b.send(t, http.MethodPost, beginPath, choose(second), http.Header{"Sec-Fetch-Site": {"cross-site"}}).expect(t, http.StatusForbidden)
	done := b.post(t, beginPath, choose(second)).expect(t, http.StatusSeeOther)
	if to := done.Header.Get("Location"); to != "/approvals" {
		t.Errorf("the choice leads to %s", to)
	}
	b.get(t, "/").expect(t, http.StatusOK, "The rival organization", "guest")
	back := b.get(t, callbackPath+"?state=of+another+flow").expect(t, http.StatusSeeOther)
	if to := back.Header.Get("Location"); to != "/" {
		t.Errorf("going back leads to %s", to)
	}
	b.post(t, beginPath, choose(first)).expect(t, http.StatusUnauthorized)

	other := w.browser(t)
	other.get(t, beginPath).expect(t, http.StatusSeeOther)
	other.get(t, callbackPath).expect(t, http.StatusOK)
	other.post(t, beginPath, choose(w.acme.keys[ledger.RoleAdmin])).expect(t, http.StatusUnauthorized, "not for you")
	other.get(t, "/policies").expect(t, http.StatusUnauthorized)
}

// What was proven of one person signs nobody in any more once somebody has signed in or out in the same
// browser.
func TestProofsEndWithTheNextSignIn(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(t *testing.T, w *world, b *browser){
		"a sign-in link": func(t *testing.T, w *world, b *browser) {
			t.Helper()
			b.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleMember)}}).expect(t, http.StatusSeeOther)
		},
		"signing out": func(t *testing.T, _ *world, b *browser) {
			t.Helper()
			b.post(t, "/sign-out", nil).expect(t, http.StatusSeeOther)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{sso: newSignOn(alice)})
			first := w.personal(t, w.acme, "alice", alice)
			w.personal(t, w.rival, "guest", alice)
			b := w.browser(t)
			b.get(t, beginPath).expect(t, http.StatusSeeOther)
			b.get(t, callbackPath).expect(t, http.StatusOK)
			next(t, w, b)
			b.post(t, beginPath, url.Values{"key": {first.Record.ID.String()}}).expect(t, http.StatusUnauthorized, "not begun in this browser")
		})
	}
}

// Without single sign-on there is no button, and its addresses lead nowhere.
func TestWithoutSingleSignOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	b := w.browser(t)
	b.get(t, "/").expect(t, http.StatusOK, "keys sign-in KEY_ID").without(t, beginPath)
	b.get(t, "/policies").expect(t, http.StatusUnauthorized, "keys sign-in KEY_ID").without(t, beginPath)
	b.get(t, "/sign-in").expect(t, http.StatusOK).without(t, beginPath)
	b.get(t, beginPath).expect(t, http.StatusNotFound, "sign-in link")
	b.get(t, callbackPath).expect(t, http.StatusNotFound)
	b.post(t, beginPath, nil).expect(t, http.StatusNotFound)
}

// The forms say beside a field that does nothing yet what the server lacks for it.
func TestFormsSayWhatTheServerLacks(t *testing.T) {
	t.Parallel()
	noSSO, noSlack := []string{"This server has no single sign-on yet", "this server has none yet"}, []string{"This server has no Slack app yet", "this server has no Slack app yet"}
	without := newWorld(t, setup{})
	admin := without.signedIn(t, without.acme, ledger.RoleAdmin)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, append(noSSO, noSlack...)...)
	admin.get(t, "/settings").expect(t, http.StatusOK, "This server has no Slack app yet, so nothing is sent")

	with := newWorld(t, setup{sso: newSignOn(alice), slack: notify.NewSlack(notify.SlackConfig{})})
	admin = with.signedIn(t, with.acme, ledger.RoleAdmin)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, "Whoever presses a button there is told theirs").without(t, append(noSSO, noSlack...)...)
	admin.get(t, "/settings").expect(t, http.StatusOK, "Invite the app to the channel").without(t, noSlack...)
	bad := filled(t, admin)
	bad.Set("slack_channel", "#general")
	admin.post(t, "/settings", bad).expect(t, http.StatusUnprocessableEntity, "must be the id of a Slack channel", "Invite the app to the channel")
}

// An admin says who decides with a key in Slack when it is created and later, and is told why something
// is refused.
func TestAdminSaysWhoDecidesInSlack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	create := func(name, role, member string) *answer {
		t.Helper()
		return admin.post(t, "/api-keys", admin.fill(t, "/api-keys", url.Values{"name": {name}, "role": {role}, "slack_member": {member}}))
	}
	create("alice", "member", "T0AAAAAAA/U0ANN").expect(t, http.StatusCreated, "<code>T0AAAAAAA/U0ANN</code> decides with it in Slack", "<code>T0AAAAAAA/U0ANN</code> does not need it")
	create("again", "admin", "T0AAAAAAA/U0ANN").expect(t, http.StatusConflict, "is for the Slack member T0AAAAAAA/U0ANN already", `value="T0AAAAAAA/U0ANN"`)
	create("robot", "agent", "T0AAAAAAA/U0BOT").expect(t, http.StatusUnprocessableEntity, "agents do not decide")
	create("bob", "member", "@bob").expect(t, http.StatusUnprocessableEntity, "must be a Slack team id, a slash and a member id", `value="@bob"`)
	here := "/api-keys/" + w.acme.keys[ledger.RoleMember].Record.ID.String() + "/sign-in-as"
	admin.post(t, here, url.Values{"slack_member": {"U0BOB"}}).expect(t, http.StatusUnprocessableEntity, "was not changed", "must be a Slack team id", `value="U0BOB"`)
	admin.post(t, here, url.Values{"slack_member": {"T0AAAAAAA/U0BOB"}}).expect(t, http.StatusSeeOther)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, "<code>T0AAAAAAA/U0BOB</code> decides with it in Slack")
	admin.post(t, here, url.Values{"slack_member": {""}}).expect(t, http.StatusSeeOther)
	admin.get(t, "/api-keys").expect(t, http.StatusOK).without(t, "U0BOB")
}

// An admin says who signs in as a key when it is created and later, and is told why something is
// refused.
func TestAdminSaysWhoSignsIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	make := func(name, role, signInAs string) *answer {
		t.Helper()
		return admin.post(t, "/api-keys", admin.fill(t, "/api-keys", url.Values{"name": {name}, "role": {role}, "sign_in_as": {signInAs}}))
	}
	make("alice", "member", "Alice@Example.com").expect(t, http.StatusCreated, "<code>alice@example.com</code> signs in as it")
	make("again", "admin", alice).expect(t, http.StatusConflict, "already", `value="alice@example.com"`)
	make("robot", "agent", "robot@example.com").expect(t, http.StatusUnprocessableEntity, "agents do not sign in")
	make("erin", "member", "erin@example.com").expect(t, http.StatusCreated, "<code>erin@example.com</code> does not need it")
	here := "/api-keys/" + w.acme.keys[ledger.RoleMember].Record.ID.String() + "/sign-in-as"
	admin.post(t, here, url.Values{"sign_in_as": {alice}}).expect(t, http.StatusConflict, "was not changed", "The active key &#34;alice&#34; is for alice@example.com already")
	// What was sent is there to be corrected, and the form for a new key stays empty.
	admin.post(t, here, url.Values{"sign_in_as": {"with space"}}).expect(t, http.StatusUnprocessableEntity, "was not changed", "visible ASCII", `<details class="sure" open>`, `value="with space"`)
	changed := admin.post(t, here, url.Values{"sign_in_as": {"Subject|1"}}).expect(t, http.StatusSeeOther)
	if to, want := changed.Header.Get("Location"), "/api-keys#key-"+w.acme.keys[ledger.RoleMember].Record.ID.String(); to != want {
		t.Errorf("the change leads to %s, want %s", to, want)
	}
	admin.get(t, "/api-keys").expect(t, http.StatusOK, "<code>Subject|1</code> signs in as it")
	admin.post(t, here, url.Values{"sign_in_as": {""}}).expect(t, http.StatusSeeOther)
	admin.get(t, "/api-keys").expect(t, http.StatusOK).without(t, "Subject|1")
	admin.get(t, "/audit-log").expect(t, http.StatusOK, "api_key.update")
}

// Whoever an admin moves away from a key is signed out, and is told so at the next page.
func TestMovedAwayIsSignedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{sso: newSignOn(alice)})
	key := w.personal(t, w.acme, "payments", alice)
	b := w.browser(t)
	b.get(t, beginPath).expect(t, http.StatusSeeOther)
	b.get(t, callbackPath).expect(t, http.StatusSeeOther)
	b.get(t, "/approvals").expect(t, http.StatusOK, "payments")
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, "is signed out when somebody else is entered")
	admin.post(t, "/api-keys/"+key.Record.ID.String()+"/sign-in-as", url.Values{"sign_in_as": {"bob@example.com"}}).expect(t, http.StatusSeeOther)
	b.get(t, "/approvals").expect(t, http.StatusUnauthorized, "your session has ended")
	admin.get(t, "/approvals").expect(t, http.StatusOK)
}

// The console changes who decides with a key in Slack and who signs in as it one by one: neither change
// undoes what somebody else did to the other since the page was opened.
func TestPeopleOfAKeyAreChangedOneByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	here := "/api-keys/" + w.acme.keys[ledger.RoleMember].Record.ID.String() + "/sign-in-as"
	change := func(name, value string) *answer {
		t.Helper()
		return admin.post(t, here, url.Values{name: {value}})
	}
	change("slack_member", "T1/U1").expect(t, http.StatusSeeOther)
	change("sign_in_as", alice).expect(t, http.StatusSeeOther)
	page := admin.get(t, "/api-keys").expect(t, http.StatusOK, `value="T1/U1"`, `value="alice@example.com"`)
	if forms := strings.Count(page.body, `action="`+here+`"`); forms != 2 {
		t.Errorf("the key has %d forms for its people", forms)
	}
	change("slack_member", "T1").expect(t, http.StatusUnprocessableEntity, "was not changed", `value="T1"`, `value="alice@example.com"`)
	change("slack_member", "").expect(t, http.StatusSeeOther)
	change("sign_in_as", "bob@example.com").expect(t, http.StatusSeeOther)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, `value="bob@example.com"`).without(t, "T1/U1")
	admin.post(t, here, nil).expect(t, http.StatusUnprocessableEntity, "was not changed")
}
