package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/testdb"
)

// Migrating brings an empty database to the newest schema, and migrating again
// changes nothing.
func TestMigrate(t *testing.T) {
	onEachEmptyStore(t, func(t *testing.T, s *testStore) {
		type versions struct{ From, To int64 }
		first := decode[versions](t, succeed(t, s.args("migrate", "--json")...))
		if first.From != 0 || first.To < 1 {
			t.Errorf("the first migration went %+v", first)
		}
		second := decode[versions](t, succeed(t, s.args("migrate", "--json")...))
		if second.From != first.To || second.To != first.To {
			t.Errorf("the second migration went %+v after %+v", second, first)
		}
		if out := succeed(t, s.args("migrate")...); !strings.Contains(out, "→") {
			t.Errorf("migrate says %q", out)
		}
	})
}

// A database with a newer schema than the program knows is neither served nor changed nor
// audited.
func TestNewerSchemaIsRefused(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("migrate")...)
		table, yes := "goose_db_version", "1"
		if s.Driver != "sqlite" {
			table, yes = "schema_versions", "true"
		}
		s.exec(t, "insert into "+table+" (version_id, is_applied) values (9999, "+yes+")")
		for _, words := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"orgs", "create", "acme"}, {"migrate"}} {
			refuse(t, cli.ExitFailed, "newer than this program", s.args(words...)...)
		}
		refuse(t, cli.ExitInconclusive, "newer than this program", s.args("audit")...)
	})
}

// Organizations and keys can be managed without a running server. A change needs the
// key file, because it is logged.
func TestDirectoryCommandsWithoutAServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("orgs", "create", "acme", "--name", "Acme & Co")...)
		orgs := decode[[]operate.OrgLine](t, succeed(t, s.args("orgs", "list", "--json")...))
		if len(orgs) != 1 || orgs[0].Slug != "acme" || orgs[0].Name != "Acme & Co" {
			t.Errorf("the organizations are %+v", orgs)
		}
		if out := succeed(t, s.args("orgs", "list")...); !strings.Contains(out, "acme") || orgs[0].ID == "" || !strings.Contains(out, orgs[0].ID) {
			t.Errorf("the list is %q", out)
		}
		created := execute(t, s.args("keys", "create", "--org", "acme", "--role", "member", "--name", "reader")...)
		if created.code != 0 || created.out != keyPattern.FindString(created.out)+"\n" {
			t.Fatalf("standard output must be the key alone: %+v", created)
		}
		keys := decode[[]operate.KeyLine](t, succeed(t, s.args("keys", "list", "--org", "acme", "--json")...))
		if len(keys) != 2 || keys[1].Name != "reader" || keys[1].Role != "member" || keys[1].Status != "active" || keys[1].Key != "" {
			t.Fatalf("the keys are %+v", keys)
		}
		if r := decode[struct{ Link, Name, Role string }](t, succeed(t, s.args("keys", "sign-in", "--json", "--org", "acme", "--url", "https://host.example")...)); !strings.HasPrefix(r.Link, "https://host.example/sign-in#csl_") || r.Name != "first admin" || r.Role != "admin" {
			t.Errorf("the link is %+v", r)
		}
		if r := execute(t, s.args("keys", "sign-in", keys[1].ID, "--org", "acme", "--url", "https://host.example/")...); !strings.HasPrefix(r.out, "https://host.example/sign-in#csl_") || !strings.Contains(r.err, "signs in as reader (member)") {
			t.Errorf("the link is %+v", r)
		}
		revoked := decode[operate.KeyLine](t, succeed(t, s.args("keys", "revoke", keys[1].ID, "--org", "acme", "--json")...))
		again := decode[operate.KeyLine](t, succeed(t, s.args("keys", "revoke", keys[1].ID, "--org", "acme", "--json")...))
		if revoked.Status != "revoked" || revoked.RevokedAt == nil || *again.RevokedAt != *revoked.RevokedAt {
			t.Errorf("revoked %+v, then %+v", revoked, again)
		}
		if err := os.Rename(s.keyFile(), s.keyFile()+".away"); err != nil {
			t.Fatal(err)
		}
		refuse(t, cli.ExitInconclusive, "the audit log cannot be written without it", s.args("keys", "create", "--org", "acme", "--role", "agent")...)
		refuse(t, cli.ExitInconclusive, "name it with --keys", s.args("keys", "revoke", keys[0].ID, "--org", "acme")...)
		refuse(t, cli.ExitInconclusive, "nothing can be verified without it", s.args("keys", "list", "--org", "acme")...)
		succeed(t, s.args("orgs", "list")...)
		if err := os.Rename(s.keyFile()+".away", s.keyFile()); err != nil {
			t.Fatal(err)
		}
		refuse(t, cli.ExitInconclusive, "no active key", s.args("keys", "sign-in", keys[1].ID, "--org", "acme")...)
		succeed(t, s.args("keys", "create", "--org", "acme", "--role", "member", "--name", "alice", "--sign-in-as", "alice@example.com")...)
		refuse(t, cli.ExitFailed, `the active key "alice" is for alice@example.com already`, s.args("keys", "update", keys[0].ID, "--org", "acme", "--sign-in-as", "Alice@example.com")...)
		succeed(t, s.args("keys", "create", "--org", "acme", "--role", "member", "--name", "bob", "--slack-member", "T1/U1")...)
		refuse(t, cli.ExitFailed, `the active key "bob" is for the Slack member T1/U1 already`, s.args("keys", "update", keys[0].ID, "--org", "acme", "--slack-member", "T1/U1")...)
		refuse(t, cli.ExitInconclusive, "--slack-member must be a Slack team id", s.args("keys", "update", keys[0].ID, "--org", "acme", "--slack-member", "U1")...)
		refuse(t, cli.ExitInconclusive, "--slack-member must be a Slack team id", s.args("keys", "create", "--org", "acme", "--role", "member", "--slack-member", "U1")...)
		refuse(t, cli.ExitInconclusive, "give --sign-in-as, --slack-member or both", s.args("keys", "update", keys[0].ID, "--org", "acme")...)
		refuse(t, cli.ExitInconclusive, "orgs list", s.args("keys", "create", "--org", "nobody", "--role", "agent")...)
		refuse(t, cli.ExitInconclusive, "keys list", s.args("keys", "revoke", "00000000-0000-7000-8000-000000000000", "--org", "acme")...)
		refuse(t, cli.ExitInconclusive, "keys list", s.args("keys", "revoke", "nonsense", "--org", "acme")...)
		refuse(t, cli.ExitInconclusive, "agent", s.args("keys", "create", "--org", "acme", "--role", "king")...)
		refuse(t, cli.ExitInconclusive, "200 characters", s.args("keys", "create", "--org", "acme", "--role", "agent", "--name", strings.Repeat("x", 201))...)
		refuse(t, cli.ExitInconclusive, "without control characters", s.args("keys", "create", "--org", "acme", "--role", "member", "--name", "trea\nsury")...)
		refuse(t, cli.ExitInconclusive, "without control characters", s.args("orgs", "create", "other", "--name", "Acme\x1b[2J")...)
		refuse(t, cli.ExitInconclusive, "--url", s.args("keys", "sign-in", keys[0].ID, "--org", "acme", "--url", "host")...)
	})
}

