package observe

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if answer.Code != http.StatusOK {
		t.Fatalf("status %d", answer.Code)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// Every event that is reported is counted under its documented metric.
func TestMetrics(t *testing.T) {
	t.Parallel()
	m := NewMetrics(Build{Version: "v1.2.3", Revision: "abc", GoVersion: "go1"})
	m.Request("/v1/chains", 201, 3*time.Millisecond)
	m.Request("/v1/chains", 201, 3*time.Millisecond)
	m.Request("/v1/chains", 422, time.Millisecond)
	m.Committed(7, 2*time.Millisecond)
	m.Queued(3)
	m.Sealed(2)
	m.Decided("deny")
	m.ApprovalMoved("approved")
	m.JobDone("webhook")
	m.JobRetried("webhook")
	m.JobBuried("email")
	m.JobsCounted(5, 2)
	m.AnchorMoved("tsa", "verified")
	m.RolledBack(1)
	m.ChainsRemembered(3, 2)
	m.LegacyRequest("GET /old")
	text := scrape(t, m)
	for _, line := range []string{
		"countersign_chains_remembered 3",
		"countersign_chains_not_remembered 2",
		`countersign_http_requests_total{route="/v1/chains",status="201"} 2`,
		`countersign_http_requests_total{route="/v1/chains",status="422"} 1`,
		`countersign_http_request_seconds_count{route="/v1/chains"} 3`,
		`countersign_commit_operations_sum 7`,
		`countersign_commit_seconds_count 1`,
		`countersign_write_queue_depth_sum 3`,
		`countersign_receipts_sealed_total 2`,
		`countersign_decisions_total{decision="deny"} 1`,
		`countersign_approvals_total{status="approved"} 1`,
		`countersign_jobs_total{kind="webhook",result="done"} 1`,
		`countersign_jobs_total{kind="webhook",result="retried"} 1`,
		`countersign_jobs_total{kind="email",result="buried"} 1`,
		`countersign_jobs_waiting 5`,
		`countersign_jobs_buried 2`,
		`countersign_anchors_total{method="tsa",status="verified"} 1`,
		`countersign_ledger_rolled_back 1`,
		`countersign_legacy_requests_total{route="GET /old"} 1`,
		`countersign_build_info{goversion="go1",revision="abc",version="v1.2.3"} 1`,
		`go_goroutines`,
		`process_resident_memory_bytes`,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("no line begins with %q", line)
		}
	}
}

// Requests that end at the same time are all counted.
//
//countersign:race
func TestConcurrentRequestsAreAllCounted(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 200
	m := NewMetrics(Build{})
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for i := range each {
				m.Request("/route", 200+i%4, time.Millisecond)
			}
		})
	}
	running.Wait()
	text := scrape(t, m)
	for status := 200; status < 204; status++ {
		want := "countersign_http_requests_total{route=\"/route\",status=\"" + strconv.Itoa(status) + "\"} " + strconv.Itoa(workers*each/4)
		if !strings.Contains(text, want) {
			t.Errorf("no line %s", want)
		}
	}
}

// Routes beyond a limit are counted together.
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMetrics(Build{})
	for i := range maxSeries + 10 {
		m.Request("/route/"+strconv.Itoa(i), 200, time.Millisecond)
	}
	if text := scrape(t, m); !strings.Contains(text, `countersign_http_requests_total{route="other",status="200"} 10`) {
		t.Error("routes beyond the bound are not counted together")
	}
}

func BenchmarkRequest(b *testing.B) {
	m := NewMetrics(Build{})
	for b.Loop() {
		m.Request("/v1/chains/{chain_id}/events", 200, time.Millisecond)
	}
}
