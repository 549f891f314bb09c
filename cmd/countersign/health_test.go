package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// health exits with 0 where a server is ready, with 1 where it is not, says why, and does
// not take another program for one.
//
//countersign:race
func TestHealthCommand(t *testing.T) {
	t.Parallel()
	server := start(t, migratedSQLite(t).flags...)
	url := server.address
	if out := succeed(t, "health", "--url", url); out != "ready\n" {
		t.Errorf("a new server is %q", out)
	}
	if out := succeed(t, "health", "--json", "--url", url); !strings.HasPrefix(out, `{"status":`) {
		t.Errorf("the answer is %q", out)
	}
	server.stop(t)
	refuse(t, cli.ExitFailed, "cannot be reached", "health", "--url", url)
	refuse(t, cli.ExitInconclusive, "--url", "health", "--url", "nonsense")

	answer := func(status int, body string) string {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(other.Close)
		return other.URL
	}
	refuse(t, cli.ExitFailed, "not like a countersign server", "health", "--url", answer(http.StatusOK, "hello"))
	broken := answer(http.StatusServiceUnavailable, `{"status":"unavailable","checks":[{"name":"storage","status":"failed","detail":"the disk is full"}]}`)
	if got := execute(t, "health", "--url", broken); got.code != cli.ExitFailed || got.out != "unavailable\nfailed storage: the disk is full\n" {
		t.Errorf("a server that is not ready: %+v", got)
	}
}
