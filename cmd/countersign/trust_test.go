package main

import (
	"os"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// A database from before rows had authenticators is not served until the operator has
// taken it over, which can be done once: the key file remembers it, and a row that
// loses its authenticator later is not believed again.
func TestTrustExisting(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		succeed(t, s.args("orgs", "create", "acme")...)
		refuse(t, cli.ExitFailed, "were authenticated before", s.args("migrate", "--trust-existing")...)
		older := func() {
			t.Helper()
			file, err := os.ReadFile(s.keyFile())
			if err != nil {
				t.Fatal(err)
			}
			without := strings.Replace(string(file), `"sealed_rows": true`, `"sealed_rows": false`, 1)
			if without == string(file) {
				t.Fatalf("the key file does not say that rows are sealed: %s", strings.ReplaceAll(string(file), "secret", "…"))
			}
			if err := os.WriteFile(s.keyFile(), []byte(without), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		none := "update api_keys set mac = ''"
		if s.Driver == "sqlite" {
			none = "update api_keys set mac = x''"
		}
		older()
		s.exec(t, none)
		for _, words := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"orgs", "create", "other"}, {"keys", "create", "--role", "agent"}} {
			refuse(t, cli.ExitFailed, "migrate --trust-existing", s.args(words...)...)
		}
		if out := succeed(t, s.args("migrate", "--trust-existing")...); !strings.Contains(out, "authenticated 1 row as found") {
			t.Errorf("it says %q", out)
		}
		succeed(t, s.args("keys", "create", "--role", "agent")...)
		succeed(t, s.args("audit")...)
		s.exec(t, none)
		refuse(t, cli.ExitFailed, "were authenticated before", s.args("migrate", "--trust-existing")...)
		if out := succeed(t, s.args("keys", "list")...); strings.Count(out, "tampered") != 2 {
			t.Errorf("the keys are listed as %s", out)
		}
	})
}
