package main

import (
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// A command line that is wrong gets exit status 2, what is expected, and the help
// page to read.
func TestUsage(t *testing.T) {
	t.Parallel()
	if out := succeed(t, "serve", "--help"); !strings.Contains(out, "$COUNTERSIGN_PUBLIC_RATE") {
		t.Errorf("help does not name the variables: %s", out)
	}
	refuse(t, cli.ExitFailed, "--listen", newSQLite(t).args("serve", "--listen", "256.0.0.1:1")...)
	for says, words := range map[string][]string{
		"unexpected argument fly; see countersign --help":                  {"fly"},
		"see countersign --help":                                           {},
		"see countersign serve --help":                                     {"serve", "--nonsense"},
		"see countersign keys create --help":                               {"keys", "create"},
		"--name needs a value; see countersign keys create --help":         {"keys", "create", "--role", "member", "--name", "--data", "x"},
		"see countersign keys --help":                                      {"keys", "fly"},
		"0 (no limit) or more; see countersign serve --help":               {"serve", "--public-rate=-1"},
		"--listen must have the form host:port, such as":                   {"serve", "--listen", "nonsense"},
		"port 0 picks a free one; see countersign serve --help":            {"serve", "--listen", "127.0.0.1:65536"},
		"--metrics-listen must have the form":                              {"serve", "--metrics-listen", "nonsense"},
		"postgres://user@host:5432/database; see countersign serve --help": {"serve", "--database", "foo"},
		"--database cannot be parsed":                                      {"audit", "--database", "postgres://host:port/name"},
		`there is no scenario "foo"; choose from events`:                   {"bench", "--scenario", "foo"},
		"rounds must be between 1 and":                                     {"bench", "--rounds", "0"},
		"the duration of a round must be":                                  {"bench", "--duration", "1ms"},
		"8-4-4-4-12; see countersign verify --help":                        {"verify", "not-an-id"},
		"digits and inner hyphens; see countersign orgs create --help":     {"orgs", "create", "Not A Slug"},
	} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			t.Parallel()
			refuse(t, cli.ExitInconclusive, says, words...)
		})
	}
}

// The help command says the same as the --help flag.
func TestHelpAsACommand(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{{}, {"keys"}, {"keys", "create"}, {"serve"}} {
		asked := succeed(t, append([]string{"help"}, words...)...)
		if flag := succeed(t, append(words, "--help")...); asked != flag || !strings.HasPrefix(asked, "Usage: countersign "+strings.Join(words, " ")) {
			t.Errorf("help %v says %q, and --help %q", words, asked, flag)
		}
	}
	refuse(t, cli.ExitInconclusive, "unexpected argument fly", "help", "fly")
	if out := succeed(t, "completion", "--help"); !strings.Contains(out, "\n    zsh:  source <(countersign completion zsh)\n") {
		t.Errorf("a line to copy is not one line:\n%s", out)
	}
}

// A sign-in link leads to where the server is said to be, or else to where it is. The
// environment is the process's, so this test runs alone.
func TestSignInLinksLeadToTheServer(t *testing.T) {
	s := newSQLite(t)
	succeed(t, s.args("orgs", "create", "acme")...)
	config := filepath.Join(t.TempDir(), "countersign.yaml")
	signIn := func(words ...string) string {
		return succeed(t, s.args(append([]string{"keys", "sign-in"}, words...)...)...)
	}
	check := func(name, link, base string) {
		t.Helper()
		if !strings.HasPrefix(link, base+"/sign-in#csl_") {
			t.Errorf("%s: the link is %s, want one to %s", name, link, base)
		}
	}
	check("nothing said", signIn(), "http://127.0.0.1:8080")
	check("every interface", signIn("--listen", "0.0.0.0:9000"), "http://localhost:9000")
	check("no host", signIn("--listen", ":9000", "--tls-cert", "cert.pem"), "https://localhost:9000")
	check("public", signIn("--listen", ":9000", "--public-url", "https://c.example/"), "https://c.example")
	writeFile(t, config, []byte("listen: '127.0.0.1:9001'\n"))
	check("the file", signIn("--config", config), "http://127.0.0.1:9001")
	writeFile(t, config, []byte("listen: '127.0.0.1:9001'\npublic-url: https://file.example\n"))
	check("the file's public address", signIn("--config", config), "https://file.example")
	refuse(t, cli.ExitInconclusive, "--url", s.args("keys", "sign-in", "--listen", "127.0.0.1:0")...)
	refuse(t, cli.ExitInconclusive, "--listen", s.args("keys", "sign-in", "--listen", "nonsense")...)
	t.Setenv("COUNTERSIGN_LISTEN", "127.0.0.1:9002")
	check("the environment", signIn(), "http://127.0.0.1:9002")
	t.Setenv("COUNTERSIGN_PUBLIC_URL", "https://variable.example")
	check("the environment's public address", signIn("--config", config), "https://variable.example")
	check("the flag", signIn("--url", "https://flag.example"), "https://flag.example")
}

// New master keys are announced with their path, on the start that makes them and on
// no other.
//
//countersign:race
func TestNewMasterKeysAreNamed(t *testing.T) {
	t.Parallel()
	const says = "new master keys were created"
	s := newSQLite(t)
	keys := filepath.Join(s.folder, "elsewhere", "keys.json")
	first := start(t, append(s.flags, "--keys", keys)...)
	if log := first.log.String(); !strings.Contains(log, says) || !strings.Contains(log, `"path":"`+keys+`"`) {
		t.Errorf("the log does not tell of the key file:\n%s", log)
	}
	first.stop(t)
	if log := start(t, append(s.flags, "--keys", keys)...).log.String(); strings.Contains(log, says) {
		t.Errorf("the second start tells of new keys:\n%s", log)
	}
	other := newSQLite(t)
	if r := execute(t, other.args("orgs", "create", "acme")...); !strings.Contains(r.err, other.keyFile()) {
		t.Errorf("orgs create does not tell of the key file: %s", r.err)
	}
}
