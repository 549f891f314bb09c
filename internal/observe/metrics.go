package observe

import (
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Build identifies the running program.
type Build struct {
	Version, Revision, GoVersion string
}

// Metrics holds the metrics of a server in their own registry. It is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	batches  prometheus.Histogram
	commits  prometheus.Histogram
	queue    prometheus.Histogram
	sealed   prometheus.Counter
	governance
	evidence

	// series is copied on write, so that a request finds its counters without a lock and
	// without formatting labels.
	series atomic.Pointer[map[seriesKey]*requestSeries]
	adding sync.Mutex // held while series is replaced
}

type seriesKey struct {
	route  string
	status int
}

type requestSeries struct {
	count   prometheus.Counter
	latency prometheus.Observer
}

const (
	// maxSeries protects the memory of this server, and of the servers that scrape it, from a
	// caller that passes arbitrary routes.
	maxSeries  = 2000
	otherRoute = "other" // the route of requests beyond maxSeries
)

// NewMetrics returns the metrics of a server, registered.
func NewMetrics(build Build) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_http_requests_total", Help: "Requests answered, by the route's pattern and the status.",
		}, []string{"route", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "countersign_http_request_seconds", Help: "Time from a request's headers to its answer, by the route's pattern.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route"}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "countersign_commit_operations", Help: "Operations that shared one commit.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "countersign_commit_seconds", Help: "Duration of one transaction of the write path, until it is durable.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}),
		// A gauge would show what the last operation saw long after the queue is empty.
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "countersign_write_queue_depth", Help: "Operations waiting for the next commit, observed at each arrival, including the new one.",
			Buckets: []float64{1, 4, 16, 64, 256, 1024, 4096, 16384},
		}),
		sealed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countersign_receipts_sealed_total", Help: "Receipts sealed.",
		}),
		governance: newGovernance(),
		evidence:   newEvidence(),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "countersign_build_info", Help: "Always 1; the labels identify the running program.",
		ConstLabels: prometheus.Labels{"version": build.Version, "revision": build.Revision, "goversion": build.GoVersion},
	})
	info.Set(1)
	m.registry.MustRegister(m.requests, m.latency, m.batches, m.commits, m.queue, m.sealed, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(m.governance.collectors()...)
	m.registry.MustRegister(m.evidence.collectors()...)
	m.series.Store(&map[seriesKey]*requestSeries{})
	return m
}

// Request counts one answered request.
func (m *Metrics) Request(route string, status int, took time.Duration) {
	found, ok := (*m.series.Load())[seriesKey{route, status}]
	if !ok {
		found = m.addSeries(seriesKey{route, status})
	}
	found.count.Inc()
	found.latency.Observe(took.Seconds())
}

func (m *Metrics) addSeries(key seriesKey) *requestSeries {
	m.adding.Lock()
	defer m.adding.Unlock()
	known := *m.series.Load()
	if found, ok := known[key]; ok {
		return found
	}
	if len(known) >= maxSeries {
		return m.newSeries(otherRoute, key.status)
	}
	more := make(map[seriesKey]*requestSeries, len(known)+1)
	for k, v := range known {
		more[k] = v
	}
	more[key] = m.newSeries(key.route, key.status)
	m.series.Store(&more)
	return more[key]
}

func (m *Metrics) newSeries(route string, status int) *requestSeries {
	return &requestSeries{
		count:   m.requests.WithLabelValues(route, strconv.Itoa(status)),
		latency: m.latency.WithLabelValues(route),
	}
}

// Committed counts one transaction of the write path.
func (m *Metrics) Committed(operations int, took time.Duration) {
	m.batches.Observe(float64(operations))
	m.commits.Observe(took.Seconds())
}

// Queued observes the length of the queue each time an operation is added.
func (m *Metrics) Queued(operations int) { m.queue.Observe(float64(operations)) }

// Sealed counts sealed receipts.
func (m *Metrics) Sealed(receipts int) { m.sealed.Add(float64(receipts)) }

// Handler serves the metrics to Prometheus at /metrics.
func (m *Metrics) Handler(log *slog.Logger) http.Handler { return handler(m.registry, log) }

func handler(registry *prometheus.Registry, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 4,
	}))
	return mux
}
