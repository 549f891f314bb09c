package console_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// A sign-in link signs its key in once it is submitted, and opening the page does
// not use it up.
func TestLinkSignsIn(t *testing.T) {
	t.Parallel()
	for _, role := range []ledger.Role{ledger.RoleMember, ledger.RoleAdmin} {
		for _, form := range []string{"token", "link"} {
			t.Run(string(role)+" by "+form, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, setup{})
				b := w.browser(t)
				given := w.link(t, w.acme, role)
				if form == "link" {
					given = " " + w.server.URL + "/sign-in#" + given + "\n"
				}
				// Whatever opens the link beforehand leaves it unused.
				b.get(t, "/sign-in").expect(t, http.StatusOK, `action="/sign-in"`)
				b.get(t, "/sign-in").expect(t, http.StatusOK)
				answered := b.post(t, "/sign-in", url.Values{"link": {given}}).expect(t, http.StatusSeeOther)
				if to := answered.Header.Get("Location"); to != "/" {
					t.Errorf("signing in leads to %q, want the overview", to)
				}
				b.get(t, "/").expect(t, http.StatusOK, "The acme organization", string(role), "Sign out")
			})
		}
	}
}

// Whoever is asked to sign in comes to the page that they wanted, once, and never
// to another site.
func TestSigningInLeadsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	enter := func(b *browser) string {
		t.Helper()
		return b.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleMember)}}).expect(t, http.StatusSeeOther).Header.Get("Location")
	}
	b := w.browser(t)
	for _, wanted := range []string{"/approvals?status=denied", "/policies"} {
		b.get(t, wanted).expect(t, http.StatusUnauthorized)
		if to := enter(b); to != wanted {
			t.Errorf("signing in leads to %q, want %q", to, wanted)
		}
		if to := enter(b); to != "/" {
			t.Errorf("signing in again leads to %q", to)
		}
		b.post(t, "/sign-out", nil).expect(t, http.StatusSeeOther)
	}
	b.post(t, "/kill-switch/activate", nil).expect(t, http.StatusUnauthorized)
	if to := enter(b); to != "/kill-switch" {
		t.Errorf("a form leads to %q, want its page", to)
	}
	for _, foreign := range []string{
		"https://attacker.example/", "//attacker.example", "/\\attacker.example", "\\\\attacker.example", "javascript:alert(1)", "policies", "/a b", "/\r\nX: y", "/\x00", "/ä", "", "/%zz",
	} {
		header := http.Header{"Sec-Fetch-Site": {"same-origin"}, "Cookie": {"countersign_heading=" + base64.RawURLEncoding.EncodeToString([]byte(foreign))}}
		answered := w.browser(t).send(t, http.MethodPost, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleMember)}}, header).expect(t, http.StatusSeeOther)
		if to := answered.Header.Get("Location"); to != "/" {
			t.Errorf("%q leads to %q", foreign, to)
		}
	}
}

// The session cookie is HttpOnly, SameSite, host-only and, over TLS, Secure, and
// ends with the session.
func TestSessionCookieIsGuarded(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		tls  bool
		want http.Cookie
	}{
		{"plain", false, http.Cookie{Name: "countersign_session", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode}},
		{"TLS", true, http.Cookie{Name: "__Host-countersign_session", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: true}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{tls: c.tls})
			b := w.browser(t)
			set := b.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleMember)}}).expect(t, http.StatusSeeOther).Cookies()
			if len(set) != 1 {
				t.Fatalf("signing in sets %d cookies, want one", len(set))
			}
			if ends := time.Until(set[0].Expires); ends < time.Hour || ends > 24*time.Hour {
				t.Errorf("the cookie ends in %s, want it to end with the session", ends)
			}
			got := http.Cookie{Name: set[0].Name, Path: set[0].Path, Domain: set[0].Domain, HttpOnly: set[0].HttpOnly, SameSite: set[0].SameSite, Secure: set[0].Secure}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("the cookie's flags differ (-want +got):\n%s", diff)
			}
			b.get(t, "/").expect(t, http.StatusOK, "The acme organization")
			gone := b.post(t, "/sign-out", nil).expect(t, http.StatusSeeOther).Cookies()
			if len(gone) != 1 || gone[0].Name != c.want.Name || gone[0].MaxAge >= 0 {
				t.Errorf("signing out sets %v, want the cookie removed", gone)
			}
		})
	}
}

