package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"countersign/internal/nightly"
)

// However many requests of one key wait for a decision, and even if the server may open fewer
// files than there are requests, an admin gets in and can stop everything.
//
//countersign:norace its server is a process
func TestPollsLockNobodyOut(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := startFaulty(t, "--data", folder)
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("prlimit", "--nofile=512:512", os.Args[0], "serve", "--listen", "127.0.0.1:0", "--data", folder)
	command.Env = crashEnvironment()
	limited, err := launchCrashServer(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(limited.dispose)
	f.crashServer = limited
	admin := f.client()
	approval := admin.pay(t, `{"amount_usd":9000}`)
	var key struct {
		Key string `json:"key"`
	}
	admin.call(t, http.MethodPost, "/v1/api-keys", `{"name":"poller","role":"member"}`, &key)
	polls := nightly.Count(600, 3000)
	ended := make(chan string, polls)
	ctx, cancel := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	defer crowd.Wait()
	defer cancel()
	for range polls {
		c := f.client()
		c.key = key.Key
		crowd.Go(func() {
			defer c.http.CloseIdleConnections()
			status, body, err := c.send(ctx, http.MethodGet, "/v1/approvals/"+approval+"?wait=60", "")
			if err != nil {
				body = []byte(`{"code":"no answer"}`)
			}
			ended <- fmt.Sprint(status, " ", problemCode(body))
			<-ctx.Done() // with its connection, as long as the server keeps it
		})
	}
	admitted := func(when string) {
		began := time.Now()
		for _, path := range []string{"/v1/kill-switch/activate", "/v1/kill-switch/deactivate"} {
			c := f.client() // a connection of its own
			if status := c.status(t, http.MethodPost, path, `{"reason":"a test"}`); status != http.StatusOK {
				t.Errorf("%s %s: status %d", path, when, status)
			}
			c.http.CloseIdleConnections()
		}
		t.Logf("two requests of an admin %s the polls took %s", when, time.Since(began).Round(time.Millisecond))
	}
	admitted("amid")
	counts := make(map[string]int)
	for range polls - 200 { // the others wait
		select {
		case answer := <-ended:
			counts[answer]++
		case <-time.After(deadline):
			t.Fatalf("too many requests of one key wait; answers: %v", counts)
		}
	}
	admitted("beside")
	t.Logf("%d polls, answers: %v", polls, counts)
	if counts["429 rate_limited"] != polls-200 {
		t.Error("polls were answered otherwise than by a refusal")
	}
}
