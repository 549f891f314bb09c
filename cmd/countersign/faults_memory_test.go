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
	const most = memoryFactor * 150 << 20
	began, resident := time.Now(), f.resident(t)
	for ; resident > most; resident = f.resident(t) {
		if time.Since(began) > 4*quietTime {
			t.Fatalf("%d MB are resident %s after the last request, want at most %d", resident>>20, 4*quietTime, most>>20)
		}
		<-time.After(time.Second)
	}
	t.Logf("%d MB are resident after %s", resident>>20, time.Since(began).Round(time.Second))
}

// Many bodies of 1 MiB that arrive at once, from several organizations and of the kind that takes
// the most memory when it is parsed, leave a server below 300 MB. The run of each commit sends
// fewer of them.
//
//countersign:norace its server is a process
func TestMemoryOfLargeBodies(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := startFaulty(t, "--data", folder)
	keys := []string{f.key}
	for _, slug := range []string{"second", "third", "fourth"} {
		keys = append(keys, keyPattern.FindString(succeed(t, "orgs", "create", slug, "--data", folder)))
	}
	const size, most = 1 << 20, memoryFactor * 300 << 20
	begin, end := `{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":{"numbers":[0`, `]}}`
	body := begin + strings.Repeat(",0", (size-len(begin)-len(end))/2) + end
	small := f.memory(t, "VmHWM:")
	var crowd sync.WaitGroup
	answers := make(chan int, 60)
	for i := range nightly.Count(12, 60) {
		c := f.client()
		c.key = keys[i%len(keys)]
		id := c.open(t)
		crowd.Go(func() {
			defer c.http.CloseIdleConnections()
			status, _, err := c.send(t.Context(), http.MethodPost, "/v1/chains/"+id+"/events", body)
			if err != nil {
				t.Error(err)
			}
			answers <- status
		})
	}
	crowd.Wait()
	close(answers)
	counts := make(map[int]int)
	for status := range answers {
		counts[status]++
	}
	largest := f.memory(t, "VmHWM:")
	t.Logf("at most %d MB were resident, %d MB before the bodies; answers by status: %v", largest>>20, small>>20, counts)
	if largest > most {
		t.Errorf("%d MB were resident, want at most %d", largest>>20, most>>20)
	}
	if counts[http.StatusInternalServerError] > 0 || counts[http.StatusCreated]+counts[http.StatusOK] == 0 {
		t.Errorf("answers by status: %v", counts)
	}
}

// resident is how much of a server's memory is in use, in bytes.
func (s *crashServer) resident(t *testing.T) int {
	t.Helper()
	return s.memory(t, "VmRSS:")
}

// memory is a line of what the system says about a server's memory, in bytes.
func (s *crashServer) memory(t *testing.T, line string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(status)) {
		if fields := strings.Fields(text); len(fields) > 1 && fields[0] == line {
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