// Behind a proxy with TLS that nobody has named as one, the cookie of a browser that uses the public
// address is as guarded as without a proxy.
func TestSessionCookieIsGuardedBehindAProxy(t *testing.T) {
	t.Parallel()
	var w *world
	proxy := httptest.NewTLSServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		to, _ := url.Parse(w.server.URL)
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}})
	defer proxy.Close()
	w = newWorld(t, setup{public: proxy.URL})
	b := w.browser(t)
	b.client.Transport = proxy.Client().Transport
	b.at = proxy.URL
	set := b.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleMember)}}).expect(t, http.StatusSeeOther).Cookies()
	if len(set) != 1 || set[0].Name != "__Host-countersign_session" || !set[0].Secure {
		t.Errorf("signing in sets %v", set)
	}
	b.get(t, "/").expect(t, http.StatusOK, "The acme organization")

	within := w.browser(t)
	set = within.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleMember)}}).expect(t, http.StatusSeeOther).Cookies()
	if len(set) != 1 || set[0].Name != "countersign_session" || set[0].Secure {
		t.Errorf("signing in at another address without TLS sets %v", set)
	}
}

// A used, expired, unknown or malformed link signs nobody in, and the page says how
// to get another.
func TestBadLinksAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	used, expired := w.link(t, w.acme, ledger.RoleMember), w.link(t, w.rival, ledger.RoleMember)
	w.browser(t).post(t, "/sign-in", url.Values{"link": {used}}).expect(t, http.StatusSeeOther)
	w.elapsed.Store(int64(31 * time.Minute))
	cases := []struct {
		name, link string
		status     int
		says       string
	}{
		{"used", used, http.StatusUnauthorized, "has been used, has expired"},
		{"expired", expired, http.StatusUnauthorized, "has been used, has expired"},
		{"unknown", "csl_" + strings.Repeat("0", 43), http.StatusUnauthorized, "or is wrong"},
		{"API key", w.acme.keys[ledger.RoleAdmin].Text.Reveal(), http.StatusUnprocessableEntity, "This is an API key"},
		{"something else", "hello", http.StatusUnprocessableEntity, "not a sign-in link"},
		{"too long", "csl_" + strings.Repeat("0", 200), http.StatusUnprocessableEntity, "not a sign-in link"},
		{"nothing", "", http.StatusUnprocessableEntity, "Paste the sign-in link"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := w.browser(t)
			answered := b.post(t, "/sign-in", url.Values{"link": {c.link}}).expect(t, c.status, c.says, "countersign keys sign-in")
			if len(answered.Cookies()) != 0 {
				t.Error("a refused link sets a cookie")
			}
			if c.link != "" {
				answered.without(t, c.link)
			}
			b.get(t, "/").expect(t, http.StatusOK).without(t, "Sign out")
		})
	}
	t.Run("too large a form", func(t *testing.T) {
		t.Parallel()
		w.browser(t).post(t, "/sign-in", url.Values{"link": {strings.Repeat("x", 5000)}}).expect(t, http.StatusRequestEntityTooLarge)
	})
}

// A session ends when its user signs out or in again, with its time and with its
// key.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		end  func(*testing.T, *world, *browser)
	}{
		{"by signing out", func(t *testing.T, _ *world, b *browser) {
			other := *b // the same cookie, held elsewhere
			client := *b.client
			client.Jar = nil
			other.client = &client
			other.send(t, http.MethodPost, "/sign-out", nil, http.Header{"Cookie": {"countersign_session=" + b.session(t)}}).expect(t, http.StatusSeeOther)
		}},
		{"by another sign-in", func(t *testing.T, w *world, b *browser) {
			old := b.session(t)
			b.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleAdmin)}}).expect(t, http.StatusSeeOther)
			b.client.Jar = nil
			b.send(t, http.MethodGet, "/", nil, http.Header{"Cookie": {"countersign_session=" + old}}).expect(t, http.StatusOK).without(t, "Sign out")
		}},
		{"with time", func(_ *testing.T, w *world, _ *browser) { w.elapsed.Store(int64(13 * time.Hour)) }},
		{"with its key", func(t *testing.T, w *world, _ *browser) {
			if _, err := w.service.Operator().RevokeKey(t.Context(), "acme", w.acme.keys[ledger.RoleMember].Record.ID); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{})
			chain := w.open(t, w.acme, "nightly")
			b := w.signedIn(t, w.acme, ledger.RoleMember)
			b.get(t, "/chains/"+chain.String()).expect(t, http.StatusOK)
			c.end(t, w, b)
			b.get(t, "/chains/"+chain.String()).expect(t, http.StatusUnauthorized, "countersign keys sign-in").without(t, "nightly")
			b.get(t, "/").expect(t, http.StatusOK, "Proof of what agents did")
		})
	}
}

