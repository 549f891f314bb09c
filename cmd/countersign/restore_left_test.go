package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"countersign/internal/cli/operate"
	"countersign/internal/servicetest"
)

// awaitSignedLog waits until a transparency log that has not ended was signed with receipts in it.
func (s *testStore) awaitSignedLog(t *testing.T) {
	t.Helper()
	s.awaitSigned(t, 1)
}

// awaitSigned waits until transparency logs that have not ended were signed with as many
// receipts.
func (s *testStore) awaitSigned(t *testing.T, receipts int64) {
	t.Helper()
	servicetest.Eventually(t, "the log is signed", func() bool {
		var marks struct {
			Logs map[string]struct {
				Size  int64
				Ended bool
			}
		}
		text, err := os.ReadFile(filepath.Join(s.folder, "heads.logs"))
		if err != nil || json.Unmarshal(text, &marks) != nil {
			return false
		}
		var signed int64
		for _, mark := range marks.Logs {
			if !mark.Ended {
				signed += mark.Size
			}
		}
		return signed >= receipts
	})
}

// The write-ahead log of a database that was removed, as a killed server leaves it, does not become part of
// the backup that is restored in its place.
//
//countersign:race
func TestRestoreBesideALogThatWasLeft(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	admin.seal(t)
	copied, database := filepath.Join(t.TempDir(), "backup.db"), filepath.Join(s.folder, "countersign.db")
	s.awaitSignedLog(t)
	succeed(t, s.args("backup", copied)...)
	for range 5 {
		admin.seal(t)
	}
	left, err := os.ReadFile(database + "-wal")
	if err != nil || len(left) == 0 {
		t.Fatalf("the log has %d bytes (%v)", len(left), err)
	}
	server.stop(t)
	remove(t, database)
	writeFile(t, database+"-wal", left)
	succeed(t, s.args("restore", copied)...)
	succeed(t, s.args("audit")...)
	kept, err := filepath.Glob(database + ".replaced-*-wal")
	if err != nil || len(kept) != 1 {
		t.Errorf("of the log is kept %v (%v)", kept, err)
	}
}

// A backup can be restored again after its ledger, restored once, has begun another transparency log, which
// the backup cannot hold.
//
//countersign:race
func TestRestoreTwice(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	admin.seal(t)
	s.awaitSignedLog(t)
	server.stop(t)
	copied := filepath.Join(t.TempDir(), "backup.db")
	succeed(t, s.args("backup", copied)...)
	for range 2 {
		succeed(t, s.args("restore", copied, "--replace")...)
		server = start(t, s.flags...)
		server.client(admin.key).seal(t)
		s.awaitSignedLog(t)
		server.stop(t)
		succeed(t, s.args("audit")...)
	}
}

// A heads file may know of fewer receipts than the marks of the logs, because a server was killed or
// other replicas sealed them. What was signed is lost if the backup does not have it.
//
//countersign:race
func TestRestoreCountsWhatWasSigned(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	admin.seal(t)
	s.awaitSigned(t, 1)
	copied := filepath.Join(t.TempDir(), "backup.db")
	succeed(t, s.args("backup", copied)...)
	server.stop(t)
	older := keepFiles(t, s.folder, "heads.json")

	server = start(t, s.flags...)
	admin = server.client(admin.key)
	admin.seal(t)
	admin.seal(t)
	server.client(succeed(t, s.args("orgs", "create", "late")...)).seal(t)
	s.awaitSigned(t, 4)
	server.stop(t)
	older()

	answer := decode[operate.RestoreAnswer](t, succeed(t, s.args("restore", copied, "--replace", "--json")...))
	lost := make(map[bool]int64)
	for _, org := range answer.Organizations {
		lost[org.Missing] += org.ReceiptsLost
	}
	if lost[false] != 2 || lost[true] != 1 {
		t.Errorf("restoring says %+v", answer.Organizations)
	}
}

// A backup that root restores belongs to the user whose folder it is, and so does the lock: that user's
// server must be able to open both.
func TestRestoreForAnotherUser(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	succeed(t, s.args("orgs", "create", "acme")...)
	copied := filepath.Join(t.TempDir(), "backup.db")
	succeed(t, s.args("backup", copied)...)
	owner := os.Geteuid()
	if owner == 0 { // others can only give files to themselves
		owner = 12345
		if err := os.Chown(s.folder, owner, 23456); err != nil {
			t.Fatal(err)
		}
	}
	remove(t, filepath.Join(s.folder, "countersign.db"))
	succeed(t, s.args("restore", copied)...)
	for _, name := range []string{"countersign.db", "serve.lock"} {
		info, err := os.Stat(filepath.Join(s.folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if status, ok := info.Sys().(*syscall.Stat_t); !ok || int(status.Uid) != owner {
			t.Errorf("%s does not belong to the owner of the folder", name)
		}
	}
}
