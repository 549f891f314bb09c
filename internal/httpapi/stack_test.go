package httpapi_test

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"countersign/internal/httpapi"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// setup is what a test changes about the usual stack.
type setup struct {
	clock       func() time.Time
	meter       service.Meter
	watch       verify.HeadWatch
	wrap        func(store.Store) store.Store
	publicRate  float64
	failureRate float64
	maxPolls    int
	proxies     []netip.Prefix
	signing     bool // transparency logs are signed
}

// stack is the whole service on one store, behind a real socket.
type stack struct {
	*servicetest.World
	database *database
	api      *httpapi.API
	client   *http.Client
	base     string
	acme     tenant
	rival    tenant
}

// tenant is an organization with a key of every kind.
type tenant struct {
	slug, id                             string
	admin, member, agent, other, revoked credential
}

type credential struct {
	text string
	id   ledger.KeyID
}

// believer finds the proofs good that the tests plant.
type believer struct{}

func (believer) Judge(a *ledger.Anchor) ledger.AnchorFinding {
	if string(a.Proof) != "planted-proof" {
		return ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "malformed"}
	}
	return ledger.AnchorFinding{Standing: ledger.AnchorVerified}
}

func start(t *testing.T, db *database, with setup) *stack {
	t.Helper()
	log, opened := slog.New(capturing), db.store
	if with.wrap != nil {
		opened = with.wrap(opened)
	}
	s := &stack{database: db}
	config := service.Config{Store: opened, Log: log, Clock: with.clock, Meter: with.meter,
		Watch: with.watch, Timestamps: believer{}, Anchoring: []string{ledger.MethodTSA, ledger.MethodOpenTimestamps}, Alone: with.signing}
	if with.signing {
		ring, _ := servicetest.NewRing(t)
		marks, err := keyring.OpenLogMarks(filepath.Join(t.TempDir(), "heads.logs"), ring)
		if err != nil {
			t.Fatal(err)
		}
		config.Keys, config.LogMarks, config.Signing = ring, marks, &service.Signing{Keys: ring, Instance: "log.example.com"}
	}
	s.World = servicetest.Start(t, config)
	s.Service.SignLogs()
	if err := s.Service.Operator().AdoptKeys(t.Context(), s.Ring); err != nil {
		t.Fatal(err)
	}
	s.api = httpapi.New(httpapi.Config{
		Service: s.Service, Log: log, TrustedProxies: with.proxies,
		PublicRate: with.publicRate, FailureRate: with.failureRate, MaxPolls: with.maxPolls,
	})
	s.listen(t)
	s.acme, s.rival = s.tenant(t, "acme"), s.tenant(t, "rival")
	return s
}

func (s *stack) listen(t *testing.T) {
	t.Helper()
	server := httptest.NewUnstartedServer(s.api.Handler())
	server.Config.ErrorLog = slog.NewLogLogger(capturing, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	s.base = server.URL
	s.client = &http.Client{
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{}).DialContext,
			ExpectContinueTimeout: 10 * time.Second,
			MaxIdleConnsPerHost:   32,
			DisableCompression:    true,
		},
		// An answer is judged as it came.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       60 * time.Second,
	}
	t.Cleanup(s.client.CloseIdleConnections)
}

// limited is another front end on the same service, with limits.
func (s *stack) limited(t *testing.T, proxies []netip.Prefix, publicRate float64) *stack {
	t.Helper()
	other := *s
	other.api = httpapi.New(httpapi.Config{Service: s.Service, Log: slog.New(capturing), TrustedProxies: proxies, PublicRate: publicRate})
	other.listen(t)
	return &other
}

// revokeElsewhere revokes a key past this process, as another replica would.
func (s *stack) revokeElsewhere(t *testing.T, key ledger.KeyID) {
	t.Helper()
	replica := service.New(service.Config{Store: s.database.store, Keys: s.Ring, Log: slog.New(capturing)})
	defer replica.Close()
	if _, err := replica.Operator().RevokeKey(t.Context(), s.acme.slug, key); err != nil {
		t.Fatal(err)
	}
}

func (s *stack) tenant(t *testing.T, slug string) tenant {
	t.Helper()
	org, first, err := s.Service.Operator().CreateOrganization(t.Context(), slug, "")
	if err != nil {
		t.Fatal(err)
	}
	made := tenant{
		slug: slug, id: org.ID.String(), admin: credential{first.Text.Reveal(), first.Record.ID},
		member: s.credential(t, slug, ledger.RoleMember), agent: s.credential(t, slug, ledger.RoleAgent),
		other: s.credential(t, slug, ledger.RoleAgent), revoked: s.credential(t, slug, ledger.RoleAdmin),
	}
	if _, err := s.Service.Operator().RevokeKey(t.Context(), slug, made.revoked.id); err != nil {
		t.Fatal(err)
	}
	return made
}

func (s *stack) credential(t *testing.T, slug string, role ledger.Role) credential {
	t.Helper()
	return s.named(t, slug, role, "a "+string(role))
}

func (s *stack) named(t *testing.T, slug string, role ledger.Role, name string) credential {
	t.Helper()
	key := servicetest.NewKey(t, s.Service, slug, name, role)
	return credential{key.Text.Reveal(), key.Record.ID}
}

// unknownKey has the form of a key that nobody was given.
func unknownKey() string {
	var entropy [32]byte
	_, _ = rand.Read(entropy[:]) // never fails
	return ledger.NewAPIKey(entropy).Reveal()
}

// open opens a chain and returns its id.
func (s *stack) open(t *testing.T, key credential, body string) string {
	t.Helper()
	return decode[chain](t, s.post(t, key, "/v1/chains", body).expect(t, http.StatusCreated)).ID
}

const anAction = `{"agent_name":"researcher","action_type":"tool_call","action_name":"search","payload":{"query":"planted-query"}}`

// aPayment is an action that a person has to decide.
const aPayment = `{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":6000,"note":"planted-note"}}`

// ask records a payment that has to be approved and returns the approval's id.
func (s *stack) ask(t *testing.T, key credential, chainID string) string {
	t.Helper()
	decided := s.record(t, key, chainID, aPayment)
	if decided.Decision != "require_approval" || decided.ApprovalID == nil {
		t.Fatalf("decided %+v", decided)
	}
	return *decided.ApprovalID
}

// record records an action and returns the decision on it.
func (s *stack) record(t *testing.T, key credential, chainID, body string) decision {
	t.Helper()
	return decode[decision](t, s.post(t, key, "/v1/chains/"+chainID+"/events", body).expect(t, http.StatusOK))
}

func (s *stack) complete(t *testing.T, key credential, chainID, body string) chain {
	t.Helper()
	return decode[chain](t, s.post(t, key, "/v1/chains/"+chainID+"/complete", body).expect(t, http.StatusOK))
}

// seal opens, fills and completes a chain.
func (s *stack) seal(t *testing.T, key credential, name string) chain {
	t.Helper()
	id := s.open(t, key, fmt.Sprintf(`{"name":%q}`, name))
	s.record(t, key, id, anAction)
	return s.complete(t, key, id, "")
}
