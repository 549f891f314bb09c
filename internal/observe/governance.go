package observe

import "github.com/prometheus/client_golang/prometheus"

// governance counts what is decided and what follows from it. Its labels are
// words of the service, never a caller's.
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
			Name: "countersign_decisions_total", Help: "Actions recorded, by what was decided.",
		}, []string{"decision"}),
		approvals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_approvals_total", Help: "Steps of approvals, by the status that each led to.",
		}, []string{"status"}),
		budgets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_budget_decisions_total",
			Help: "Actions recorded that were over a budget or could not be held against it, by the budget's scope, what it counts, and what it says.",
		}, []string{"scope", "measure", "decision"}),
		jobs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countersign_jobs_total", Help: "Attempts at queued work, by its kind and by what came of it: done, retried or buried.",
		}, []string{"kind", "result"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_jobs_waiting", Help: "Jobs in the store that are not done, those whose time has not come included.",
		}),
		buried: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countersign_jobs_buried", Help: "Jobs in the store that were given up.",
		}),
	}
}

func (g *governance) collectors() []prometheus.Collector {
	return []prometheus.Collector{g.decisions, g.approvals, g.budgets, g.jobs, g.waiting, g.buried}
}

// Decided counts an action by what was decided about it.
func (g *governance) Decided(decision string) { g.decisions.WithLabelValues(decision).Inc() }

// ApprovalMoved counts a step of an approval.
func (g *governance) ApprovalMoved(status string) { g.approvals.WithLabelValues(status).Inc() }

// OverBudget counts an action that was over a budget.
func (g *governance) OverBudget(scope, measure, decision string) {
	g.budgets.WithLabelValues(scope, measure, decision).Inc()
}

// JobDone counts a job that was done.
func (g *governance) JobDone(kind string) { g.jobs.WithLabelValues(kind, "done").Inc() }

// JobRetried counts an attempt that failed and is made again later.
func (g *governance) JobRetried(kind string) { g.jobs.WithLabelValues(kind, "retried").Inc() }

// JobBuried counts a job that was given up.
func (g *governance) JobBuried(kind string) { g.jobs.WithLabelValues(kind, "buried").Inc() }

// JobsCounted hears how long the queue is.
func (g *governance) JobsCounted(waiting, buried int64) {
	g.waiting.Set(float64(waiting))
	g.buried.Set(float64(buried))
}
