package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

func (s *testStore) headsFile() string { return filepath.Join(s.folder, "heads.json") }

// with is the same database with another heads file.
func (s *testStore) with(heads string) *testStore {
	other := *s
	other.flags = append(append([]string{}, s.flags...), "--heads", heads)
	return &other
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// snapshot is the database of a stopped server as it is now: restored later, it has
// gone back in time.
func snapshot(t *testing.T, s *testStore) func() *testStore {
	t.Helper()
	if s.Kind == "sqlite" {
		copied := filepath.Join(t.TempDir(), "copy.db")
		succeed(t, s.args("backup", copied)...)
		return func() *testStore { rollBack(t, s, copied); return s }
	}
	fresh := newPostgres(t, s.Copy(t))
	fresh.flags[1], fresh.folder = s.folder, s.folder
	return func() *testStore { return fresh }
}

// keepMarks returns a function that restores the marks of the transparency log as they are now.
func keepMarks(t *testing.T, s *testStore) func() {
	t.Helper()
	path := strings.TrimSuffix(s.headsFile(), filepath.Ext(s.headsFile())) + ".logs"
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(path, kept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// wantNoReceipts wants a server that serves and seals nothing, for anyone.
func wantNoReceipts(t *testing.T, clients ...*client) {
	t.Helper()
	servicetest.Eventually(t, "it is not ready", func() bool {
		return clients[0].status(t, http.MethodGet, "/readyz", "") == http.StatusServiceUnavailable
	})
	for _, c := range clients {
		if code := c.problemCode(t, http.MethodPost, "/v1/chains/"+c.open(t)+"/complete", ""); code != fault.CodeRolledBack {
			t.Errorf("completing answers %s", code)
		}
	}
}

// A ledger that holds receipts is not sealed in when its heads file is lost, whether
// the database went back with it or not. Neither another start nor what an operator does
// meanwhile lifts that; accepting it does, and only for all organizations.
//
//countersign:race
func TestFileOfHeadsThatWasLost(t *testing.T) {
	for name, older := range map[string]bool{"the file alone": false, "with an older database": true} {
		t.Run(name, func(t *testing.T) {
			onEachStore(t, func(t *testing.T, s *testStore) { loseHeads(t, s, older) })
		})
	}
}

func loseHeads(t *testing.T, s *testStore, older bool) {
	t.Helper()
	server := start(t, s.flags...)
	admin := server.admin(t)
	rival := server.client(succeed(t, s.args("orgs", "create", "rival")...))
	admin.seal(t)
	server.stop(t)
	rollBack, restoreMarks := snapshot(t, s), keepMarks(t, s)
	server = start(t, s.flags...)
	server.client(admin.key).seal(t)
	server.stop(t)
	if older {
		// With the marks of the transparency log: if they were left, they would know of the
		// second receipt, and the audit would find a rollback.
		s = rollBack()
		restoreMarks()
	}
	remove(t, s.headsFile())

	server = start(t, s.flags...)
	if !strings.Contains(server.log.String(), "the heads file knows none of the receipts") {
		t.Errorf("the log does not say so:\n%s", server.log.String())
	}
	admin, rival = server.client(admin.key), server.client(rival.key)
	wantNoReceipts(t, admin, rival)
	succeed(t, s.args("keys", "create", "--role", "agent", "--org", "rival")...)
	server.stop(t)
	server = start(t, s.flags...)
	admin, rival = server.client(admin.key), server.client(rival.key)
	wantNoReceipts(t, admin, rival)

	if out := succeed(t, s.args("audit")...); !strings.Contains(out, "not checked: rollback") {
		t.Errorf("the audit says %q", out)
	}
	refuse(t, cli.ExitFailed, "the heads file does not know which were acknowledged: import the heads of another machine", s.args("doctor")...)
	refuse(t, cli.ExitInconclusive, "nothing is remembered", s.args("heads", "show")...)
	refuse(t, cli.ExitInconclusive, "nothing is remembered", s.args("heads", "export")...)
	refuse(t, cli.ExitInconclusive, "without --org", s.args("rollback", "accept", "--yes", "--org", "default")...)
	chain := admin.open(t)
	succeed(t, s.args("rollback", "accept", "--yes")...)
	checkAccepted(t, s, server, admin, chain, ledger.ActRollbackAccept)
	start(t, s.flags...).client(rival.key).seal(t)
}

// A new replica seals when it was given what another remembers, while it runs, and not
// before.
//
//countersign:race
func TestReplicaThatIsAdmitted(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		first := start(t, s.flags...)
		admin := first.admin(t)
		admin.seal(t)
		exported := filepath.Join(t.TempDir(), "export.json")
		servicetest.Eventually(t, "the file has it", func() bool {
			shown := decode[operate.HeadsAnswer](t, succeed(t, s.args("heads", "show", "--json")...))
			return shown.Ledger != nil && len(shown.Organizations) == 1 && shown.Organizations[0].Receipts == 1
		})
		if s.Kind == "sqlite" {
			first.stop(t) // one server at a time
		}
		other := s.with(filepath.Join(t.TempDir(), "heads.json"))
		second := start(t, other.flags...)
		replica := second.client(admin.key)
		wantNoReceipts(t, replica)
		succeed(t, s.args("heads", "export", "--output", exported)...)
		refuse(t, cli.ExitFailed, "already exists", s.args("heads", "export", "--output", exported)...)
		if out := succeed(t, other.args("heads", "import", exported)...); !strings.Contains(out, "1 organization read") {
			t.Errorf("importing says %q", out)
		}
		servicetest.Eventually(t, "the replica takes it up", func() bool {
			return replica.status(t, http.MethodPost, "/v1/chains/"+replica.open(t)+"/complete", "") == http.StatusOK
		})
		servicetest.Eventually(t, "it is ready", func() bool { return replica.status(t, http.MethodGet, "/readyz", "") == http.StatusOK })
		if s.Kind == "postgres" {
			admin.seal(t)
		}
		second.stop(t)
		first.stop(t)
		succeed(t, s.args("audit")...)
		succeed(t, other.args("audit")...)
	})
}

// A server whose file is about another ledger does not start, commands change nothing,
// and everyone says what to do. An operator can accept it.
//
//countersign:race
func TestFileOfHeadsOfAnotherLedger(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.seal(t)
		server.stop(t)
		foreign := filepath.Join(t.TempDir(), "heads.json")
		elsewhere := migratedSQLite(t)
		succeed(t, "orgs", "create", "strangers", "--data", elsewhere.folder, "--keys", s.keyFile(), "--heads", foreign)
		other := s.with(foreign)

		const says = "another ledger"
		refuse(t, cli.ExitFailed, says, other.args("serve", "--listen", "127.0.0.1:0")...)
		refuse(t, cli.ExitFailed, says, other.args("keys", "create", "--role", "agent")...)
		refuse(t, cli.ExitFailed, says, other.args("audit")...)
		refuse(t, cli.ExitFailed, says, other.args("doctor")...)
		exported := filepath.Join(t.TempDir(), "export.json")
		succeed(t, other.args("heads", "export", "--output", exported)...)
		refuse(t, cli.ExitFailed, says, s.args("heads", "import", exported)...)
		succeed(t, s.args("audit")...)

		succeed(t, other.args("rollback", "accept", "--yes")...)
		succeed(t, other.args("audit")...)
		start(t, other.flags...).client(admin.key).seal(t)
	})
}