// A form that is sent after the session has ended changes nothing and says so. The sign-in then leads
// back to the page with the form.
func TestFormAfterTheSessionEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	asked := w.waits(t, w.acme, payment)
	b := w.signedIn(t, w.acme, ledger.RoleAdmin)
	for path, back := range map[string]string{
		page(asked.ID) + "/approve":                 page(asked.ID),
		"/kill-switch/activate":                     "/kill-switch",
		"/settings":                                 "/settings",
		"/policies/check":                           "/policies",
		"/api-keys/" + uuid.NewString() + "/rotate": "/api-keys",
	} {
		b.post(t, "/sign-out", nil).expect(t, http.StatusSeeOther)
		b.post(t, path, decision(asked, "")).expect(t, http.StatusUnauthorized, "Nothing was changed")
		if to := b.post(t, "/sign-in", url.Values{"link": {w.link(t, w.acme, ledger.RoleAdmin)}}).expect(t, http.StatusSeeOther).Header.Get("Location"); to != back {
			t.Errorf("after %s the sign-in leads to %s, want %s", path, to, back)
		}
	}
	if status := w.view(t, w.acme, asked.ID).Status; status != ledger.ApprovalPending {
		t.Errorf("the approval is %s", status)
	}
}

// A form that another site or subdomain sends is refused, and the session and the
// link stay as they are.
func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	own := w.server.URL
	cases := []struct {
		name    string
		header  http.Header
		allowed bool
	}{
		{"another site", http.Header{"Sec-Fetch-Site": {"cross-site"}}, false},
		{"a subdomain", http.Header{"Sec-Fetch-Site": {"same-site"}}, false},
		{"another origin", http.Header{"Origin": {"https://attacker.example"}}, false},
		{"a hidden origin", http.Header{"Origin": {"null"}}, false},
		{"another site with our origin", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Origin": {own}}, false},
		{"our page", http.Header{"Sec-Fetch-Site": {"same-origin"}}, true},
		{"our page over plain HTTP", http.Header{"Origin": {own}}, true},
		{"no browser", http.Header{}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			link := w.link(t, w.acme, ledger.RoleMember)
			b := w.signedIn(t, w.acme, ledger.RoleAdmin)
			if c.allowed {
				b.send(t, http.MethodPost, "/sign-in", url.Values{"link": {link}}, c.header).expect(t, http.StatusSeeOther)
				b.send(t, http.MethodPost, "/sign-out", nil, c.header).expect(t, http.StatusSeeOther)
				return
			}
			for path, form := range map[string]url.Values{"/sign-in": {"link": {link}}, "/sign-out": nil, "/check": {"receipt_id": {"x"}}} {
				b.send(t, http.MethodPost, path, form, c.header).expect(t, http.StatusForbidden, "another site")
			}
			b.get(t, "/").expect(t, http.StatusOK, "admin", "Sign out")
			w.browser(t).post(t, "/sign-in", url.Values{"link": {link}}).expect(t, http.StatusSeeOther)
		})
	}
}

// countingLimits lets a fixed number of failures pass and no public check.
type countingLimits struct{ failures int }

func (l *countingLimits) Public(*http.Request) time.Duration { return 1500 * time.Millisecond }

func (l *countingLimits) SignIn(*http.Request) time.Duration {
	if l.failures >= 2 {
		return time.Minute
	}
	return 0
}

func (l *countingLimits) SignInFailed(*http.Request) { l.failures++ }

func (l *countingLimits) Read(context.Context, *service.Caller) (release func(), err error) {
	return func() {}, nil
}

// Failed sign-ins and public checks are limited, and the answer says when to try
// again.
func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: &countingLimits{}})
	b := w.browser(t)
	link := w.link(t, w.acme, ledger.RoleMember)
	b.post(t, "/sign-in", url.Values{"link": {"csl_unknown"}}).expect(t, http.StatusUnauthorized)
	b.post(t, "/sign-in", url.Values{"link": {"hello"}}).expect(t, http.StatusUnprocessableEntity)
	refused := b.post(t, "/sign-in", url.Values{"link": {link}}).expect(t, http.StatusTooManyRequests, "60 s")
	if got := refused.Header.Get("Retry-After"); got != "60" {
		t.Errorf("Retry-After is %q, want 60", got)
	}
	check := b.post(t, "/check", url.Values{"receipt_id": {"x"}}).expect(t, http.StatusTooManyRequests)
	if got := check.Header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After is %q, want 2", got)
	}
	b.get(t, "/check").expect(t, http.StatusOK)
}
