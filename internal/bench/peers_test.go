package bench_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"countersign/internal/bench"
)

// standIns are this test's program under another name: it then serves as little of
// that peer's protocol as the bench uses.
var standIns = map[string]func(arguments []string) error{
	"opa@v0-test":    serveOPA,
	"immudb@v0-test": serveImmudb,
}

func argument(arguments []string, name string) string {
	at := slices.Index(arguments, name)
	if at < 0 || at+1 == len(arguments) {
		return ""
	}
	return arguments[at+1]
}

func serveOPA(arguments []string) error {
	policy, err := os.ReadFile(arguments[len(arguments)-1])
	if err != nil || !strings.Contains(string(policy), "package bench") {
		return fmt.Errorf("no policy: %w", err)
	}
	return serveStandIn(argument(arguments, "--addr"), func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Input struct {
				Action string `json:"action_name"`
			} `json:"input"`
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Input.Action == "" || r.URL.Path != "/v1/data/bench/decision" {
			http.Error(w, "no input", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, `{"result":"allow"}`)
	})
}

// serveImmudb answers every call with the same message, whose first field is a
// session's id.
func serveImmudb(arguments []string) error {
	address := argument(arguments, "--address") + ":" + argument(arguments, "--port")
	return serveStandIn(address, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/grpc")
		_, _ = io.WriteString(w, "\x00\x00\x00\x00\x03\x0a\x01s")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})
}

func serveStandIn(address string, handler http.HandlerFunc) error {
	server := &http.Server{Addr: address, Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server.ListenAndServe()
}

// The peers are measured in the same rounds as the bare server and the service, and
// the service is compared with each. One that is not there is left out, and the report
// says so.
func TestRunMeasuresPeers(t *testing.T) {
	t.Parallel()
	measurePeers(t, []string{"opa@v0-test", "immudb@v0-test"}, []string{"OPA, decisions", "immudb, Set"})
	notes := measurePeers(t, []string{"opa@v0-test"}, []string{"OPA, decisions"})
	if !strings.Contains(notes, "immudb, Set not measured: there is no immudb@VERSION") {
		t.Errorf("the notes do not say what is missing: %s", notes)
	}
}

func measurePeers(t *testing.T, programs, want []string) (notes string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config := smallConfig(t, theBinary(t))
	config.Scenarios, config.Peers = []string{"peers"}, t.TempDir()
	for _, name := range programs {
		if err := os.Symlink(self, filepath.Join(config.Peers, name)); err != nil {
			t.Fatal(err)
		}
	}
	report, err := bench.Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, row := range report.Scenarios[0].Rows {
		targets = append(targets, row.Target)
		if row.Rate <= 0 || row.P50 <= 0 || len(row.Rounds) != 1 {
			t.Errorf("%s: nothing was measured: %+v", row.Target, row)
		}
	}
	if want := append([]string{"bare net/http", "SQLite"}, want...); !slices.Equal(targets, want) {
		t.Errorf("measured %q, want %q", targets, want)
	}
	bars := report.Scenarios[0].Bars
	if len(bars) != len(want) || slices.ContainsFunc(bars, func(bar bench.Bar) bool { return bar.Got <= 0 }) {
		t.Errorf("got %+v, want a comparison with each peer", bars)
	}
	requireEmpty(t, config.Dir)
	return strings.Join(report.Scenarios[0].Notes, "\n")
}

// A run with a folder that lacks the peers fails, and says how to build them.
func TestRunWithoutPeersPrograms(t *testing.T) {
	t.Parallel()
	config := smallConfig(t, "unused")
	config.Scenarios, config.Peers = []string{"peers"}, t.TempDir()
	if _, err := bench.Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), "scripts/bench-peers builds them") {
		t.Errorf("got %v, want an error that names the script", err)
	}
	requireEmpty(t, config.Dir)
}

// runStandIn serves as a peer if the program was started under its name. It returns
// only when it cannot.
func runStandIn() (served bool, err error) {
	serve, ok := standIns[filepath.Base(os.Args[0])]
	if !ok {
		return false, nil
	}
	return true, serve(os.Args[1:])
}
