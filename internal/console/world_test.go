package console_test

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/canon"
	"countersign/internal/console"
	"countersign/internal/httpapi"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// world is the console on a real service and store, behind a real socket.
type world struct {
	service *service.Service
	store   *alterable
	server  *httptest.Server
	log     *servicetest.Buffer
	elapsed atomic.Int64 // added to the clock
	acme    *tenant
	rival   *tenant
}

// tenant is an organization with a key of every role.
type tenant struct {
	slug string
	keys map[ledger.Role]*service.NewKey
}

// setup is what a test changes about the usual world.
type setup struct {
	db     *testdb.Database // a fresh SQLite database without one
	tls    bool
	limits console.Limits
	signed bool   // transparency logs are signed
	api    bool   // serve the API and its pages too
	public string // the public URL
	sso    console.SSO
	slack  *notify.Slack
}

func newWorld(t *testing.T, with setup) *world {
	t.Helper()
	w := &world{log: &servicetest.Buffer{}}
	if with.db == nil {
		with.db = testdb.SQLite(t)
	}
	w.store = &alterable{Store: with.db.Open(t)}
	config := service.Config{Store: w.store, Slack: with.slack, Clock: func() time.Time {
		return time.Now().Add(time.Duration(w.elapsed.Load()))
	}}
	if with.signed {
		ring, _ := servicetest.NewRing(t)
		marks, err := keyring.OpenLogMarks(filepath.Join(t.TempDir(), "heads.logs"), ring)
		if err != nil {
			t.Fatal(err)
		}
		config.Keys, config.LogMarks, config.Signing, config.Alone = ring, marks, &service.Signing{Keys: ring, Instance: "log.example.com"}, true
	}
	w.service = servicetest.Start(t, config).Service
	w.service.SignLogs()
	w.acme, w.rival = w.tenant(t, "acme"), w.tenant(t, "rival")
	w.listen(t, with)
	return w
}

// listen serves the console as a program does that has other routes too.
func (w *world) listen(t *testing.T, with setup) {
	t.Helper()
	pages := console.New(console.Config{
		Service: w.service, Limits: with.limits, PublicURL: with.public, SSO: with.sso, SSOBase: "https://console.example.com",
		Log: slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	mux := http.NewServeMux()
	for _, pattern := range pages.Patterns() {
		mux.Handle(pattern, pages.Handler())
	}
	if with.api {
		mux.Handle("/", httpapi.New(httpapi.Config{Service: w.service, Log: slog.New(slog.DiscardHandler)}).Handler())
	} else {
		mux.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) { answer.WriteHeader(http.StatusTeapot) })
	}
	w.server = httptest.NewUnstartedServer(mux)
	if with.tls {
		w.server.StartTLS()
	} else {
		w.server.Start()
	}
	t.Cleanup(w.server.Close)
}

func (w *world) tenant(t *testing.T, slug string) *tenant {
	t.Helper()
	made := servicetest.NewTenant(t, w.service, slug)
	return &tenant{slug: slug, keys: map[ledger.Role]*service.NewKey{
		ledger.RoleAdmin: made.Admin, ledger.RoleMember: made.Member, ledger.RoleAgent: made.Agent,
	}}
}

// link makes a sign-in link's token.
func (w *world) link(t *testing.T, of *tenant, role ledger.Role) string {
	t.Helper()
	return w.linkFor(t, of, of.keys[role])
}

func (w *world) linkFor(t *testing.T, of *tenant, key *service.NewKey) string {
	t.Helper()
	link, err := w.service.Operator().SignInLink(t.Context(), of.slug, key.Record.ID)
	if err != nil {
		t.Fatal(err)
	}
	return link.Reveal()
}

