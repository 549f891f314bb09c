package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/servicetest"
)

// What is wrong with a command line, a key, a service or a server is said at once, in one line, and with
// the exit status that other commands have for it.
//
//countersign:race
func TestGatewaysThatCannotStart(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	service := start(t, s.flags...)
	key := filepath.Join(t.TempDir(), "key")
	writeFile(t, key, []byte(s.agentKey(t)))
	unknown := filepath.Join(t.TempDir(), "key")
	writeFile(t, unknown, []byte(ledger.NewAPIKey([32]byte{1}).Reveal()))
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no command":        {[]string{"--key-file", key, "--"}, 2, "name the command that starts the MCP server after --"},
		"no key":            {[]string{"--key-file", key + "s", "--", "cat"}, 2, "no such file or directory; see countersign gateway --help"},
		"no key upstream":   {[]string{"--key-file", key + "s", "--upstream", "http://127.0.0.1:1"}, 2, "see countersign gateway --help"},
		"unknown command":   {[]string{"--key-file", key, "--", "no-such-command"}, 2, "cannot be started: no-such-command: executable file not found"},
		"no file":           {[]string{"--key-file", key, "--", "./no-such-file"}, 2, "cannot be started: ./no-such-file: no such file"},
		"agent of lines":    {[]string{"--key-file", key, "--agent", "a\nb", "--", "cat"}, 2, "--agent must be one line"},
		"server that fails": {[]string{"--key-file", key, "--", "sh", "-c", "exit 3"}, 1, "the MCP server has ended: exit status 3"},
		"server that ends":  {[]string{"--key-file", key, "--", "true"}, 1, "the MCP server has ended\n"},
		"flags of a server": {[]string{"--key-file", key, "sh", "-c", `test "$1" = --url && exit 4`, "sh", "--url"}, 1, "exit status 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, client := io.Pipe() // which stays open
			defer client.Close()
			var log servicetest.Buffer // the server writes to it as well
			code := run(t.Context(), append([]string{"gateway", "--url", service.address}, test.args...), in, io.Discard, &log)
			if said := log.String(); code != test.code || !strings.Contains(said, test.says) {
				t.Errorf("it ended with status %d and said\n%s", code, said)
			}
		})
	}
	for name, test := range map[string]struct{ url, key, says string }{
		"another service": {service.address + "/v1", key, "; check --url"},
		"no service":      {"http://127.0.0.1:1", key, "no call can be decided now: the server at http://127.0.0.1:1 cannot be reached"},
		"unknown key":     {service.address, unknown, "no call can be decided now: the API key is unknown or revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, client := io.Pipe()
			log := &noticingWriter{text: test.says, close: client}
			code := run(t.Context(), []string{"gateway", "--url", test.url, "--key-file", test.key, "--", "cat"}, in, io.Discard, log)
			if code != 0 {
				t.Errorf("it ended with status %d and said\n%s", code, log.all.String())
			}
		})
	}
}

// noticingWriter closes something when a text is written.
type noticingWriter struct {
	text  string
	close io.Closer
	all   servicetest.Buffer
}

func (w *noticingWriter) Write(b []byte) (int, error) {
	_, _ = w.all.Write(b)
	if strings.Contains(w.all.String(), w.text) {
		_ = w.close.Close()
	}
	return len(b), nil
}