// A key can be bound to agents, given an owner and an end, and rotated, on the
// command line too.
func TestKeysAreBoundAndRotated(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("orgs", "create", "acme")...)
		made := decode[operate.KeyLine](t, succeed(t, s.args("keys", "create", "--role", "agent", "--name", "worker", "--agent", "intern", "--agent", "clerk, senior",
			"--owner", "ops@example.com", "--expires", "90d", "--json")...))
		if !slices.Equal(made.Agents, []string{"intern", "clerk, senior"}) || made.Owner == nil || *made.Owner != "ops@example.com" || made.ExpiresAt == nil || made.Status != "active" {
			t.Errorf("made %+v", made)
		}
		plain := decode[operate.KeyLine](t, succeed(t, s.args("keys", "create", "--role", "agent", "--json")...))
		if plain.Agents == nil || len(plain.Agents) != 0 || plain.Owner != nil || plain.ExpiresAt != nil || plain.PreviousExpiresAt != nil || plain.LastUsedAt != nil {
			t.Errorf("made %+v", plain)
		}
		moment := decode[operate.KeyLine](t, succeed(t, s.args("keys", "create", "--role", "agent", "--expires", "2999-01-31T00:00:00Z", "--json")...))
		if moment.ExpiresAt == nil || *moment.ExpiresAt != "2999-01-31T00:00:00.000Z" {
			t.Errorf("made %+v", moment)
		}
		for _, bad := range []string{"soon", "0d", "-1h", "-90d", "99999d", "2020-01-01T00:00:00Z", "d"} {
			refuse(t, cli.ExitInconclusive, "--expires", s.args("keys", "create", "--role", "agent", "--expires="+bad)...)
		}
		refuse(t, cli.ExitInconclusive, "--agent", s.args("keys", "create", "--role", "agent", "--agent", strings.Repeat("x", 201))...)
		refuse(t, cli.ExitInconclusive, "--owner", s.args("keys", "create", "--role", "agent", "--owner", strings.Repeat("x", 201))...)

		shown := execute(t, s.args("keys", "rotate", made.ID, "--overlap", "10m")...)
		if !strings.HasPrefix(shown.out, "csk_") || strings.TrimSpace(shown.out) == made.Key || !strings.Contains(shown.err, "accepted until") {
			t.Errorf("rotated, it prints %d characters and says %q", len(shown.out), shown.err)
		}
		overlapping := decode[[]operate.KeyLine](t, succeed(t, s.args("keys", "list", "--json")...))
		var until string
		for _, line := range overlapping {
			if line.ID == made.ID && line.PreviousExpiresAt != nil {
				until = *line.PreviousExpiresAt
			}
		}
		if list := execute(t, s.args("keys", "list")...); until == "" || !strings.Contains(list.out, until) {
			t.Errorf("the list does not show that the old secret is accepted until %q:\n%s", until, list.out)
		}
		if shown := execute(t, s.args("keys", "rotate", made.ID)...); !strings.Contains(shown.err, "no longer works") {
			t.Errorf("rotated without an overlap, it says %q", shown.err)
		}
		if list := execute(t, s.args("keys", "list")...); strings.Contains(list.out, until) {
			t.Errorf("the list shows an old secret that has ended:\n%s", list.out)
		}
		rotated := decode[operate.KeyLine](t, succeed(t, s.args("keys", "rotate", made.ID, "--json")...))
		if rotated.ID != made.ID || rotated.Key == made.Key || rotated.Name != "worker" || !slices.Equal(rotated.Agents, made.Agents) || rotated.PreviousExpiresAt == nil {
			t.Errorf("rotated to %+v", rotated)
		}
		listed := execute(t, s.args("keys", "list")...)
		for _, word := range []string{"ops@example.com", "intern, clerk, senior", "EXPIRES", "LAST USED", *made.ExpiresAt} {
			if !strings.Contains(listed.out, word) {
				t.Errorf("the list does not show %q:\n%s", word, listed.out)
			}
		}
		for _, bad := range []string{"8d", "-1s", "1500ms", "soon"} {
			refuse(t, cli.ExitInconclusive, "--overlap", s.args("keys", "rotate", made.ID, "--overlap="+bad)...)
		}
		succeed(t, s.args("keys", "revoke", made.ID)...)
		refuse(t, cli.ExitFailed, "make a new key", s.args("keys", "rotate", made.ID)...)
		refuse(t, cli.ExitInconclusive, "keys list", s.args("keys", "rotate", "00000000-0000-7000-8000-000000000000")...)
		refuse(t, cli.ExitInconclusive, "keys list", s.args("keys", "rotate", "nonsense")...)
	})
}

