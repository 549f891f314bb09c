package sqlite_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// An attacker who writes columns of the wrong length into the file cannot make the
// store fail: they are read as zero ids and hashes.
func TestShortColumnsAreReadAsNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, path)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.Fill(t, s)
	organizations, err := s.Organizations(t.Context())
	if err != nil || len(organizations) != 1 {
		t.Fatalf("%d organizations, %v", len(organizations), err)
	}
	org := organizations[0].ID
	keys, err := s.Keys(t.Context(), org, ledger.KeyID{}, 10)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	hash := ledger.HashToken("session")
	if err := s.AddKeyCheck(t.Context(), "k1", hash); err != nil {
		t.Fatal(err)
	}
	tamper(t, path, "UPDATE organizations SET id = x'01'", "UPDATE api_keys SET org_id = x'', hash = x'02'", "UPDATE master_keys SET fingerprint = x'03'",
		"INSERT INTO sign_ins (hash, kind, key_id, expires_at) VALUES (zeroblob(32), 'link', x'04', 1000)")

	if organizations, err = s.Organizations(t.Context()); err != nil || organizations[0].ID != (ledger.OrgID{}) {
		t.Errorf("organization %v, %v", organizations[0].ID, err)
	}
	key, err := s.Key(t.Context(), keys[0].ID)
	if err != nil || key.Org != (ledger.OrgID{}) || key.Hash != ([32]byte{}) {
		t.Errorf("key %+v, %v", key, err)
	}
	if checks, err := s.KeyChecks(t.Context()); err != nil || checks["k1"] != ([32]byte{}) {
		t.Errorf("key checks %v, %v", checks, err)
	}
	if err := s.AddKeyCheck(t.Context(), "k1", hash); !errors.Is(err, store.ErrExists) {
		t.Errorf("another key check: error %v, want %v", err, store.ErrExists)
	}
	if err := s.OpenSession(t.Context(), [32]byte{}, &store.SignIn{Hash: hash, ExpiresAt: 2, Session: true}, 1); err == nil {
		t.Error("a link of no key opened a session")
	}
}

// tamper writes to the file without the store.
func tamper(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path+"?_pragma=ignore_check_constraints(1)&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
