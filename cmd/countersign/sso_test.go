package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"countersign/internal/browsertest"
	"countersign/internal/cli"
)

func TestMain(m *testing.M) {
	code := m.Run()
	browsertest.Stop()
	os.Exit(code)
}

// identityProvider is a real OpenID Connect provider, of another project.
type identityProvider struct {
	issuer, secret string
	input          io.WriteCloser // it ends with this
	output         *bufio.Reader
}

// newIdentityProvider starts a provider that serves once it knows its client.
func newIdentityProvider(t *testing.T) *identityProvider {
	t.Helper()
	install := exec.CommandContext(t.Context(), "../../scripts/install-oidc-provider")
	install.Stderr = os.Stderr
	folder, err := install.Output()
	if err != nil {
		t.Fatal(err)
	}
	p := &identityProvider{secret: rand.Text() + rand.Text()}
	command := exec.CommandContext(t.Context(), "node", "../../tests/oidc-provider/provider.js", strings.TrimSpace(string(folder)))
	command.Env = append(os.Environ(), "CLIENT_ID=countersign", "CLIENT_SECRET="+p.secret)
	if p.input, err = command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.input.Close()
		_ = command.Wait()
	})
	p.output = bufio.NewReader(output)
	p.issuer = p.line(t)
	return p
}