// A backup of a running SQLite server is a private file that can be restored and
// verified, and it overwrites nothing.
func TestBackup(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	receipt := admin.seal(t).ReceiptID
	restored := newSQLite(t)
	if err := os.MkdirAll(restored.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(restored.folder, "countersign.db")
	succeed(t, s.args("backup", copied)...)
	refuse(t, cli.ExitFailed, "already exists", s.args("backup", copied)...)
	refuse(t, cli.ExitInconclusive, "make it first", s.args("backup", filepath.Join(restored.folder, "missing", "copy.db"))...)
	info, err := os.Stat(copied)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v, %v", info, err)
	}
	succeed(t, restored.args("verify", receipt, "--keys", s.keyFile())...)
	refuse(t, cli.ExitInconclusive, "pg_dump", newPostgres(t, testdb.Postgres(t)).args("backup", copied+".2")...)
}

// The doctor passes a healthy store and names the check that fails.
func TestDoctor(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		server.admin(t).seal(t)
		healthy := execute(t, s.args("doctor", "--json")...)
		if healthy.code != 0 {
			t.Errorf("a healthy store fails: %s", healthy.out)
		}
		if out := execute(t, s.args("doctor")...).out; !strings.Contains(out, "✓ schema") || !strings.Contains(out, " checks passed") {
			t.Errorf("the list is %q", out)
		}
		server.stop(t)
		if err := os.Chmod(s.keyFile(), 0o640); err != nil {
			t.Fatal(err)
		}
		refuse(t, cli.ExitFailed, "✗ key file", s.args("doctor")...)
	})
}

