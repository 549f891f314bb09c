package observe

import "github.com/prometheus/client_golang/prometheus"

// evidence counts what proves the records to others, and whether they are still
// those that were given out.
type evidence struct {
	anchors    *prometheus.CounterVec
	rolledBack prometheus.Gauge
}

func newEvidence() evidence {
	return evidence{
		anchors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_anchors_total", Help: "Steps of timestamp anchors, by the method and by the status that each led to.",
		}, []string{"method", "status"}),
		rolledBack: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_ledger_rolled_back", Help: "Organizations whose ledger is older than the receipts that this server has given out.",
		}),
	}
}

func (e *evidence) collectors() []prometheus.Collector {
	return []prometheus.Collector{e.anchors, e.rolledBack}
}

// AnchorMoved counts an anchor that has come to a new standing.
func (e *evidence) AnchorMoved(method, standing string) {
	e.anchors.WithLabelValues(method, standing).Inc()
}

// RolledBack hears of how many organizations the ledger was put back.
func (e *evidence) RolledBack(organizations int) { e.rolledBack.Set(float64(organizations)) }
