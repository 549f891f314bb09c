package service_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the way past the store that a tamperer takes

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// database is a fresh one of either kind, with as many handles on it as a test
// wants: each stands for a process.
type database struct {
	driver, address string
	open            func(testing.TB) store.Store
}

var backends = map[string]func(testing.TB) *database{"sqlite": newSQLite, "postgres": newPostgres}

func onEachStore(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	t.Parallel()
	for name, fresh := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fresh(t))
		})
	}
}

func newSQLite(t testing.TB) *database {
	return sqliteAt(filepath.Join(t.TempDir(), "countersign.db"), true)
}

func sqliteAt(path string, migrate bool) *database {
	open := func(t testing.TB) store.Store {
		t.Helper()
		opened, err := sqlite.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = opened.Close() })
		if migrate {
			if err := opened.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return opened
	}
	return &database{driver: "sqlite", address: "file:" + path + "?_pragma=busy_timeout(10000)", open: open}
}

// newPostgres makes a schema of the test's own.
func newPostgres(t testing.TB) *database {
	t.Helper()
	server := os.Getenv("COUNTERSIGN_TEST_POSTGRES")
	if server == "" {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is not set: run the tests with `make test`, which starts a PostgreSQL for them")
	}
	schema := "service_" + randomName()
	admin := direct(t, "pgx", server)
	if _, err := admin.ExecContext(t.Context(), "create schema "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "drop schema "+schema+" cascade"); err != nil {
			t.Errorf("drop schema: %v", err)
		}
	})
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is no URL")
	}
	query := address.Query()
	query.Set("search_path", schema)
	address.RawQuery = query.Encode()
	name := address.String()
	query.Set("pool_max_conns", "6")
	address.RawQuery = query.Encode()
	open := func(t testing.TB) store.Store {
		t.Helper()
		opened, err := postgres.Open(t.Context(), address.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = opened.Close() })
		if err := opened.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return opened
	}
	return &database{driver: "pgx", address: name, open: open}
}

func direct(t testing.TB, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func randomName() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// newRing makes a key ring; the file stands where keyFile says, for rotations.
func newRing(t testing.TB) (ring *keyring.Ring, keyFile string) {
	t.Helper()
	keyFile = filepath.Join(t.TempDir(), "keys.json")
	ring, err := keyring.Create(keyFile, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ring, keyFile
}

// ticking is a clock that moves a little with each look at it.
func ticking() func() time.Time {
	var ticks atomic.Int64
	start := time.Date(2026, 12, 31, 23, 59, 0, 0, time.UTC)
	return func() time.Time { return start.Add(time.Duration(ticks.Add(1)) * 7 * time.Millisecond) }
}

// serve starts a service and stops it with the test.
func serve(t testing.TB, config service.Config) *service.Service {
	t.Helper()
	if config.Clock == nil {
		config.Clock = ticking()
	}
	if config.Keys == nil {
		config.Keys, _ = newRing(t)
	}
	if secrets, ok := config.Keys.(service.Secrets); ok && config.Secrets == nil {
		config.Secrets = secrets
	}
	s := service.New(config)
	t.Cleanup(s.Close)
	return s
}

// tenant is an organization with callers of each role.
type tenant struct {
	slug                 string
	id                   ledger.OrgID
	admin, member, agent *service.Caller
	agentKey             *service.NewKey
}

func newTenant(t testing.TB, s *service.Service, slug string) *tenant {
	t.Helper()
	org, admin, err := s.Operator().CreateOrganization(t.Context(), slug, "")
	if err != nil {
		t.Fatal(err)
	}
	who := &tenant{slug: slug, id: org.ID, admin: authenticate(t, s, admin)}
	who.member = authenticate(t, s, namedKey(t, s, slug, "test", ledger.RoleMember))
	who.agentKey = newKey(t, s, slug, ledger.RoleAgent)
	who.agent = authenticate(t, s, who.agentKey)
	return who
}

func newKey(t testing.TB, s *service.Service, slug string, role ledger.Role) *service.NewKey {
	t.Helper()
	return namedKey(t, s, slug, "another "+randomName(), role)
}

func namedKey(t testing.TB, s *service.Service, slug, name string, role ledger.Role) *service.NewKey {
	t.Helper()
	key, err := s.Operator().CreateKey(t.Context(), slug, &service.KeyRequest{Name: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func authenticate(t testing.TB, s *service.Service, key *service.NewKey) *service.Caller {
	t.Helper()
	caller, err := s.Authenticate(t.Context(), key.Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

func request[T any](t testing.TB, read func(canon.Value) (T, error), body string) T {
	t.Helper()
	v, err := canon.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := read(v)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func chainNamed(t testing.TB, name string) *ledger.Chain {
	t.Helper()
	return request(t, ledger.ParseChainRequest, `{"name":"`+name+`","external_chain_id":"ext-`+name+`","metadata":{"run":"`+name+`"}}`)
}

func step(t testing.TB, name, key string) *ledger.Action {
	t.Helper()
	body := `{"agent_name":"agent","action_type":"tool_call","action_name":"` + name + `","payload":{"step":"` + name + `"}`
	if key != "" {
		body += `,"idempotency_key":"` + key + `"`
	}
	return request(t, ledger.ParseAction, body+"}")
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func done(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// codeOf is the code that a caller sees; "" without an error.
func codeOf(err error) ledger.Code {
	var own *ledger.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &own):
		return own.Code
	default:
		return ledger.CodeInternal
	}
}

func checkCode(t testing.TB, what string, err error, want ledger.Code) {
	t.Helper()
	if got := codeOf(err); got != want {
		t.Errorf("%s: %v (code %q), want code %q", what, err, got, want)
	}
}

// checkIntact audits an organization and wants nothing found in so many
// receipts.
func checkIntact(t testing.TB, s *service.Service, slug string, receipts int64) {
	t.Helper()
	report, err := s.Operator().Audit(t.Context(), slug, service.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Status != service.AuditIntact || report.Break != nil || report.Receipts != receipts {
		t.Errorf("audit of %s: %s, %d receipts, %v; want it intact with %d", slug, report.Status, report.Receipts, report.Break, receipts)
	}
}
