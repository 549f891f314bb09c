package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// ledgerOf is which ledger a server says that it serves, to anyone.
func ledgerOf(t *testing.T, c *client) (id uuid.UUID, parent *uuid.UUID) {
	t.Helper()
	var said struct {
		Ledger struct {
			ID       uuid.UUID  `json:"id"`
			ParentID *uuid.UUID `json:"parent_id"`
		}
	}
	(&client{base: c.base, http: c.http}).call(t, http.MethodGet, "/readyz", "", &said)
	return said.Ledger.ID, said.Ledger.ParentID
}

// restore restores what was copied, in the way of the store.
func (s *testStore) restore(t *testing.T, back func() *testStore, copied string) (*testStore, operate.RestoreAnswer) {
	t.Helper()
	if s.Kind == "sqlite" {
		return s, decode[operate.RestoreAnswer](t, succeed(t, s.args("restore", copied, "--replace", "--json")...))
	}
	s = back()
	return s, decode[operate.RestoreAnswer](t, succeed(t, s.args("restore", "--in-place", "--yes", "--json")...))
}

// A restored backup is a ledger of its own: it names its parent, says in each audit log
// and to the operator which receipts are lost, and goes on at once, open chains included.
// Neither the file of
// heads from before nor the old name of the ledger fits it any more.
//
//countersign:race
func TestRestore(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.seal(t)
		var chain struct{ ID string }
		admin.call(t, http.MethodPost, "/v1/chains", `{"name":"test"}`, &chain)
		events := "/v1/chains/" + chain.ID + "/events"
		admin.call(t, http.MethodPost, events, anAction, &struct{}{})
		first, parent := ledgerOf(t, admin)
		if parent != nil {
			t.Errorf("a new ledger has the parent %s", parent)
		}
		server.stop(t)
		back, copied := snapshot(t, s), filepath.Join(t.TempDir(), "backup.db")
		if s.Kind == "sqlite" {
			succeed(t, s.args("backup", copied)...)
		}
		server = start(t, s.flags...)
		late := server.client(succeed(t, s.args("orgs", "create", "late")...))
		late.seal(t)
		admin = server.client(admin.key)
		admin.seal(t)
		admin.seal(t)
		admin.call(t, http.MethodPost, events, anAction, &struct{}{})
		if s.Kind == "sqlite" {
			refuse(t, cli.ExitFailed, "stop it", s.args("restore", copied, "--replace")...)
		} else {
			refuse(t, cli.ExitFailed, "stop every server", s.args("restore", "--in-place", "--yes")...)
		}
		server.stop(t)
		memory := filepath.Join(t.TempDir(), "heads.json")
		content, err := os.ReadFile(s.headsFile())
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, memory, content)

		s, answer := s.restore(t, back, copied)
		checkRestoration(t, &answer, first)
		server = start(t, s.flags...)
		admin = server.client(admin.key)
		servicetest.Eventually(t, "it is ready", func() bool { return admin.status(t, http.MethodGet, "/readyz", "") == http.StatusOK })
		id, parent := ledgerOf(t, admin)
		if id != answer.Ledger || parent == nil || *parent != first {
			t.Errorf("the server says that it serves %s of %v", id, parent)
		}
		var log struct {
			Data []struct {
				Action string
				Detail map[string]any
			}
		}
		admin.call(t, http.MethodGet, "/v1/audit-log", "", &log)
		if newest := log.Data[0]; newest.Action != ledger.ActLedgerRestore || newest.Detail["receipts_lost"] != 2.0 || newest.Detail["organizations_missing"] != 1.0 || newest.Detail["ledger"] != id.String() {
			t.Errorf("the audit log says %+v", newest)
		}
		if sealed := admin.seal(t); !strings.HasSuffix(sealed.Receipt.Number, "-00002") {
			t.Errorf("the next receipt is %s", sealed.Receipt.Number)
		}
		admin.call(t, http.MethodPost, events, anAction, &struct{}{})
		server.stop(t)
		succeed(t, s.args("audit")...)
		succeed(t, s.args("doctor")...)

		older := s.with(memory)
		refuse(t, cli.ExitFailed, "is about another ledger", older.args("serve", "--listen", "127.0.0.1:0")...)
		refuse(t, cli.ExitFailed, "another ledger", s.args("heads", "import", memory)...)
		succeed(t, older.args("rollback", "accept", "--yes")...)
		start(t, older.flags...).client(admin.key).seal(t)
	})
}

func checkRestoration(t *testing.T, answer *operate.RestoreAnswer, parent uuid.UUID) {
	t.Helper()
	if answer.Parent == nil || *answer.Parent != parent || answer.Ledger == parent || answer.Ledger == uuid.Nil {
		t.Errorf("the ledger is %s of %v, want one of %s", answer.Ledger, answer.Parent, parent)
	}
	found := make(map[string]service.RestoredOrganization)
	for _, org := range answer.Organizations {
		found[org.Organization] = org
	}
	if org := found["default"]; org.Receipts != 1 || org.ReceiptsLost != 2 || org.Missing || org.Diverged || org.Acts == 0 {
		t.Errorf("of default it says %+v", org)
	}
	if org := found["late"]; org.ReceiptsLost != 1 || !org.Missing {
		t.Errorf("of late it says %+v", org)
	}
}

