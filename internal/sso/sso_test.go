package sso_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/servicetest"
	"countersign/internal/sso"
)

// planted is in everything that must never be shown or logged.
const planted = "planted"

// refusal returns why somebody was not signed in, and checks that neither text has a secret.
func refusal(t *testing.T, p *provider, err error) *sso.Error {
	t.Helper()
	var why *sso.Error
	if !errors.As(err, &why) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, text := range []string{why.Shown, why.Error()} {
		if text == "" || strings.Contains(text, planted) || strings.Contains(text, p.secret) || len(text) > 400 {
			t.Errorf("the refusal says %q", text)
		}
	}
	return why
}

// The flow asks for what it must, with PKCE, state and nonce, and proves who the person is. The
// address that the browser is sent to has no secret.
func TestFlowProvesWhoSomebodyIs(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	c := p.client(nil)
	address, kept, err := c.Begin(t.Context(), "/policies")
	if err != nil {
		t.Fatal(err)
	}
	asked, answered := p.authorize(address)
	for name, want := range map[string]string{
		"response_type": "code", "client_id": clientID, "scope": "openid email", "code_challenge_method": "S256",
		"redirect_uri": "https://console.example.com/sign-in/sso/callback",
	} {
		if got := asked[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"state", "nonce", "code_challenge"} {
		if value := asked.Get(name); len(value) < 43 || strings.Contains(kept, value) {
			t.Errorf("%s is %q, and the browser keeps %q", name, value, kept)
		}
	}
	if strings.Contains(address, p.secret) || strings.Contains(address, url.QueryEscape(p.secret)) {
		t.Error("the address has the client's secret")
	}
	who, returnTo, err := c.Finish(t.Context(), kept, answered)
	if err != nil {
		t.Fatal(err)
	}
	if want := (sso.Identity{Issuer: p.server.URL, Subject: "subject-1", SignInAs: "alice@example.com"}); *who != want || returnTo != "/policies" {
		t.Errorf("proven: %+v, to %s", who, returnTo)
	}
	_, _, err = c.Finish(t.Context(), kept, answered)
	if why := refusal(t, p, err); why.Unavailable {
		t.Error("a code that was used is taken for a failure of the provider")
	}
	again, _, err := c.Begin(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	if second, _ := p.authorize(again); second.Get("state") == asked.Get("state") || second.Get("nonce") == asked.Get("nonce") {
		t.Error("two flows share a state or a nonce")
	}
	if p.called("/.well-known/openid-configuration") != 1 {
		t.Error("the discovery document is read for every flow")
	}
}

// An ID token that is not for this flow, this client and this moment, or that the provider has not
// signed, proves nothing.
func TestTokensThatProveNothing(t *testing.T) {
	t.Parallel()
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*provider){
		"another nonce":             func(p *provider) { p.claims = map[string]any{"nonce": "planted-nonce"} },
		"no nonce":                  func(p *provider) { p.claims = map[string]any{"nonce": nil} },
		"a nonce in another case":   func(p *provider) { p.claims = map[string]any{"nonce": nil, "Nonce": "x"} },
		"another audience":          func(p *provider) { p.claims = map[string]any{"aud": "another"} },
		"two audiences without azp": func(p *provider) { p.claims = map[string]any{"aud": []string{clientID, "another"}} },
		"two audiences, another azp": func(p *provider) {
			p.claims = map[string]any{"aud": []string{clientID, "another"}, "azp": "another"}
		},
		"another azp":               func(p *provider) { p.claims = map[string]any{"azp": "another"} },
		"an azp of no text":         func(p *provider) { p.claims = map[string]any{"azp": 7} },
		"another issuer":            func(p *provider) { p.claims = map[string]any{"iss": "https://elsewhere.example"} },
		"expired":                   func(p *provider) { p.claims = map[string]any{"exp": noon.Add(-time.Second).Unix()} },
		"no expiry":                 func(p *provider) { p.claims = map[string]any{"exp": nil} },
		"not valid yet":             func(p *provider) { p.claims = map[string]any{"nbf": noon.Add(6 * time.Minute).Unix()} },
		"an issuer in another case": func(p *provider) { p.claims = map[string]any{"iss": nil, "ISS": p.server.URL} },
		"an issuer with a long s": func(p *provider) {
			p.claims = map[string]any{"iss": "https://elsewhere.example", "i\u017fs": p.server.URL}
		},
		"an audience in another case": func(p *provider) { p.claims = map[string]any{"aud": nil, "Aud": clientID} },
		"an expiry in another case":   func(p *provider) { p.claims = map[string]any{"exp": nil, "EXP": noon.Add(time.Minute).Unix()} },
		"a second start in another case": func(p *provider) {
			p.claims = map[string]any{"nbf": noon.Add(6 * time.Minute).Unix(), "NBF": noon.Unix()}
		},
		"no subject":         func(p *provider) { p.claims = map[string]any{"sub": nil} },
		"a long subject":     func(p *provider) { p.claims = map[string]any{"sub": strings.Repeat("s", 256)} },
		"an unusual subject": func(p *provider) { p.claims = map[string]any{"sub": "ünal"} },
		"no signature": func(p *provider) {
			p.header = map[string]any{"alg": "none", "kid": nil}
			p.sign = func([]byte) []byte { return nil }
		},
		"an empty signature":        func(p *provider) { p.sign = func([]byte) []byte { return nil } },
		"another key's signature":   func(p *provider) { p.sign = func(input []byte) []byte { return signWith(other, input) } },
		"a signature of other text": func(p *provider) { p.sign = func(input []byte) []byte { return signWith(p.key, input[1:]) } },
		"HS256 with the public key": func(p *provider) {
			p.header = map[string]any{"alg": "HS256"}
			p.sign = p.signedWithPublicKey
		},
		"HS256 with the client's secret": func(p *provider) {
			p.header = map[string]any{"alg": "HS256", "kid": nil}
			p.sign = func(input []byte) []byte { return hmacOf([]byte(p.secret), input) }
		},
		"an unknown key": func(p *provider) {
			p.header = map[string]any{"kid": "two"}
			p.sign = func(input []byte) []byte { return signWith(other, input) }
		},
		"no ID token": func(p *provider) {
			p.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					answer(w, map[string]any{"access_token": "planted", "token_type": "Bearer"})
				}
				return r.URL.Path == "/token"
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			spoil(p)
			_, err := p.client(nil).signIn()
			if why := refusal(t, p, err); !strings.Contains(why.Shown, "does not prove who you are") {
				t.Errorf("refused with %q", why.Shown)
			}
		})
	}
}

