package main

import (
	"path/filepath"
	"testing"

	"countersign/internal/cli"
)

// Every command that needs a database and its keys exits with 2 if one of them is missing, and says how to
// name it: a script must be able to tell that from a check that failed.
func TestMissingDatabaseOrKeys(t *testing.T) {
	t.Parallel()
	const id = "00000000-0000-7000-8000-000000000000"
	lines := filepath.Join(t.TempDir(), "lines")
	writeFile(t, lines, nil)
	withoutKeys := [][]string{{"orgs", "list"}, {"legacy-use"}, {"backup", filepath.Join(t.TempDir(), "copy.db")}}
	withKeys := [][]string{
		{"audit"}, {"verify", id}, {"reindex"}, {"rollback", "list"}, {"rollback", "accept"}, {"heads", "import", lines},
		{"keys", "create", "--role", "agent"}, {"keys", "list"}, {"keys", "revoke", id}, {"keys", "rotate", id}, {"keys", "sign-in"}, {"keys", "rotate-signing"},
		{"log", "vkey", "--org", "acme"}, {"tampering", "list"}, {"tampering", "acknowledge", "--all", "--reason", "none"}, {"import", "approvals", lines},
		{"signing-keys", "list"}, {"signing-keys", "confirm", id}, {"restore", "--in-place"},
	}
	keysAlone := [][]string{{"log", "keys"}, {"log", "revoke-key", "mk_aaaaaaaaaaaa"}, {"heads", "show"}, {"heads", "export"}}
	empty, locked := newSQLite(t), newSQLite(t)
	succeed(t, empty.args("orgs", "create", "acme")...)
	remove(t, filepath.Join(empty.folder, "countersign.db"))
	succeed(t, locked.args("orgs", "create", "acme")...)
	remove(t, locked.keyFile())
	for _, words := range append(withoutKeys, withKeys...) {
		refuse(t, cli.ExitInconclusive, "there is no database in", empty.args(words...)...)
	}
	for _, words := range append(withKeys, append(keysAlone, []string{"migrate", "--trust-existing"}, []string{"orgs", "create", "other"})...) {
		refuse(t, cli.ExitInconclusive, "--keys", locked.args(words...)...)
	}
	refuse(t, cli.ExitFailed, "--keys", locked.args("serve", "--listen", "127.0.0.1:0")...) // as any server that does not start
}