// What is not a memory of this ledger, made with these keys, whole and of a size that
// such a file can have, is refused, and nothing is changed by it.
//
//countersign:race
func TestImportsThatAreRefused(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		server.admin(t).seal(t)
		server.stop(t)
		content, err := os.ReadFile(s.headsFile())
		if err != nil {
			t.Fatal(err)
		}
		stranger := migratedSQLite(t)
		start(t, stranger.flags...).stop(t)
		foreign, err := os.ReadFile(stranger.headsFile())
		if err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			body []byte
			size int64 // of the file, if it is not that of the body
			says string
		}{
			"empty":      {nil, 0, "it was changed or is not whole"},
			"torn":       {content[:len(content)/2], 0, "it was changed or is not whole"},
			"edited":     {[]byte(strings.Replace(string(content), `"count": 1`, `"count": 0`, 1)), 0, "it was changed or is not whole"},
			"other keys": {foreign, 0, "it was made with other master keys"},
			"oversized":  {nil, 64<<20 + 1, "larger than 64 MiB"},
		} {
			file := filepath.Join(t.TempDir(), "import.json")
			writeFile(t, file, test.body)
			if test.size > 0 {
				if err := os.Truncate(file, test.size); err != nil {
					t.Fatal(err)
				}
			}
			r := execute(t, s.args("heads", "import", file)...)
			if r.code != cli.ExitInconclusive || !strings.Contains(r.err, test.says) {
				t.Errorf("%s: exit status %d, says %s", name, r.code, r.err)
			}
		}
		refuse(t, cli.ExitInconclusive, "no such file", s.args("heads", "import", filepath.Join(t.TempDir(), "none.json"))...)
		if now, err := os.ReadFile(s.headsFile()); err != nil || string(now) != string(content) {
			t.Errorf("the file of heads was changed (%v)", err)
		}
	})
}

