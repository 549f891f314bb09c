package observe

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// WitnessMetrics holds the metrics of a witness in their own registry.
type WitnessMetrics struct {
	registry *prometheus.Registry
	received *prometheus.CounterVec
}

// WitnessFigures is the state of a witness. Logs are identified by their number in witness list,
// because an origin contains the id of a log, which is confidential.
type WitnessFigures struct {
	Logs, Followed int
	Alarms         map[string]int        // number of logs, by the kind of alarm
	Ages           map[int]time.Duration // since a followed log's last new checkpoint, by log number
}

// NewWitnessMetrics returns the metrics of a witness, registered. results lists the possible
// results of a submission. Each scrape calls read.
func NewWitnessMetrics(results []string, read func() WitnessFigures) *WitnessMetrics {
	m := &WitnessMetrics{
		registry: prometheus.NewRegistry(),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_witness_received_total", Help: "Checkpoints that logs have submitted, by result.",
		}, []string{"result"}),
	}
	for _, result := range results {
		m.received.WithLabelValues(result) // start at 0, so that the first one is an increase
	}
	m.registry.MustRegister(m.received, &witnessCollector{read},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Received counts a submission.
func (m *WitnessMetrics) Received(result string) { m.received.WithLabelValues(result).Inc() }

// Handler serves the metrics to Prometheus at /metrics.
func (m *WitnessMetrics) Handler(log *slog.Logger) http.Handler { return handler(m.registry, log) }

var (
	witnessLogs = prometheus.NewDesc("countersign_witness_logs", "Logs that are registered with this witness.", nil, nil)

	witnessFollowed = prometheus.NewDesc("countersign_witness_followed_logs", "Addresses of logs that this witness follows.", nil, nil)

	witnessAlarms = prometheus.NewDesc("countersign_witness_alarms", "Logs with an alarm, by its kind.", []string{"alarm"}, nil)

	witnessAge = prometheus.NewDesc("countersign_witness_checkpoint_age_seconds",
		"Time since the last new checkpoint of a followed log was cosigned, by the log's number in witness list.", []string{"log"}, nil)
)

// witnessCollector reads the state of a witness at each scrape.
type witnessCollector struct{ read func() WitnessFigures }

// Describe implements prometheus.Collector.
func (*witnessCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{witnessLogs, witnessFollowed, witnessAlarms, witnessAge} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (c *witnessCollector) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(description *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
	}
	figures := c.read()
	gauge(witnessLogs, float64(figures.Logs))
	gauge(witnessFollowed, float64(figures.Followed))
	for kind, logs := range figures.Alarms {
		gauge(witnessAlarms, float64(logs), kind)
	}
	for log, age := range figures.Ages {
		gauge(witnessAge, age.Seconds(), strconv.Itoa(log))
	}
}
