package observe

import "github.com/prometheus/client_golang/prometheus"

// governance holds the metrics of decisions, approvals, budgets and jobs. Label values are
// constants of the service, never text of a caller.
type governance struct {
	decisions *prometheus.CounterVec
	approvals *prometheus.CounterVec
	budgets   *prometheus.CounterVec
	jobs      *prometheus.CounterVec
	waiting   prometheus.Gauge
	buried    prometheus.Gauge
}

func newGovernance() governance {
	return governance{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_decisions_total", Help: "Actions recorded, by decision.",
		}, []string{"decision"}),
		approvals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_approvals_total", Help: "Steps of approvals, by resulting status.",
		}, []string{"status"}),
		budgets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_budget_decisions_total",
			Help: "Actions recorded that exceeded a budget or could not be checked against it, by the budget's scope, measure and decision.",
		}, []string{"scope", "measure", "decision"}),
		jobs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_jobs_total", Help: "Attempts at jobs, by kind and result: done, retried or buried.",
		}, []string{"kind", "result"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_jobs_waiting", Help: "Jobs in the store that are not done, including those that are not due yet.",
		}),
		buried: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_jobs_buried", Help: "Jobs in the store that were given up.",
		}),
	}
}

func (g *governance) collectors() []prometheus.Collector {
	return []prometheus.Collector{g.decisions, g.approvals, g.budgets, g.jobs, g.waiting, g.buried}
}

// Decided counts a recorded action by its decision.
func (g *governance) Decided(decision string) { g.decisions.WithLabelValues(decision).Inc() }

// ApprovalMoved counts a step of an approval.
func (g *governance) ApprovalMoved(status string) { g.approvals.WithLabelValues(status).Inc() }

// OverBudget counts an action that exceeded a budget.
func (g *governance) OverBudget(scope, measure, decision string) {
	g.budgets.WithLabelValues(scope, measure, decision).Inc()
}

// JobDone counts a job that was done.
func (g *governance) JobDone(kind string) { g.jobs.WithLabelValues(kind, "done").Inc() }

// JobRetried counts a failed attempt that is retried later.
func (g *governance) JobRetried(kind string) { g.jobs.WithLabelValues(kind, "retried").Inc() }

// JobBuried counts a job that was given up.
func (g *governance) JobBuried(kind string) { g.jobs.WithLabelValues(kind, "buried").Inc() }

// JobsCounted sets the number of waiting and buried jobs.
func (g *governance) JobsCounted(waiting, buried int64) {
	g.waiting.Set(float64(waiting))
	g.buried.Set(float64(buried))
}
