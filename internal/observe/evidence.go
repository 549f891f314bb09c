package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// evidence holds the metrics of anchors, witnesses, rollbacks, tampering and legacy routes.
type evidence struct {
	anchors    *prometheus.CounterVec
	rolledBack prometheus.Gauge
	legacy     *prometheus.CounterVec
	tampering  prometheus.Gauge
	submitted  *prometheus.CounterVec
	disagree   prometheus.Gauge
	chains     prometheus.Gauge
	dropped    prometheus.Gauge
	checkAge   prometheus.Gauge
}

func newEvidence() evidence {
	return evidence{
		anchors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_anchors_total", Help: "Steps of timestamp anchors, by method and resulting status.",
		}, []string{"method", "status"}),
		legacy: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_legacy_requests_total", Help: "Requests on routes that are kept only for compatibility, by the route's pattern.",
		}, []string{"route"}),
		rolledBack: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_ledger_rolled_back", Help: "Organizations whose ledger is older than what this server has acknowledged, or missing.",
		}),
		chains: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_chains_remembered", Help: "Open chains whose progress this process has recorded outside the database.",
		}),
		dropped: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_chains_not_remembered", Help: "Open chains whose recorded progress this process has dropped since its start, because there were too many.",
		}),
		tampering: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_tampering_open", Help: "Findings of tampering that no operator has acknowledged.",
		}),
		submitted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_witness_submissions_total", Help: "Checkpoints submitted to witnesses, by witness and result: cosigned, failed, refused or inconsistent.",
		}, []string{"witness", "result"}),
		disagree: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_witness_disagreements", Help: "Transparency logs for which a witness reports that it has cosigned another history.",
		}),
		checkAge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_ledger_check_age_seconds", Help: "Time since this process last completed a check of a ledger, or since its start; the maximum over all ledgers.",
		}),
	}
}

func (e *evidence) collectors() []prometheus.Collector {
	return []prometheus.Collector{e.anchors, e.rolledBack, e.legacy, e.tampering, e.checkAge, e.chains, e.dropped, e.submitted, e.disagree}
}

// AnchorMoved counts a step of an anchor by its resulting status.
func (e *evidence) AnchorMoved(method, standing string) {
	e.anchors.WithLabelValues(method, standing).Inc()
}

// RolledBack sets the number of organizations whose ledger was rolled back.
func (e *evidence) RolledBack(organizations int) { e.rolledBack.Set(float64(organizations)) }

// TamperingOpen sets the number of open findings of tampering.
func (e *evidence) TamperingOpen(findings int) { e.tampering.Set(float64(findings)) }

// Submitted counts a submission to a witness. The operator configures the names of witnesses.
func (e *evidence) Submitted(witness, result string) {
	e.submitted.WithLabelValues(witness, result).Inc()
}

// WitnessesDisagree sets the number of logs of which a witness has cosigned another history.
func (e *evidence) WitnessesDisagree(logs int) { e.disagree.Set(float64(logs)) }

// ChainsRemembered sets how many open chains have recorded progress, and how many were dropped.
func (e *evidence) ChainsRemembered(chains int, dropped int64) {
	e.chains.Set(float64(chains))
	e.dropped.Set(float64(dropped))
}

// LedgerCheckAge sets the age of the oldest completed check of a ledger.
func (e *evidence) LedgerCheckAge(age time.Duration) { e.checkAge.Set(age.Seconds()) }

// LegacyRequest counts a request on a route that can be removed when nobody uses it.
func (e *evidence) LegacyRequest(route string) { e.legacy.WithLabelValues(route).Inc() }
