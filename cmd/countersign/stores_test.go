package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver that looks behind the store's back
)

// testStore is a fresh store of one kind, with a way in past the program.
type testStore struct {
	flags  []string // that every command is given
	folder string
	driver string
	source string // of the driver
}

// onEachStore runs a test on both stores, side by side.
func onEachStore(t *testing.T, test func(*testing.T, *testStore)) {
	t.Helper()
	t.Parallel()
	for name, make := range map[string]func(*testing.T) *testStore{"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

func newSQLite(t *testing.T) *testStore {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "data")
	return &testStore{
		flags: []string{"--data", folder}, folder: folder,
		driver: "sqlite", source: "file:" + filepath.Join(folder, "countersign.db") + "?_pragma=busy_timeout(10000)",
	}
}

const postgresVariable = "COUNTERSIGN_TEST_POSTGRES"

// newPostgres makes a schema that lives as long as the test.
func newPostgres(t *testing.T) *testStore {
	t.Helper()
	server := os.Getenv(postgresVariable)
	if server == "" {
		t.Fatalf("%s names no PostgreSQL server: run make test, or scripts/with-postgres go test ./cmd/countersign", postgresVariable)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	schema := "cmd_" + hex.EncodeToString(random[:])
	admin := &testStore{driver: "pgx", source: server}
	admin.exec(t, "create schema "+schema)
	t.Cleanup(func() { admin.exec(t, "drop schema "+schema+" cascade") })
	address, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s is no URL", postgresVariable)
	}
	query := address.Query()
	query.Set("search_path", schema)
	address.RawQuery = query.Encode()
	direct := address.String()
	query.Set("pool_max_conns", "6")
	address.RawQuery = query.Encode()
	folder := filepath.Join(t.TempDir(), "data")
	return &testStore{
		flags: []string{"--data", folder, "--database", address.String()}, folder: folder,
		driver: "pgx", source: direct,
	}
}

// args are a command's words followed by the store's flags.
func (s *testStore) args(words ...string) []string { return append(words, s.flags...) }

func (s *testStore) keyFile() string { return filepath.Join(s.folder, "keys.json") }

// exec changes the store as an intruder would.
func (s *testStore) exec(t *testing.T, statement string) {
	t.Helper()
	db, err := sql.Open(s.driver, s.source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// The test's own context has ended when it cleans up.
	if _, err := db.ExecContext(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
