package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/storetest"
	"countersign/internal/testdb"
)

// The PostgreSQL store keeps the contract of the storage port.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, create)
}

// The PostgreSQL store keeps the contract of the storage port under concurrent use.
//
//countersign:race
func TestConcurrentConformance(t *testing.T) {
	t.Parallel()
	storetest.RunConcurrent(t, create)
}

func create(t *testing.T) storetest.Opener {
	address := newDatabase(t)
	return func(t *testing.T) store.Store { return open(t, address) }
}

// newDatabase returns the URL of a fresh database for a pool of few connections.
func newDatabase(t testing.TB) string {
	t.Helper()
	return testdb.WithParameter(t, testdb.Postgres(t).URL, "pool_max_conns", "5")
}

// emptyDatabase is newDatabase without a schema.
func emptyDatabase(t testing.TB) string {
	t.Helper()
	return testdb.WithParameter(t, testdb.EmptyPostgres(t).URL, "pool_max_conns", "5")
}

// databaseName returns the name of the database at a URL.
func databaseName(t testing.TB, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("the address of a database is not a URL")
	}
	return strings.TrimPrefix(parsed.Path, "/")
}

// administer runs statements in a database, bypassing the store.
func administer(t testing.TB, address, statement string, args ...any) {
	t.Helper()
	if err := try(address, statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func try(address, statement string, args ...any) (err error) {
	ctx := context.Background()                 // t.Context has ended when clean-ups call this
	parsed, err := pgxpool.ParseConfig(address) // also parses the pool's parameters
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, parsed.ConnConfig)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement, args...)
	return errors.Join(err, conn.Close(ctx))
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

// An open store answers a ping. A closed one is unavailable.
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

// If the URL names several hosts, the store connects to one that answers.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	nobody := strings.Replace(newDatabase(t), "@", "@127.0.0.1:1,", 1)
	if err := open(t, nobody).Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// Sessions commit synchronously and have a statement timeout, whatever the server's
// defaults are.
func TestSessionSettings(t *testing.T) {
	t.Parallel()
	// A default of the server, the database or the role takes effect in the same way.
	address := testdb.WithParameter(t, newDatabase(t), "options", "-c synchronous_commit=off -c enable_seqscan=on")
	for _, test := range []struct{ address, name, want string }{
		{address, "synchronous_commit", "on"},
		{address, "enable_seqscan", "off"},
		{address, "statement_timeout", "30s"},
		{address, "plan_cache_mode", "force_generic_plan"},
		{address, "application_name", "countersign"},
		{testdb.WithParameter(t, address, "synchronous_commit", "remote_apply"), "synchronous_commit", "remote_apply"},
		{testdb.WithParameter(t, address, "statement_timeout", "5s"), "statement_timeout", "5s"},
	} {
		got, err := open(t, test.address).Setting(t.Context(), test.name)
		if err != nil || got != test.want {
			t.Errorf("%s is %q, want %q, error %v", test.name, got, test.want, err)
		}
	}
}

// Backup is refused, and the error names pg_dump.
func TestBackupIsUnsupported(t *testing.T) {
	t.Parallel()
	err := open(t, newDatabase(t)).Backup(t.Context(), t.TempDir()+"/copy")
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "pg_dump") {
		t.Errorf("error %v, want an unsupported one that names pg_dump", err)
	}
}

// An invalid or unsafe database URL is refused with a hint, and the error never contains the
// password.
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
		"database is missing": {strings.Replace(testdb.ServerURL(t), "/postgres?", "/no_such_database?", 1), "no_such_database"},
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
	parsed, err := url.Parse(testdb.ServerURL(t))
	if err != nil {
		t.Fatal("the address of a database is not a URL")
	}
	parsed.User = url.UserPassword(parsed.User.Username(), password)
	return parsed.String()
}