// The database that a restore replaces is kept, and served elsewhere it is another
// ledger than the restored one. An older row that names the ledger from before lets
// no server start.
//
//countersign:race
func TestRestoredBesideItsParent(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	admin.seal(t)
	server.stop(t)
	copied, memory := filepath.Join(t.TempDir(), "backup.db"), filepath.Join(t.TempDir(), "heads.json")
	succeed(t, s.args("backup", copied)...)
	content, err := os.ReadFile(s.headsFile())
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, memory, content)
	refuse(t, cli.ExitInconclusive, "give --replace", s.args("restore", copied)...)
	r := execute(t, s.args("restore", copied, "--replace")...)
	if r.code != 0 || !strings.Contains(r.out, "default continues from 1 receipt") || !strings.Contains(r.err, "No acknowledged receipt is known to be lost") {
		t.Fatalf("restoring says %+v", r)
	}
	kept, err := filepath.Glob(filepath.Join(s.folder, "countersign.db.replaced-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept are %v (%v)", kept, err)
	}
	parent := newSQLite(t)
	if err := os.MkdirAll(parent.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(kept[0], filepath.Join(parent.folder, "countersign.db")); err != nil {
		t.Fatal(err)
	}
	parent.flags = append(parent.flags, "--keys", s.keyFile(), "--heads", memory)
	old, restored := start(t, parent.flags...).client(admin.key), start(t, s.flags...)
	oldID, _ := ledgerOf(t, old)
	id, of := ledgerOf(t, restored.client(admin.key))
	if id == oldID || of == nil || *of != oldID {
		t.Errorf("the ledger %s was restored from %v, and its parent is %s", id, of, oldID)
	}
	old.seal(t)
	restored.client(admin.key).seal(t)
	restored.stop(t)

	s.exec(t, "ATTACH '"+copied+"' AS older; UPDATE ledger_identity SET id = o.id, parent_id = o.parent_id, created_at = o.created_at, mac = o.mac FROM older.ledger_identity o")
	refuse(t, cli.ExitFailed, "is about another ledger", s.args("serve", "--listen", "127.0.0.1:0")...)
	refuse(t, cli.ExitFailed, "is about another ledger", s.args("audit")...)
}

// What is no sound backup of this ledger is not put in place, and nothing is changed or
// left behind. Where there is no database, a backup is restored without more ado.
//
//countersign:race
func TestRestoresThatAreRefused(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	server.admin(t).seal(t)
	server.stop(t)
	backup := func(change string) string {
		path := filepath.Join(t.TempDir(), "backup.db")
		succeed(t, s.args("backup", path)...)
		if change != "" {
			inFolder(filepath.Dir(path), testdb.SQLiteFile(path)).exec(t, change)
		}
		return path
	}
	stranger := migratedSQLite(t)
	strange := start(t, stranger.flags...)
	strange.admin(t).seal(t)
	strange.stop(t)
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	succeed(t, stranger.args("backup", foreign)...)
	text, empty := filepath.Join(t.TempDir(), "text.db"), filepath.Join(t.TempDir(), "empty.db")
	writeFile(t, text, []byte(strings.Repeat("no database ", 1000)))
	writeFile(t, empty, nil)
	inUse := backup("")
	writeFile(t, inUse+"-wal", []byte("log"))
	before := listed(t, s.folder)
	for name, test := range map[string]struct{ file, says string }{
		"not there":  {filepath.Join(t.TempDir(), "none.db"), "no such file"},
		"a folder":   {t.TempDir(), "is not a file"},
		"text":       {text, "is not a backup"},
		"empty":      {empty, "it has no schema"},
		"in use":     {inUse, "it is a database in use"},
		"other keys": {foreign, "which has signed in this store"},
		"newer":      {backup("INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)"), "newer than this program"},
		"broken":     {backup("UPDATE receipts SET sequence = sequence + 5"), "is broken at"},
	} {
		r := execute(t, s.args("restore", test.file, "--replace")...)
		if r.code == 0 || !strings.Contains(r.err, test.says) {
			t.Errorf("%s: exit status %d, says %s", name, r.code, r.err)
		}
	}
	if after := listed(t, s.folder); after != before {
		t.Errorf("in the folder are %s, and before %s", after, before)
	}
	succeed(t, s.args("audit")...)
	refuse(t, cli.ExitInconclusive, "name the backup, or give --in-place", s.args("restore")...)
	refuse(t, cli.ExitInconclusive, "pg_restore", "restore", backup(""), "--database", "postgres://user@host/none", "--data", s.folder)

	for _, name := range []string{"countersign.db", "countersign.db-wal", "countersign.db-shm"} {
		path := filepath.Join(s.folder, name)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	remove(t, inUse+"-wal")
	succeed(t, s.args("restore", inUse)...)
	succeed(t, s.args("audit")...)
}

// listed are the names in a folder.
func listed(t *testing.T, folder string) string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}
