package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/nightly"
)

// A server that has read many chains and falls quiet gives its memory back: 150 MB are left
// after 100,000 of them, and the run of each commit reads fewer.
//
//countersign:norace its server is a process
func TestIdleMemoryAfterReading(t *testing.T) {
	t.Parallel()
	f := startFaulty(t, "--data", t.TempDir())
	const clients = 8
	each := nightly.Count(100, 100_000/clients)
	var crowd sync.WaitGroup
	for range clients {
		c := f.client()
		crowd.Go(func() {
			defer c.http.CloseIdleConnections()
			var ids []string
			for range each {
				var chain struct{ ID string }
				c.call(t, http.MethodPost, "/v1/chains", fmt.Sprintf(`{"name":"n","metadata":{"note":%q}}`, strings.Repeat("x", 300)), &chain)
				ids = append(ids, chain.ID)
			}
			for _, id := range ids {
				c.call(t, http.MethodGet, "/v1/chains/"+id, "", &struct{}{})
			}
		})
	}
	crowd.Wait()
	const most = 150 << 20
	began, resident := time.Now(), f.resident(t)
	for ; resident > most; resident = f.resident(t) {
		if time.Since(began) > 4*quietTime {
			t.Fatalf("%d MB are resident %s after the last request, want at most %d", resident>>20, 4*quietTime, most>>20)
		}
		<-time.After(time.Second)
	}
	t.Logf("%d MB are resident after %s", resident>>20, time.Since(began).Round(time.Second))
}

// resident is how much of a server's memory is in use, in bytes.
func (s *crashServer) resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kilobytes, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	t.Fatal("the system does not say how much memory a process has")
	return 0
}