// Two copies of one database that were served apart are told apart when one is given
// what the other remembers.
//
//countersign:race
func TestCopiesThatWereServedApart(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.seal(t)
		server.stop(t)
		back, memory := snapshot(t, s), filepath.Join(t.TempDir(), "heads.json")
		content, err := os.ReadFile(s.headsFile())
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, memory, content)
		server = start(t, s.flags...)
		server.client(admin.key).seal(t)
		server.stop(t)

		twin := back().with(memory)
		server = start(t, twin.flags...)
		server.client(admin.key).seal(t)
		server.client(admin.key).seal(t)
		server.stop(t)
		succeed(t, twin.args("audit")...)
		refuse(t, cli.ExitFailed, "another history", twin.args("heads", "import", s.headsFile())...)
		succeed(t, twin.args("audit")...)
	})
}

// Whoever changes, removes or rolls back the row that names the ledger gains nothing by
// it, and is named.
//
//countersign:race
func TestIdentityThatWasTamperedWith(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.seal(t)
		server.stop(t)
		before := decode[operate.AuditResult](t, succeed(t, s.args("audit", "--json")...)).Ledger

		s.exec(t, "UPDATE ledger_identity SET created_at = created_at + 1")
		refuse(t, cli.ExitFailed, "the id of the ledger was changed outside the service", s.args("audit")...)
		refuse(t, cli.ExitFailed, "✗ ledger", s.args("doctor")...)
		server = start(t, s.flags...)
		server.client(admin.key).seal(t)
		server.stop(t)
		refuse(t, cli.ExitFailed, "the id of the ledger was changed outside the service", s.args("audit")...)
		succeed(t, s.args("rollback", "accept", "--yes")...)
		if now := decode[operate.AuditResult](t, succeed(t, s.args("audit", "--json")...)).Ledger; now == nil || now.ID != before.ID {
			t.Errorf("the ledger is %v, want %v", now, before)
		}

		s.exec(t, "DELETE FROM ledger_identity")
		refuse(t, cli.ExitFailed, "the id of the ledger was deleted", s.args("audit")...)
		server = start(t, s.flags...)
		server.client(admin.key).seal(t)
		server.stop(t)
		if now := decode[operate.AuditResult](t, succeed(t, s.args("audit", "--json")...)).Ledger; now == nil || now.ID != before.ID {
			t.Errorf("the ledger is %v, want %v", now, before)
		}
	})
}

// A database and a file from before ledgers had ids get one at the next start, without
// anyone's doing.
//
//countersign:race
func TestUpgradeToIdentities(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.seal(t)
		server.stop(t)
		s.exec(t, "DELETE FROM ledger_identity")
		ring, err := keyring.Open(s.keyFile())
		if err != nil {
			t.Fatal(err)
		}
		heads, err := keyring.OpenHeads(s.headsFile(), ring)
		if err != nil {
			t.Fatal(err)
		}
		if err := heads.Replace(uuid.Nil, heads.All()); err != nil {
			t.Fatal(err)
		}
		if out := succeed(t, s.args("doctor")...); !strings.Contains(out, "! ledger") {
			t.Errorf("the doctor says\n%s", out)
		}
		server = start(t, s.flags...)
		server.client(admin.key).seal(t)
		server.stop(t)
		found := decode[operate.AuditResult](t, succeed(t, s.args("audit", "--json")...))
		shown := decode[operate.HeadsAnswer](t, succeed(t, s.args("heads", "show", "--json")...))
		if found.Ledger == nil || shown.Ledger == nil || found.Ledger.ID != *shown.Ledger || shown.Organizations[0].Receipts != 2 {
			t.Errorf("the ledger is %+v, and watched is %+v", found.Ledger, shown)
		}
	})
}

// Servers that start at once on a new database agree on its id.
//
//countersign:race
func TestReplicasAgreeOnTheLedger(t *testing.T) {
	t.Parallel()
	s := newPostgres(t, testdb.Postgres(t))
	succeed(t, s.args("orgs", "create", "acme")...) // and with it the key file
	s.exec(t, "DELETE FROM ledger_identity")
	remove(t, s.headsFile())
	const replicas = 3
	var starting sync.WaitGroup
	for range replicas {
		other := s.with(filepath.Join(t.TempDir(), "heads.json"))
		starting.Go(func() {
			o, err := openOther(t, other)
			if err != nil {
				t.Error(err)
				return
			}
			stored, err := o.Ledger(t.Context())
			if err != nil || stored == nil || o.Heads.Ledger() != stored.ID {
				t.Errorf("the ledger is %v, watched is %v (%v)", stored, o.Heads.Ledger(), err)
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
}

// openOther opens a store as a server does.
func openOther(t *testing.T, s *testStore) (*cli.Opened, error) {
	t.Helper()
	at := cli.Storage{Data: s.folder, Database: s.URL, Heads: s.flags[len(s.flags)-1]}
	return at.OpenForServing(&cli.Process{Ctx: t.Context(), Databases: drivers{}}, service.Config{})
}
