package observe

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver is a collector that keeps what it is sent.
type receiver struct {
	mu    sync.Mutex
	paths []string
	spans []*trace.Span
	text  strings.Builder
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var sent collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(body, &sent) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths = append(r.paths, request.URL.Path)
	r.text.WriteString(sent.String())
	for _, resource := range sent.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
}

func startTraces(t *testing.T, endpoint string) *Traces {
	t.Helper()
	traces, err := StartTraces(t.Context(), endpoint, Build{Version: "v1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

// A span holds the route and the status of a request and nothing else of it.
func TestSpansTellTheRouteAndNothingElse(t *testing.T) {
	t.Parallel()
	received := &receiver{}
	server := httptest.NewServer(received)
	t.Cleanup(server.Close)
	traces := startTraces(t, server.URL)
	const pattern = "GET /v1/receipts/{receipt_id}/verify"
	var seen *http.Request
	handler := traces.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		w.WriteHeader(http.StatusTeapot)
	}), func(*http.Request) string { return pattern })

	request := httptest.NewRequest(http.MethodGet, "/v1/receipts/"+someID+"/verify?token=cvt_"+someText, strings.NewReader("payload"))
	request.Host = someText + ".example"
	request.Header.Set("Authorization", "Bearer csk_"+someText)
	request.Header.Set("User-Agent", someText)
	request.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	handler.ServeHTTP(httptest.NewRecorder(), request)
	if err := traces.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	if seen.URL.Path != request.URL.Path || seen.URL.RawQuery != request.URL.RawQuery || seen.Header.Get("Authorization") == "" || seen.Host != request.Host {
		t.Error("the handler does not see the request as it came")
	}
	if len(received.spans) != 1 || received.paths[0] != "/v1/traces" {
		t.Fatalf("%d spans arrived at %v", len(received.spans), received.paths)
	}
	if name := received.spans[0].Name; name != pattern {
		t.Errorf("the span is named %q", name)
	}
	if parent := received.spans[0].ParentSpanId; len(parent) == 0 {
		t.Error("the span is not a child of the caller's")
	}
	text := received.text.String()
	for _, secret := range []string{someID, someText, "payload", "/v1/receipts/0"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q was exported: %s", secret, text)
		}
	}
	for _, wanted := range []string{"418", "countersign"} {
		if !strings.Contains(text, wanted) {
			t.Errorf("%q was not exported: %s", wanted, text)
		}
	}
}

// Shutdown exports the last spans even if its context has ended.
func TestShutdownDoesNotNeedTheCallersContext(t *testing.T) {
	t.Parallel()
	received := &receiver{}
	server := httptest.NewServer(received)
	t.Cleanup(server.Close)
	traces := startTraces(t, server.URL+"/base")
	_, span := traces.provider.Tracer("test").Start(t.Context(), "one")
	span.End()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := traces.Shutdown(ended); err != nil {
		t.Fatal(err)
	}
	if len(received.spans) != 1 || received.paths[0] != "/base/v1/traces" {
		t.Errorf("%d spans arrived at %v", len(received.spans), received.paths)
	}
}

// A collector address without a scheme and a host is refused, and the error shows no
// password.
func TestEndpointMustBeAnAddress(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"localhost:4318", "ftp://host", "http://", "://", "http://user:word@ho st"} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			_, err := StartTraces(t.Context(), endpoint, Build{}, slog.New(slog.DiscardHandler))
			if err == nil || strings.Contains(err.Error(), "word") || !strings.Contains(err.Error(), "http://host:4318") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