// The claim counts only as it was promised: an e-mail address where the provider has verified it,
// anything else byte by byte, and from the user's claims only if they are about the same person.
func TestClaims(t *testing.T) {
	t.Parallel()
	const useAnother = "--oidc-claim sub"
	without := map[string]any{"email": nil, "email_verified": nil}
	for name, test := range map[string]struct {
		claim            string
		claims, userInfo map[string]any
		want, refused    string
	}{
		"verified":                                    {want: "alice@example.com"},
		"verified, as text":                           {claims: map[string]any{"email_verified": "true"}, want: "alice@example.com"},
		"not verified":                                {claims: map[string]any{"email_verified": false}, refused: useAnother},
		"not verified, as text":                       {claims: map[string]any{"email_verified": "false"}, refused: useAnother},
		"nothing about verification":                  {claims: map[string]any{"email_verified": nil}, refused: useAnother},
		"verified by a number":                        {claims: map[string]any{"email_verified": 1}, refused: useAnother},
		"verified in another case":                    {claims: map[string]any{"email_verified": nil, "Email_Verified": true}, refused: useAnother},
		"verified elsewhere only":                     {claims: map[string]any{"email_verified": nil}, userInfo: map[string]any{"email_verified": true}, refused: useAnother},
		"no address":                                  {claims: without, refused: "sends no email"},
		"an address in another case":                  {claims: map[string]any{"email": nil, "EMAIL": "alice@example.com"}, refused: "sends no email"},
		"an address that is no text":                  {claims: map[string]any{"email": []string{"alice@example.com"}}, refused: "sends no email"},
		"a look-alike":                                {claims: map[string]any{"email": "аlice@example.com"}, refused: "not ASCII"},
		"a dotless i":                                 {claims: map[string]any{"email": "alıce@example.com"}, refused: "not ASCII"},
		"a space":                                     {claims: map[string]any{"email": "alice@example.com "}, refused: "spaces"},
		"a long address":                              {claims: map[string]any{"email": strings.Repeat("a", 250) + "@b.example"}, refused: "too long"},
		"of the user":                                 {claims: without, userInfo: map[string]any{"email": "Bob@example.com", "email_verified": true}, want: "bob@example.com"},
		"of the user, not verified":                   {claims: without, userInfo: map[string]any{"email": "bob@example.com"}, refused: useAnother},
		"of another user":                             {claims: without, userInfo: map[string]any{"sub": "subject-2", "email": "bob@example.com", "email_verified": true}, refused: "does not prove"},
		"of nobody":                                   {claims: without, userInfo: map[string]any{"sub": nil, "email": "bob@example.com", "email_verified": true}, refused: "does not prove"},
		"two audiences, and the client":               {claims: map[string]any{"aud": []string{"another", clientID}, "azp": clientID}, want: "alice@example.com"},
		"the subject":                                 {claim: "sub", claims: without, want: "subject-1"},
		"a subject in capitals":                       {claim: "sub", claims: map[string]any{"sub": "Subject-1"}, want: "Subject-1"},
		"a subject like an address":                   {claim: "sub", claims: map[string]any{"sub": "a@example.com"}, want: "a@example.com"},
		"an address in capitals that need not be one": {claim: "sub", claims: map[string]any{"sub": "A@example.com"}, refused: "compared safely"},
		"another claim":                               {claim: "preferred_username", userInfo: map[string]any{"preferred_username": "Alice"}, want: "Alice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			p.claims, p.userInfo = test.claims, test.userInfo
			who, err := p.client(func(c *sso.Config) {
				if test.claim != "" {
					c.Claim = test.claim
				}
			}).signIn()
			if test.refused == "" {
				if err != nil || who.SignInAs != test.want {
					t.Errorf("got %+v, %v", who, err)
				}
				return
			}
			if why := refusal(t, p, err); !strings.Contains(why.Shown, test.refused) || why.Unavailable {
				t.Errorf("refused with %q", why.Shown)
			}
		})
	}
}

