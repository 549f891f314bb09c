package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// evidence counts what proves the records to others, and whether they are still
// those that were given out.
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
			Name: "countersign_anchors_total", Help: "Steps of timestamp anchors, by the method and by the status that each led to.",
		}, []string{"method", "status"}),
		legacy: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_legacy_requests_total", Help: "Requests on routes that are kept for compatibility alone, by the route's pattern.",
		}, []string{"route"}),
		rolledBack: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_ledger_rolled_back", Help: "Organizations whose ledger is older than the receipts that this server has given out, or gone altogether.",
		}),
		chains: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_chains_remembered", Help: "Open chains of which this process remembers outside the database how far they have come.",
		}),
		dropped: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_chains_not_remembered", Help: "Open chains that this process has ceased to remember since its start, because there were too many.",
		}),
		tampering: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_tampering_open", Help: "Findings of tampering that no operator has acknowledged.",
		}),
		submitted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_witness_submissions_total", Help: "Checkpoints submitted to witnesses, by the witness and by what came of it: cosigned, failed, refused or inconsistent.",
		}, []string{"witness", "result"}),
		disagree: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_witness_disagreements", Help: "Transparency logs of which a witness says that it has cosigned another history.",
		}),
		checkAge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_ledger_check_age_seconds", Help: "Time since this process last saw a look over a ledger come to its end, or since its start, of the ledger for which that is longest.",
		}),
	}
}

func (e *evidence) collectors() []prometheus.Collector {
	return []prometheus.Collector{e.anchors, e.rolledBack, e.legacy, e.tampering, e.checkAge, e.chains, e.dropped, e.submitted, e.disagree}
}

// AnchorMoved counts an anchor that has come to a new standing.
func (e *evidence) AnchorMoved(method, standing string) {
	e.anchors.WithLabelValues(method, standing).Inc()
}

// RolledBack hears of how many organizations the ledger was put back.
func (e *evidence) RolledBack(organizations int) { e.rolledBack.Set(float64(organizations)) }

// TamperingOpen hears how many findings of tampering are open.
func (e *evidence) TamperingOpen(findings int) { e.tampering.Set(float64(findings)) }

// Submitted counts a submission to a witness. The operator names the witnesses.
func (e *evidence) Submitted(witness, result string) {
	e.submitted.WithLabelValues(witness, result).Inc()
}

// WitnessesDisagree hears of how many logs a witness has cosigned another history.
func (e *evidence) WitnessesDisagree(logs int) { e.disagree.Set(float64(logs)) }

// ChainsRemembered hears how many open chains are remembered, and how many were dropped.
func (e *evidence) ChainsRemembered(chains int, dropped int64) {
	e.chains.Set(float64(chains))
	e.dropped.Set(float64(dropped))
}

// LedgersLookedOver hears the largest age of a last look over a ledger.
func (e *evidence) LedgersLookedOver(age time.Duration) { e.checkAge.Set(age.Seconds()) }

// LegacyRequest counts a request on a route that can go when nobody uses it.
func (e *evidence) LegacyRequest(route string) { e.legacy.WithLabelValues(route).Inc() }
