package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// A server that switches protocols and then says nothing keeps no command waiting.
//
//countersign:race
func TestServerThatSwitchesProtocols(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: silence\r\n\r\n")
		_ = buffered.Flush()
		<-ended
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	refuse(t, cli.ExitFailed, "not like a countersign server", "health", "--url", server.URL, "--timeout", "1m")
	client := cli.NewClient(server.URL, ledger.Secret{})
	if err := client.Call(t.Context(), http.MethodGet, "/v1/kill-switch", nil, &struct{}{}); err == nil || !strings.Contains(err.Error(), "not like a countersign server") {
		t.Errorf("the error is %v", err)
	}
}
