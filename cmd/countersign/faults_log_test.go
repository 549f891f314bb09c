package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/nightly"
	"countersign/internal/testdb"
)

// faultyServer is a real server on a folder, which a test does something to.
type faultyServer struct {
	*crashServer
	args []string
	key  string
}

// startFaulty makes a store and serves it. The server is gone when the test ends.
//
//countersign:host its server is a process of its own
func startFaulty(t *testing.T, args ...string) *faultyServer {
	t.Helper()
	first, err := startCrashServer(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	f := &faultyServer{args: args}
	if f.key, err = first.firstKey(); err != nil {
		t.Fatal(err)
	}
	f.start(t)
	return f
}

// start serves again after the process has ended.
func (f *faultyServer) start(t *testing.T) {
	t.Helper()
	server, err := startCrashServer(t.Context(), f.args...)
	if err != nil {
		t.Fatal(err)
	}
	f.crashServer = server
	t.Cleanup(server.dispose)
}

func (f *faultyServer) client() *client {
	return &client{base: f.address, key: f.key, http: &http.Client{Transport: &http.Transport{}, Timeout: deadline}}
}

// record opens a chain and records so many large events in it, from several clients. What
// fails is not sent again.
func (f *faultyServer) record(ctx context.Context, clients, events int) {
	var crowd sync.WaitGroup
	for range clients {
		c := f.client()
		crowd.Go(func() {
			defer c.http.CloseIdleConnections()
			_, body, err := c.send(ctx, http.MethodPost, "/v1/chains", `{"name":"growth"}`)
			_, id, found := strings.Cut(string(body), `"id":"`)
			if err != nil || !found || len(id) < 36 {
				return
			}
			event := fmt.Sprintf(`{"agent_name":"clerk","action_type":"tool_call","action_name":"look_up","payload":{"text":%q}}`, strings.Repeat("x", 2000))
			for range events {
				if _, _, err := c.send(ctx, http.MethodPost, "/v1/chains/"+id[:36]+"/events", event); err != nil {
					return
				}
			}
		})
	}
	crowd.Wait()
}

// A server that is killed again and again, each time before it would have come to move
// its log by itself, finds the log small at each start, and it never gets large.
//
//countersign:norace its servers are processes
func TestLogSurvivesCrashes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := startFaulty(t, "--data", folder)
	size := func() int64 {
		info, err := os.Stat(filepath.Join(folder, "countersign.db-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	const small, most = 1 << 20, 64 << 20
	largest := int64(0)
	for range nightly.Count(3, 60) {
		f.record(t.Context(), 4, nightly.Count(40, 1000))
		largest = max(largest, size())
		if err := f.kill(); err != nil {
			t.Fatal(err)
		}
		f.start(t)
		if left := size(); left > small {
			t.Errorf("after a start the log has %d bytes, of %d before the crash", left, largest)
		}
	}
	t.Logf("the log was at most %d kB", largest>>10)
	if largest < small || largest > most {
		t.Errorf("the log was at most %d bytes, want %d to %d", largest, small, most)
	}
}

// While something reads the database for long, as a backup of a large one does, the log grows by
// what is written meanwhile, and requests are answered. When the reader has finished, the log is
// truncated by the next writes.
//
//countersign:norace its server is a process
func TestLogShrinksAfterALongRead(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := startFaulty(t, "--data", folder)
	file := filepath.Join(folder, "countersign.db")
	size := func() int64 {
		info, err := os.Stat(file + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	const most = 64 << 20
	read := readForLong(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() { f.record(ctx, 8, 1_000_000) })
	defer load.Wait()
	defer cancel()
	c := f.client()
	chain := c.open(t)
	began, slowest := time.Now(), time.Duration(0)
	for largest := int64(0); largest <= most*int64(nightly.Count(5, 40))/4; largest = size() {
		sent := time.Now()
		c.call(t, http.MethodPost, "/v1/chains/"+chain+"/events", `{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":{}}`, &struct{}{})
		slowest = max(slowest, time.Since(sent))
		if time.Since(began) > 10*deadline {
			t.Fatalf("the log has %d MB", largest>>20)
		}
	}
	t.Logf("during the read the log grew to %d MB in %s, and a request took at most %s", size()>>20, time.Since(began).Round(time.Second), slowest.Round(time.Millisecond))
	read()
	ended := time.Now()
	for size() > most {
		if time.Since(ended) > deadline {
			t.Fatalf("the log has %d MB %s after the read", size()>>20, deadline)
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Logf("the log was truncated %s after the read", time.Since(ended).Round(100*time.Millisecond))
}

// readForLong reads a database until the returned function is called.
func readForLong(t *testing.T, file string) (end func()) {
	t.Helper()
	direct := testdb.SQLiteFile(file).Direct(t)
	tx, err := direct.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var chains int
	if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM chains").Scan(&chains); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(tx.Rollback(), direct.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