func (p *identityProvider) line(t *testing.T) string {
	t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// register makes a server the provider's client.
func (p *identityProvider) register(t *testing.T, callback string) {
	t.Helper()
	if _, err := io.WriteString(p.input, callback+"\n"); err != nil {
		t.Fatal(err)
	}
	for p.line(t) != "ready" { // it also warns that it is not set up for production
	}
}

func (p *identityProvider) flags(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	writeFile(t, file, []byte(p.secret+"\n"))
	return []string{"--oidc-issuer", p.issuer, "--oidc-client-id", "countersign", "--oidc-client-secret-file", file}
}

// person is somebody at a real browser.
type person struct{ ctx context.Context }

func newPerson(t *testing.T) *person {
	t.Helper()
	return &person{browsertest.Open(t, 2*time.Minute)}
}

// follow does what leads to another page.
func (p *person) follow(t *testing.T, step chromedp.Action[chromedp.Void]) {
	t.Helper()
	if _, err := chromedp.RunResponse(p.ctx, step); err != nil {
		t.Fatal(err)
	}
}

// sees checks where the browser is and what the page says.
func (p *person) sees(t *testing.T, address string, texts ...string) {
	t.Helper()
	at, err := chromedp.Run(p.ctx, chromedp.Evaluate[string]("location.href.split('?')[0]"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := chromedp.Run(p.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		t.Fatal(err)
	}
	if at != address {
		t.Fatalf("the browser is at %s, want %s:\n%s", at, address, page)
	}
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %q:\n%s", text, page)
		}
	}
}

// signIn presses the button, signs in at the provider and agrees to tell who one is.
func (p *person) signIn(t *testing.T, server, login string) {
	t.Helper()
	p.follow(t, chromedp.Navigate(server+"/sign-in"))
	p.follow(t, chromedp.Click(chromedp.ID("sso")))
	if err := chromedp.Do(p.ctx, chromedp.SendKeys(chromedp.CSS("input[name=login]"), login), chromedp.SendKeys(chromedp.CSS("input[name=password]"), "any")); err != nil {
		t.Fatal(err)
	}
	p.follow(t, chromedp.Click(chromedp.CSS("button[type=submit]")))
	p.follow(t, chromedp.Click(chromedp.CSS("button[type=submit]")))
}

// With a real provider and in a real browser, people sign in as the keys that name them, choose where
// there are several, and come to the page that they wanted. Who has no key is told what the provider
// says of them. The audit log says how they came, and the doctor that the provider answers.
//
//countersign:race
func TestSingleSignOn(t *testing.T) {
	t.Parallel()
	s, provider := migratedSQLite(t), newIdentityProvider(t)
	flags := provider.flags(t)
	p := start(t, append(flags, s.flags...)...)
	provider.register(t, p.address+"/sign-in/sso/callback")
	key := decode[struct {
		ID string `json:"key_id"`
	}](t, succeed(t, s.args("keys", "create", "--role", "member", "--name", "alice", "--sign-in-as", "ALICE@example.com", "--json")...)).ID

	alice := newPerson(t)
	alice.follow(t, chromedp.Navigate(p.address+"/chains"))
	alice.sees(t, p.address+"/chains", "not signed in")
	alice.signIn(t, p.address, "alice")
	alice.sees(t, p.address+"/chains", "alice", "Sign out")
	var log struct {
		Data []struct {
			Action, Target string
			Detail         map[string]any
		}
	}
	p.admin(t).call(t, http.MethodGet, "/v1/audit-log?limit=1", "", &log)
	if used := log.Data[0]; used.Action != "sign_in.use" || used.Target != key || used.Detail["issuer"] != provider.issuer || used.Detail["subject"] != "alice" {
		t.Errorf("the audit log says %+v", used)
	}

	// The provider still knows her, so the next time the button is enough.
	succeed(t, s.args("orgs", "create", "second")...)
	succeed(t, s.args("keys", "create", "--org", "second", "--role", "admin", "--name", "guest", "--sign-in-as", "alice@example.com")...)
	alice.follow(t, chromedp.Click(chromedp.CSS("form[action='/sign-out'] button")))
	alice.follow(t, chromedp.Navigate(p.address+"/sign-in"))
	alice.follow(t, chromedp.Click(chromedp.ID("sso")))
	alice.sees(t, p.address+"/sign-in/sso/callback", "Choose an organization", "Default: alice, member", "second: guest, admin")
	alice.follow(t, chromedp.Click(chromedp.CSS("button[name=key]:nth-of-type(2)")))
	alice.sees(t, p.address+"/", "second", "guest")

	bob := newPerson(t)
	bob.signIn(t, p.address, "bob")
	bob.sees(t, p.address+"/sign-in/sso/callback", "bob@example.com", "Ask an admin")
	stranger := newPerson(t)
	stranger.signIn(t, p.address, "unverified")
	stranger.sees(t, p.address+"/sign-in/sso/callback", "has not verified your e-mail address", "--oidc-claim sub")

	if said := succeed(t, s.args(append([]string{"doctor"}, flags...)...)...); !strings.Contains(said, provider.issuer+" answers") {
		t.Errorf("the doctor says %s", said)
	}
	for _, secret := range []string{provider.secret, "code=", "alice@", "bob@", "unverified"} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}

// A provider that is down keeps no server from starting, and the sign-in page says what to do. Settings
// that cannot work are refused at the start.
//
//countersign:race
func TestSingleSignOnWithoutItsProvider(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	secret := filepath.Join(t.TempDir(), "secret")
	writeFile(t, secret, []byte(rand.Text()))
	flags := func(issuer string, more ...string) []string {
		return append([]string{"--oidc-issuer", issuer, "--oidc-client-id", "c", "--oidc-client-secret-file", secret}, more...)
	}
	const nowhere = "http://127.0.0.1:9/"
	p := start(t, append(flags(nowhere, "--oidc-name", "Example Login"), s.flags...)...)
	for path, want := range map[string]string{"/sign-in": "Sign in with Example Login", "/sign-in/sso": "Use a sign-in link, or try again"} {
		status, body, err := p.client("").send(t.Context(), http.MethodGet, path, "")
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, %v, without %q:\n%s", path, status, err, want, body)
		}
	}
	refuse(t, cli.ExitFailed, "cannot be used, so people need sign-in links", s.args(append([]string{"doctor"}, flags(nowhere)...)...)...)
	p.stop(t)

	for says, words := range map[string][]string{
		"needs --public-url":           flags("https://id.example.com", "--listen", "0.0.0.0:0"),
		"needs a --public-url with":    flags("https://id.example.com", "--public-url", "http://console.example.com"),
		"must use https":               flags("http://id.example.com"),
		"need --oidc-issuer":           {"--oidc-client-id", "c"},
		"needs --oidc-client-id and":   {"--oidc-issuer", "https://id.example.com"},
		"--oidc-client-secret-file: o": {"--oidc-issuer", "https://id.example.com", "--oidc-client-id", "c", "--oidc-client-secret-file", filepath.Join(s.folder, "missing")},
	} {
		refuse(t, cli.ExitInconclusive, says, s.args(append([]string{"serve"}, words...)...)...)
	}
}
