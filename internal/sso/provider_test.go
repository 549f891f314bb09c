package sso_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/servicetest"
	"countersign/internal/sso"
)

const clientID = "countersign"

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// provider is an identity provider that does what a real one never should. What a real one does is
// tested with a real one.
type provider struct {
	t      *testing.T
	server *httptest.Server
	key    *rsa.PrivateKey
	secret string

	// What a test changes. The maps add claims or members, or remove those that are nil.
	claims    map[string]any
	header    map[string]any
	userInfo  map[string]any
	document  map[string]any
	sign      func(input []byte) []byte
	intercept func(w http.ResponseWriter, r *http.Request) bool

	mu    sync.Mutex // guards the fields below
	calls []string   // paths
	codes map[string]url.Values
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{t: t, key: key, secret: "generated " + rand.Text(), codes: make(map[string]url.Values)}
	p.server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.server.Close)
	return p
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, r.URL.Path)
	if p.intercept != nil && p.intercept(w, r) {
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		answer(w, with(map[string]any{
			"issuer": p.server.URL, "authorization_endpoint": p.server.URL + "/authorize", "token_endpoint": p.server.URL + "/token",
			"jwks_uri": p.server.URL + "/keys", "userinfo_endpoint": p.server.URL + "/me",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		}, p.document))
	case "/keys":
		encode := base64.RawURLEncoding.EncodeToString
		answer(w, map[string]any{"keys": []any{map[string]any{
			"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one", "n": encode(p.key.N.Bytes()), "e": encode(big.NewInt(int64(p.key.E)).Bytes()),
		}}})
	case "/token":
		p.token(w, r)
	case "/me":
		answer(w, with(map[string]any{"sub": "subject-1"}, p.userInfo))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// token exchanges a code, once, for who presents the client's secret and the verifier.
func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := r.BasicAuth()
	asked, known := p.codes[r.PostFormValue("code")]
	delete(p.codes, r.PostFormValue("code"))
	challenge := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if id != clientID || secret != url.QueryEscape(p.secret) || !known || base64.RawURLEncoding.EncodeToString(challenge[:]) != asked.Get("code_challenge") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"planted-description"}`))
		return
	}
	answer(w, map[string]any{"access_token": "planted-access-token", "token_type": "Bearer", "id_token": p.idToken(asked.Get("nonce"))})
}

func (p *provider) idToken(nonce string) string {
	header := with(map[string]any{"alg": "RS256", "kid": "one"}, p.header)
	claims := with(map[string]any{
		"iss": p.server.URL, "aud": clientID, "sub": "subject-1", "nonce": nonce, "iat": noon.Unix(), "exp": noon.Add(time.Minute).Unix(),
		"email": "Alice@Example.com", "email_verified": true,
	}, p.claims)
	input := part(header) + "." + part(claims)
	sign := p.sign
	if sign == nil {
		sign = func(input []byte) []byte { return signWith(p.key, input) }
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(input)))
}

func signWith(key *rsa.PrivateKey, input []byte) []byte {
	sum := sha256.Sum256(input)
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
	if err != nil {
		panic(err)
	}
	return signature
}

// signedWithPublicKey is the confusion of HS256 with RS256: everyone has the public key.
func (p *provider) signedWithPublicKey(input []byte) []byte {
	der, err := x509.MarshalPKIXPublicKey(&p.key.PublicKey)
	if err != nil {
		p.t.Error(err)
	}
	return hmacOf(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), input)
}

func hmacOf(key, input []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(input)
	return mac.Sum(nil)
}

func with(base, changes map[string]any) map[string]any {
	maps.Copy(base, changes)
	maps.DeleteFunc(base, func(_ string, value any) bool { return value == nil })
	return base
}

func part(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

// called returns how often a path was requested.
func (p *provider) called(path string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, called := range p.calls {
		if called == path {
			n++
		}
	}
	return n
}

// authorize is what the provider does with a browser: it answers with a code for what was asked.
func (p *provider) authorize(address string) (asked, answered url.Values) {
	p.t.Helper()
	parsed, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, p.server.URL+"/authorize?") {
		p.t.Fatalf("the browser is sent to %s, %v", address, err)
	}
	asked = parsed.Query()
	code := "planted-code-" + rand.Text()
	p.mu.Lock()
	p.codes[code] = asked
	p.mu.Unlock()
	return asked, url.Values{"code": {code}, "state": {asked.Get("state")}, "iss": {p.server.URL}}
}

// client is a client of the provider whose clock a test moves.
type client struct {
	*sso.Client
	provider *provider
	clock    *servicetest.Clock
}

func (p *provider) config(ring *keyring.Ring, clock *servicetest.Clock) sso.Config {
	return sso.Config{
		Issuer: p.server.URL, ClientID: clientID, ClientSecret: ledger.NewSecret(p.secret), Claim: sso.EmailClaim,
		Callback: "https://console.example.com/sign-in/sso/callback", Seal: ring, Clock: clock.Now,
	}
}

func (p *provider) client(change func(*sso.Config)) *client {
	p.t.Helper()
	ring, _ := servicetest.NewRing(p.t)
	clock := servicetest.NewClock(noon)
	config := p.config(ring, clock)
	if change != nil {
		change(&config)
	}
	made, err := sso.New(config)
	if err != nil {
		p.t.Fatal(err)
	}
	return &client{made, p, clock}
}

// signIn goes through the whole flow.
func (c *client) signIn() (*sso.Identity, error) {
	c.provider.t.Helper()
	address, kept, err := c.Begin(c.provider.t.Context(), "/policies")
	if err != nil {
		return nil, err
	}
	_, answered := c.provider.authorize(address)
	who, returnTo, err := c.Finish(c.provider.t.Context(), kept, answered)
	if returnTo != "/policies" {
		c.provider.t.Errorf("the flow returns to %q", returnTo)
	}
	return who, err
}