// The doctor names the organizations in which an approval would escalate to nobody,
// says what to do, and passes the store all the same. It knows of the mail server by
// the flags that the server has.
func TestDoctorWarnsOfEscalationsThatReachNobody(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		smtp := filepath.Join(t.TempDir(), "smtp-url")
		if err := os.WriteFile(smtp, []byte("smtp://127.0.0.1:2525?from=countersign@example.com&starttls=off"), 0o600); err != nil {
			t.Fatal(err)
		}
		check := func(mark string, words []string, flags ...string) {
			t.Helper()
			out := succeed(t, s.args(append([]string{"doctor"}, flags...)...)...)
			for _, word := range append(words, mark+" escalation") {
				if !strings.Contains(out, word) {
					t.Errorf("the doctor does not say %q:\n%s", word, out)
				}
			}
		}
		check("!", []string{"in default nobody is notified when an approval escalates", "name fallback approvers", "--smtp-url-file", "1 warning"})
		server.admin(t).call(t, http.MethodPatch, "/v1/organization", `{"fallback_approvers":["ceo@example.com"]}`, new(json.RawMessage))
		check("!", []string{"no mail server to reach them by"})
		check("✓", []string{"somebody is notified in all of 1 organization"}, "--smtp-url-file", smtp)
		server.admin(t).call(t, http.MethodPost, "/v1/webhooks", `{"url":"https://hooks.example.com/x"}`, new(json.RawMessage))
		check("✓", nil)
	})
}

// Without a data folder the doctor says so once and still checks the rest.
func TestDoctorSaysOnceThatThereIsNothing(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	out := refuse(t, cli.ExitFailed, "1 failed", s.args("doctor")...).out
	if strings.Count(out, s.folder) != 1 || strings.Count(out, "there is no data folder") != 1 {
		t.Errorf("something is said more than once:\n%s", out)
	}
	if !strings.Contains(out, "✓ clock") {
		t.Errorf("the clock was not looked at:\n%s", out)
	}
}

// The doctor warns of a write-ahead log that has grown, and passes the store all the same.
func TestDoctorWarnsOfALargeLog(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	start(t, s.flags...).stop(t)
	if out := succeed(t, s.args("doctor")...); !strings.Contains(out, "✓ write-ahead log") {
		t.Errorf("the log is not looked at: %s", out)
	}
	log, err := os.Create(filepath.Join(s.folder, "countersign.db-wal"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(log.Truncate(100<<20), log.Close()); err != nil {
		t.Fatal(err)
	}
	if out := succeed(t, s.args("doctor")...); !strings.Contains(out, "! write-ahead log") || !strings.Contains(out, "it has 100 MB") {
		t.Errorf("the doctor does not warn: %s", out)
	}
}

// The doctor finds a folder that others can read and a damaged database, and says
// whether a server is running.
func TestDoctorFindsAnOpenFolderAndADamagedFile(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	for range 20 {
		server.admin(t).seal(t)
	}
	if out := succeed(t, s.args("doctor")...); !strings.Contains(out, "one is running on this folder") {
		t.Errorf("the server is not seen: %s", out)
	}
	server.stop(t)
	if out := succeed(t, s.args("doctor")...); !strings.Contains(out, "none is running on this folder") {
		t.Errorf("a stopped server is seen: %s", out)
	}
	if err := os.Chmod(s.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	refuse(t, cli.ExitFailed, "chmod 700", s.args("doctor")...)
	damage(t, s)
	refuse(t, cli.ExitFailed, "✗ database integrity", s.args("doctor")...)
}

// damage overwrites the pages of an index.
func damage(t *testing.T, s *testStore) {
	t.Helper()
	db, err := sql.Open(s.Driver, s.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var page, size int64
	row := db.QueryRowContext(t.Context(), `SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema WHERE tbl_name = 'receipts' ORDER BY rootpage DESC LIMIT 1`)
	if err := row.Scan(&page, &size); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(s.folder, "countersign.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(make([]byte, size), (page-1)*size); err != nil {
		t.Fatal(err)
	}
}

// The version names the program, the Go release and the platform.
func TestVersion(t *testing.T) {
	t.Parallel()
	out := succeed(t, "version")
	if !strings.HasPrefix(out, "countersign ") {
		t.Errorf("version says %q", out)
	}
	if same := succeed(t, "--version"); same != out {
		t.Errorf("--version says %q", same)
	}
	if info := decode[buildInfo](t, succeed(t, "version", "--json")); !strings.HasPrefix(info.Go, "go1") || !strings.Contains(info.Platform, "/") {
		t.Errorf("version says %+v", info)
	}
}