func (w *world) caller(t *testing.T, of *tenant) *service.Caller {
	t.Helper()
	caller, err := w.service.Authenticate(t.Context(), of.keys[ledger.RoleAgent].Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

// open opens a chain, and records an action in it for each payload.
func (w *world) open(t *testing.T, of *tenant, name string, payloads ...string) ledger.ChainID {
	t.Helper()
	caller := w.caller(t, of)
	chain, err := w.service.OpenChain(t.Context(), caller, &ledger.Chain{Name: name, Environment: "staging"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for i, payload := range payloads {
		body := fmt.Sprintf(`{"agent_name":"clerk","action_type":"tool_call","action_name":"step-%d","payload":%s}`, i+1, payload)
		w.record(t, of, chain.ID, body)
	}
	return chain.ID
}

func (w *world) record(t *testing.T, of *tenant, chain ledger.ChainID, body string) *ledger.Event {
	t.Helper()
	return w.recordAs(t, w.caller(t, of), chain, body)
}

func (w *world) recordAs(t *testing.T, caller *service.Caller, chain ledger.ChainID, body string) *ledger.Event {
	t.Helper()
	value, err := canon.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	action, err := ledger.ParseAction(value)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := w.service.RecordEvent(t.Context(), caller, chain, action)
	if err != nil {
		t.Fatal(err)
	}
	return recorded.Event
}

func (w *world) complete(t *testing.T, of *tenant, chain ledger.ChainID) ledger.ReceiptID {
	t.Helper()
	completed, err := w.service.CompleteChain(t.Context(), w.caller(t, of), chain, &ledger.Completion{})
	if err != nil {
		t.Fatal(err)
	}
	return *completed.State.Receipt
}

// browser is a client with a cookie jar that takes answers as they come.
type browser struct {
	world  *world
	client *http.Client
	at     string // the address of the server, or of a proxy in front of it
}

func (w *world) browser(t *testing.T) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := *w.server.Client()
	client.Jar = jar
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &browser{w, &client, w.server.URL}
}

// signedIn is a browser that has used a link.
func (w *world) signedIn(t *testing.T, of *tenant, role ledger.Role) *browser {
	t.Helper()
	return w.signedInWith(t, of, of.keys[role])
}

func (w *world) signedInWith(t *testing.T, of *tenant, key *service.NewKey) *browser {
	t.Helper()
	b := w.browser(t)
	b.post(t, "/sign-in", url.Values{"link": {w.linkFor(t, of, key)}}).expect(t, http.StatusSeeOther)
	return b
}

// session is the token that the browser holds.
func (b *browser) session(t *testing.T) string {
	t.Helper()
	address, err := url.Parse(b.world.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, cookie := range b.client.Jar.Cookies(address) {
		if strings.HasSuffix(cookie.Name, "countersign_session") {
			return cookie.Value
		}
	}
	t.Fatal("the browser holds no session")
	return ""
}

// fill adds to a form what the page that shows it has hidden in it.
func (b *browser) fill(t *testing.T, path string, form url.Values) url.Values {
	t.Helper()
	shown := b.get(t, path).expect(t, http.StatusOK)
	found := regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(shown.body)
	if found == nil {
		t.Fatalf("no form of %s can be told from the next:\n%s", path, shown.body)
	}
	filled := url.Values{"once": {found[1]}}
	maps.Copy(filled, form)
	return filled
}

type answer struct {
	*http.Response
	body string
}

func (b *browser) get(t *testing.T, path string) *answer {
	t.Helper()
	return b.send(t, http.MethodGet, path, nil, http.Header{})
}

func (b *browser) post(t *testing.T, path string, form url.Values) *answer {
	t.Helper()
	return b.send(t, http.MethodPost, path, form, http.Header{"Sec-Fetch-Site": {"same-origin"}})
}

func (b *browser) send(t *testing.T, method, path string, form url.Values, header http.Header) *answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, b.at+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header.Clone()
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := b.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return &answer{response, string(body)}
}

// expect holds an answer to its status and to what it must say.
func (a *answer) expect(t *testing.T, status int, texts ...string) *answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%s %s: got %d, want %d:\n%s", a.Request.Method, a.Request.URL.Path, a.StatusCode, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("%s %s does not say %q:\n%s", a.Request.Method, a.Request.URL.Path, text, a.body)
		}
	}
	return a
}

// without expects that the page contains none of the texts. A few hexadecimal digits are
// refused: an id or a hash contains them by chance.
func (a *answer) without(t *testing.T, texts ...string) *answer {
	t.Helper()
	for _, text := range texts {
		if len(text) < 8 && strings.Trim(text, "0123456789abcdef") == "" {
			t.Fatalf("%q can be part of an id", text)
		}
		if strings.Contains(a.body, text) {
			t.Errorf("%s %s must not contain %q:\n%s", a.Request.Method, a.Request.URL.Path, text, a.body)
		}
	}
	return a
}