// changed returns a text with another letter at a position.
func changed(text string, at int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	next := letters[(strings.IndexByte(letters, text[at])+1)%len(letters)]
	return text[:at] + string(next) + text[at+1:]
}

// Only the browser that began a flow can finish it, with the answer to it, in time, and while the
// server asks the same provider in the same way. Nothing is asked of the provider otherwise.
func TestAnswersToAnotherFlow(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	ring, _ := servicetest.NewRing(t)
	strangers, _ := servicetest.NewRing(t)
	clock := servicetest.NewClock(noon)
	other := func(change func(*sso.Config)) *sso.Client {
		t.Helper()
		config := p.config(ring, clock)
		change(&config)
		made, err := sso.New(config)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	c := other(func(*sso.Config) {})
	address, kept, err := c.Begin(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	_, answered := p.authorize(address)
	_, elsewhere, err := c.Begin(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	proof, err := c.KeepProof(&sso.Identity{SignInAs: "mallory@example.com"}, "/")
	if err != nil {
		t.Fatal(err)
	}
	change := func(name string, values ...string) url.Values {
		changed := url.Values{}
		for key, value := range answered {
			changed[key] = value
		}
		changed[name] = values
		return changed
	}
	for name, try := range map[string]struct {
		client *sso.Client
		kept   string
		answer url.Values
	}{
		"another browser":      {c, elsewhere, answered},
		"no cookie":            {c, "", answered},
		"a changed cookie":     {c, changed(kept, len(kept)/2), answered},
		"a changed end":        {c, changed(kept, len(kept)-1), answered},
		"a proof as a flow":    {c, proof, answered},
		"another state":        {c, kept, change("state", "x")},
		"no state":             {c, kept, change("state")},
		"two states":           {c, kept, change("state", answered.Get("state"), answered.Get("state"))},
		"another issuer":       {c, kept, change("iss", "https://elsewhere.example")},
		"no code":              {c, kept, change("code")},
		"an empty code":        {c, kept, change("code", "")},
		"two codes":            {c, kept, change("code", "a", "b")},
		"a long code":          {c, kept, change("code", strings.Repeat("c", 9000))},
		"an error":             {c, kept, change("error", "access_denied")},
		"an error with markup": {c, kept, change("error", "<b>planted</b>")},
		"another key file":     {other(func(c *sso.Config) { c.Seal = strangers }), kept, answered},
		"another client":       {other(func(c *sso.Config) { c.ClientID = "another" }), kept, answered},
		"another claim":        {other(func(c *sso.Config) { c.Claim = "sub" }), kept, answered},
		"another secret":       {other(func(c *sso.Config) { c.ClientSecret = ledger.NewSecret("another") }), kept, answered},
	} {
		_, _, err := try.client.Finish(t.Context(), try.kept, try.answer)
		if why := refusal(t, p, err); why.Unavailable {
			t.Errorf("%s: taken for a failure of the provider", name)
		}
	}
	if _, _, err := c.OpenProof(kept); err == nil {
		t.Error("a flow is taken for a proof")
	}
	clock.Advance(sso.FlowLifetime)
	_, _, err = c.Finish(t.Context(), kept, answered)
	refusal(t, p, err)
	if p.called("/token") > 0 {
		t.Error("the provider was asked about a code of another flow")
	}
	clock.Advance(-time.Second)
	if _, _, err := other(func(*sso.Config) {}).Finish(t.Context(), kept, answered); err == nil {
		t.Error("an ID token of ten minutes ago is accepted")
	} else if p.called("/token") != 1 {
		t.Errorf("another replica does not finish the flow: %v", err)
	}
}

// A proof lasts five minutes, on every replica with the same key file and secret, and cannot be changed.
// The key file alone, such as one from a backup, makes none: the client's secret is needed too.
func TestProofs(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	c := p.client(nil)
	want := sso.Identity{Issuer: p.server.URL, Subject: "s", SignInAs: "alice@example.com"}
	kept, err := c.KeepProof(&want, "/approvals")
	if err != nil {
		t.Fatal(err)
	}
	c.clock.Advance(sso.ProofLifetime - time.Second)
	who, returnTo, err := c.OpenProof(kept)
	if err != nil || *who != want || returnTo != "/approvals" {
		t.Errorf("opened as %+v, %q, %v", who, returnTo, err)
	}
	for _, bad := range []string{"", "x", kept[1:], kept + "A", strings.ToLower(kept)} {
		_, _, err := c.OpenProof(bad)
		refusal(t, p, err)
	}
	c.clock.Advance(time.Second)
	_, _, err = c.OpenProof(kept)
	refusal(t, p, err)

	ring, _ := servicetest.NewRing(t)
	forger := p.client(func(c *sso.Config) { c.Seal, c.ClientSecret = ring, ledger.NewSecret("a guess") })
	forged, err := forger.KeepProof(&want, "/")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = p.client(func(c *sso.Config) { c.Seal = ring }).OpenProof(forged)
	refusal(t, p, err)
}

// A provider that is slow, endless, broken or sends its callers elsewhere costs a bounded time and
// amount of memory, and gets nobody signed in. No secret goes to another host.
//
//countersign:race
func TestFaultyProviders(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another host was asked for %s", r.URL.Path)
	}))
	t.Cleanup(elsewhere.Close)
	faults := map[string]http.HandlerFunc{
		"slow": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client is gone
			<-r.Context().Done()
		},
		"huge": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"x":"` + strings.Repeat("planted", 1<<18) + `"}`))
		},
		"huge headers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("planted", 1<<16))
		},
		"redirecting": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/"+planted, http.StatusTemporaryRedirect)
		},
		"broken": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("planted"))
		},
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<p>planted</p>")) },
	}
	for fault, handle := range faults {
		for _, path := range []string{"/.well-known/openid-configuration", "/token", "/keys", "/me"} {
			t.Run(fault+" "+path, func(t *testing.T) {
				t.Parallel()
				p := newProvider(t)
				p.claims = map[string]any{"email": nil}
				p.intercept = func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != path {
						return false
					}
					handle(w, r)
					return true
				}
				began := time.Now()
				_, err := p.client(func(c *sso.Config) {
					c.Timeout = 2 * time.Second
					if fault == "slow" {
						c.Timeout = 100 * time.Millisecond
					}
				}).signIn()
				why := refusal(t, p, err)
				if !why.Unavailable {
					t.Errorf("taken for a failure of the person: %v", err)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		}
	}
}

// A code that the provider refuses is a failure of whoever sent it, and counts, whichever of the two
// codes the provider has for that. What says that this server is not set up correctly is not.
func TestRefusedCodes(t *testing.T) {
	t.Parallel()
	for code, unavailable := range map[string]bool{"invalid_grant": false, "invalid_request": false, "invalid_client": true, "server_error": true} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			p.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/token" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = w.Write([]byte(`{"error":"` + code + `","error_description":"planted"}`))
				return true
			}
			_, err := p.client(nil).signIn()
			if why := refusal(t, p, err); why.Unavailable != unavailable || !strings.Contains(why.Error(), code) {
				t.Errorf("refused with %v, of the provider: %t", why, why.Unavailable)
			}
		})
	}
}

// A provider that is down is asked again after a pause, and not before it. Once it was up, a later
// failure to read its discovery document keeps nobody out.
func TestDiscoveryIsRetried(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	down := true
	p.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if down && strings.HasPrefix(r.URL.Path, "/.well-known/") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	turn := func(off bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		down = off
	}
	c := p.client(nil)
	for range 3 {
		if _, err := c.signIn(); !refusal(t, p, err).Unavailable {
			t.Errorf("a provider that is down: %v", err)
		}
	}
	if n := p.called("/.well-known/openid-configuration"); n != 1 {
		t.Errorf("a provider that is down was asked %d times at once", n)
	}
	turn(false)
	c.clock.Advance(5 * time.Second)
	if _, err := c.signIn(); err != nil {
		t.Errorf("a provider that is up again: %v", err)
	}
	turn(true)
	c.clock.Advance(time.Hour)
	p.mu.Lock()
	p.claims = map[string]any{"exp": c.clock.Now().Add(time.Minute).Unix()}
	p.mu.Unlock()
	if _, err := c.signIn(); err != nil {
		t.Errorf("a provider whose document cannot be read again: %v", err)
	}
	if n := p.called("/.well-known/openid-configuration"); n != 3 {
		t.Errorf("the document was read %d times, want 3", n)
	}
}

// The pause after a failure begins when the attempt ends: an attempt that took longer than the pause is
// not repeated by everybody who waited for it.
func TestSlowDiscoveryIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	c := p.client(nil)
	p.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		c.clock.Advance(10 * time.Second)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	for range 3 {
		if _, err := c.signIn(); !refusal(t, p, err).Unavailable {
			t.Errorf("a provider that is slow and down: %v", err)
		}
	}
	if n := p.called("/.well-known/openid-configuration"); n != 1 {
		t.Errorf("a provider that is slow and down was asked %d times at once", n)
	}
}

// While one reads the discovery document of a known provider again, the others do not wait.
//
//countersign:race
func TestNobodyWaitsForAKnownProvider(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	c := p.client(nil)
	if _, err := c.signIn(); err != nil {
		t.Fatal(err)
	}
	asked, answered := make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.intercept = func(http.ResponseWriter, *http.Request) bool {
		close(asked)
		<-answered
		return false
	}
	p.mu.Unlock()
	c.clock.Advance(time.Hour)
	var reading sync.WaitGroup
	reading.Go(func() {
		if _, _, err := c.Begin(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
	<-asked
	impatient, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, _, err := c.Begin(impatient, "/"); err != nil {
		t.Errorf("somebody else waits: %v", err)
	}
	close(answered)
	reading.Wait()
}

// A discovery document must name the issuer, addresses with https and a way to present the secret.
func TestDiscoveryDocumentsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, document := range map[string]map[string]any{
		"another issuer":           {"issuer": "https://elsewhere.example"},
		"no issuer":                {"issuer": nil},
		"a token endpoint in http": {"token_endpoint": "http://id.example.com/token"},
		"no token endpoint":        {"token_endpoint": nil},
		"a script":                 {"authorization_endpoint": "javascript:alert(1)"},
		"keys in http":             {"jwks_uri": "http://id.example.com/keys"},
		"other secrets":            {"token_endpoint_auth_methods_supported": []string{"private_key_jwt"}},
	} {
		p := newProvider(t)
		p.document = document
		c := p.client(nil)
		if err := c.Check(t.Context()); err == nil {
			t.Errorf("%s: the check passes", name)
		}
		_, _, err := c.Begin(t.Context(), "/")
		if !refusal(t, p, err).Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := newProvider(t)
	if err := p.client(nil).Check(t.Context()); err != nil {
		t.Errorf("a document that can be used: %v", err)
	}
}

// A client that would send secrets in the clear, or lacks a setting, is refused at the start.
func TestSettings(t *testing.T) {
	t.Parallel()
	ring, _ := servicetest.NewRing(t)
	good := func() sso.Config {
		return sso.Config{
			Issuer: "https://id.example.com/realm", ClientID: clientID, ClientSecret: ledger.NewSecret("generated " + rand.Text()), Claim: "sub",
			Callback: "https://console.example.com/callback", Seal: ring,
		}
	}
	for name, change := range map[string]func(*sso.Config){
		"plain http":               func(c *sso.Config) { c.Issuer = "http://id.example.com" },
		"plain http to a network":  func(c *sso.Config) { c.Issuer = "http://10.0.0.1" },
		"a name like this machine": func(c *sso.Config) { c.Issuer = "http://localhost.example.com" },
		"no URL":                   func(c *sso.Config) { c.Issuer = "id.example.com" },
		"another scheme":           func(c *sso.Config) { c.Issuer = "ftp://id.example.com" },
		"a password":               func(c *sso.Config) { c.Issuer = "https://user:word@id.example.com" },
		"a query":                  func(c *sso.Config) { c.Issuer = "https://id.example.com?a=b" },
		"a callback in http":       func(c *sso.Config) { c.Callback = "http://console.example.com/callback" },
		"no client":                func(c *sso.Config) { c.ClientID = "" },
		"no secret":                func(c *sso.Config) { c.ClientSecret = ledger.NewSecret("") },
		"no claim":                 func(c *sso.Config) { c.Claim = "" },
		"a long name":              func(c *sso.Config) { c.Name = strings.Repeat("n", 501) },
	} {
		config := good()
		change(&config)
		if _, err := sso.New(config); err == nil || strings.Contains(err.Error(), "word") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, issuer := range []string{"https://id.example.com/realm", "https://id.example.com:8443/", "http://127.0.0.1:9", "http://[::1]:9/x", "http://localhost:9"} {
		config := good()
		config.Issuer = issuer
		c, err := sso.New(config)
		switch {
		case err != nil:
			t.Errorf("%s: %v", issuer, err)
		case strings.Contains(fmt.Sprintf("%v %+v", config, config), "generated"):
			t.Error("the secret is printed")
		case strings.HasPrefix(issuer, "https") && c.Name() != "id.example.com":
			t.Errorf("the provider is called %s", c.Name())
		}
	}
}
