package postgres_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	databases := &shelf{owner: t}
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		address := databases.take(t)
		return func(t *testing.T) store.Store { return open(t, address) }
	})
}

// shelf lends migrated databases to one test after the other, emptied in
// between: making one takes longer than most tests.
type shelf struct {
	owner *testing.T // when it ends, the databases are dropped
	mu    sync.Mutex
	free  []string
}

func (s *shelf) take(t *testing.T) string {
	t.Helper()
	address := s.pop()
	if address == "" {
		address = newDatabase(s.owner)
		open(t, address, migrate)
	}
	t.Cleanup(func() {
		empty(t, address)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, address)
	})
	return address
}

func (s *shelf) pop() (address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.free) - 1; last >= 0 {
		address, s.free = s.free[last], s.free[:last]
	}
	return address
}

func empty(t testing.TB, address string) {
	t.Helper()
	schema := parameter(t, address, "search_path")
	for _, table := range []string{
		"anchors", "signing_keys", "tokens", "jobs", "job_names", "act_logs", "acts", "webhooks", "policies", "approvals", "sign_ins", "master_keys", "receipts", "addenda", "events", "chain_states", "chains", "heads", "api_keys", "organizations",
	} {
		administer(t, "delete from "+schema+"."+table)
	}
}

// serverURL names the server that all tests share.
func serverURL(t testing.TB) string {
	t.Helper()
	address := os.Getenv("COUNTERSIGN_TEST_POSTGRES")
	if address == "" {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is not set: run the tests with `make test`, which starts a PostgreSQL for them")
	}
	return address
}

// newDatabase makes a schema of its own for the test and returns a URL whose
// connections see nothing else.
func newDatabase(t testing.TB) string {
	t.Helper()
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		t.Fatal(err)
	}
	address := serverURL(t)
	schema := "test_" + hex.EncodeToString(random[:])
	administer(t, "create schema "+schema)
	t.Cleanup(func() { administer(t, "drop schema "+schema+" cascade") })
	return withParameter(t, withParameter(t, address, "search_path", schema), "pool_max_conns", "5")
}

func parameter(t testing.TB, address, name string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is no URL")
	}
	return parsed.Query().Get(name)
}

func withParameter(t testing.TB, address, name, value string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is no URL")
	}
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // a plus is no space to PostgreSQL
	return parsed.String()
}

// administration is the one connection pool that makes and drops schemas.
var administration = sync.OnceValues(func() (*pgxpool.Pool, error) {
	return pgxpool.New(context.Background(), os.Getenv("COUNTERSIGN_TEST_POSTGRES"))
})

// administer runs a statement outside of any store.
func administer(t testing.TB, statement string, args ...any) {
	t.Helper()
	if err := try(statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func try(statement string, args ...any) error {
	pool, err := administration()
	if err != nil {
		return err
	}
	// Clean-ups come here too, when the test's own context has ended.
	_, err = pool.Exec(context.Background(), statement, args...)
	return err
}

func open(t testing.TB, address string, prepare ...func(testing.TB, *postgres.Store)) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), address)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, step := range prepare {
		step(t, s)
	}
	return s
}

func migrate(t testing.TB, s *postgres.Store) {
	t.Helper()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatalf("migrate: %v", err)
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t))
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
	_ = s.Close()
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("ping of a closed store: error %v, want %v", err, store.ErrUnavailable)
	}
}

func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	nobody := strings.Replace(newDatabase(t), "@", "@127.0.0.1:1,", 1)
	if err := open(t, nobody).Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestSessionSettings(t *testing.T) {
	t.Parallel()
	// A default of the server, the database or the role comes the same way.
	address := withParameter(t, newDatabase(t), "options", "-c synchronous_commit=off -c enable_seqscan=on")
	for _, test := range []struct{ address, name, want string }{
		{address, "synchronous_commit", "on"},
		{address, "enable_seqscan", "off"},
		{address, "statement_timeout", "30s"},
		{address, "plan_cache_mode", "force_generic_plan"},
		{address, "application_name", "countersign"},
		{withParameter(t, address, "synchronous_commit", "remote_apply"), "synchronous_commit", "remote_apply"},
		{withParameter(t, address, "statement_timeout", "5s"), "statement_timeout", "5s"},
	} {
		got, err := open(t, test.address).Setting(t.Context(), test.name)
		if err != nil || got != test.want {
			t.Errorf("%s is %q, want %q, error %v", test.name, got, test.want, err)
		}
	}
}

func TestBackupIsUnsupported(t *testing.T) {
	t.Parallel()
	err := open(t, newDatabase(t)).Backup(t.Context(), t.TempDir()+"/copy")
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "pg_dump") {
		t.Errorf("error %v, want an unsupported one that names pg_dump", err)
	}
}

func TestOpenRefusesURL(t *testing.T) {
	t.Parallel()
	const secret = "pass%word-never-shown"
	for name, test := range map[string]struct{ address, hint string }{
		"no URL":              {"host=localhost password=" + secret, "postgres://"},
		"other scheme":        {"mysql://user:" + secret + "@localhost/db", "postgres://"},
		"bad escape":          {"postgres://user:" + secret + "@localhost/db", "percent-encoded"},
		"bad port":            {"postgres://user:" + url.QueryEscape(secret) + "@localhost:port/db", "port"},
		"bad option":          {"postgres://user:" + url.QueryEscape(secret) + "@localhost/db?sslmode=perhaps", "sslmode"},
		"bad pool size":       {"postgres://user:" + url.QueryEscape(secret) + "@localhost/db?pool_max_conns=many", "pool_max_conns"},
		"endless":             {"postgres://user:" + strings.Repeat("x", 9000) + "@localhost/db", "at most"},
		"asynchronous":        {"postgres://localhost/db?synchronous_commit=off", "synchronous_commit"},
		"answers as text":     {"postgres://localhost/db?default_query_exec_mode=simple_protocol", "default_query_exec_mode"},
		"local commits":       {"postgres://localhost/db?synchronous_commit=local", "synchronous_commit"},
		"nobody listens":      {"postgres://user:" + url.QueryEscape(secret) + "@127.0.0.1:1/db?sslmode=disable", "connect"},
		"wrong password":      {wrongPassword(t, secret), "connect"},
		"database is missing": {strings.Replace(serverURL(t), "/postgres?", "/no_such_database?", 1), "no_such_database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := postgres.Open(t.Context(), test.address)
			if err == nil {
				_ = s.Close()
				t.Fatal("the URL was accepted")
			}
			if !strings.Contains(err.Error(), test.hint) {
				t.Errorf("error %q does not mention %q", err, test.hint)
			}
			for _, leak := range []string{secret, url.QueryEscape(secret), "never-shown"} {
				if strings.Contains(err.Error(), leak) {
					t.Errorf("error %q gives the password away", err)
				}
			}
		})
	}
}

func wrongPassword(t testing.TB, password string) string {
	t.Helper()
	parsed, err := url.Parse(serverURL(t))
	if err != nil {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is no URL")
	}
	parsed.User = url.UserPassword(parsed.User.Username(), password)
	return parsed.String()
}
