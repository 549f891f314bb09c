package worker

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// chore is done periodically, outside the queue. It is not queued because nothing is lost if it is
// skipped once.
type chore struct {
	name  string
	every time.Duration
	do    func(context.Context) error

	next    time.Time // when it is due; used only by the loop
	busy    atomic.Bool
	failing atomic.Bool // the last run failed and was logged
}

const (
	// countEvery is how often the queue is counted for the metrics.
	countEvery = 15 * time.Second
	// useEvery is how far the recorded last use of a token and last poll of a chain may lag. The
	// service relies on it: abandoned chains are sealed two such periods later.
	useEvery = 5 * time.Second
	// keyUseEvery is how far the recorded last use of an API key may lag, and the minimum time
	// between two writes.
	keyUseEvery = time.Minute
	// pollsEvery is how far the recorded last poll of an approval may lag on another replica, and
	// the minimum time between two writes.
	pollsEvery = 15 * time.Second
	// legacyEvery is how far the counters of legacy routes may lag.
	legacyEvery = 15 * time.Second
	// pastEvery is how often the ledgers are compared with what was acknowledged.
	pastEvery = 30 * time.Second
	// chainsEvery is how often open chains are compared with what was recorded about them.
	chainsEvery = time.Minute
	// findingsEvery is how often the findings of tampering are counted for the metrics.
	findingsEvery = 5 * time.Second
	// headsEvery is how often each organization's newest receipt is anchored.
	headsEvery = time.Hour
	// sweepEvery is how long a forged job may block a stream.
	sweepEvery = 5 * time.Minute
	// queueEvery is how soon the self-checks of a new organization's ledger start.
	queueEvery = time.Hour
	// overdueEvery is the pause between two checks of a ledger whose queued self-checks do not
	// finish.
	overdueEvery = time.Minute
)

func (w *Worker) newChores() []*chore {
	now := w.Clock()
	chores := []*chore{
		{name: "count the queue", every: countEvery, do: w.count, next: now},
		{name: "record the use of tokens", every: useEvery, do: w.Service.FlushTokenUse, next: now},
		{name: "record the polls of chains", every: useEvery, do: w.Service.FlushChainPolls, next: now},
		{name: "record the use of API keys", every: keyUseEvery, do: w.Service.FlushKeyUse, next: now.Add(keyUseEvery)},
		{name: "record the polls of approvals", every: pollsEvery, do: w.Service.FlushApprovalPolls, next: now.Add(pollsEvery)},
		{name: "record the use of legacy routes", every: legacyEvery, do: w.Service.FlushLegacyUse, next: now.Add(legacyEvery)},
		{name: "check for rolled back ledgers", every: pastEvery, do: w.checkRollbacks, next: now},
		{name: "check for rolled back chains", every: chainsEvery, do: w.proveChains, next: now},
		{name: "count the findings of tampering", every: findingsEvery, do: w.countFindings, next: now},
		// Each replica has its own time in the hour, so that usually only one of them finds a head
		// without an anchor.
		{name: "anchor the heads", every: headsEvery, do: w.Service.AnchorHeads, next: now.Add(time.Duration(w.Random() * float64(headsEvery)))},
		{name: "bury jobs that must not run", every: sweepEvery, do: w.jobs.Sweep, next: now.Add(sweepEvery)},
		{name: "queue lost deadlines", every: queueEvery, do: w.Service.QueueDeadlines, next: now},
		{name: "queue the self-checks of the ledgers", every: queueEvery, do: w.queueChecks, next: now},
		{name: "check overdue ledgers", every: overdueEvery, do: w.checkOverdue, next: now},
		{name: "queue the search for abandoned chains", every: queueEvery, do: w.Service.QueueAbandonment, next: now},
	}
	if w.submitter != nil {
		chores = append(chores, &chore{name: "submit checkpoints to witnesses", every: passEvery, do: w.submitter.pass, next: now})
	}
	return chores
}

// beginChores starts the chores that are due, except those that are still running.
func (w *Worker) beginChores() {
	now := w.Clock()
	for _, c := range w.chores {
		if now.Before(c.next) || !c.busy.CompareAndSwap(false, true) {
			continue
		}
		c.next = now.Add(c.every)
		w.running.Go(func() {
			defer c.busy.Store(false)
			w.doChore(c)
		})
	}
}

func (w *Worker) doChore(c *chore) {
	ctx, cancel := context.WithTimeout(w.working, jobTimeout)
	defer cancel()
	err := w.attemptChore(ctx, c)
	if w.working.Err() != nil {
		return
	}
	if err != nil && !c.failing.Load() {
		w.Log.Warn("a chore failed and will be retried: "+c.name, "reason", reason(err))
	}
	c.failing.Store(err != nil)
}

// attemptChore runs a chore. A panic must not end the server: the chore has then failed, like a
// job.
func (w *Worker) attemptChore(ctx context.Context, c *chore) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			w.Log.Error("a chore panicked", "chore", c.name, "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return c.do(ctx)
}

// count reports the length of the queue.
func (w *Worker) count(ctx context.Context) error {
	waiting, buried, err := w.jobs.Count(ctx)
	if err == nil {
		w.Meter.JobsCounted(waiting, buried)
	}
	return err
}

// checkRollbacks reports how many ledgers were rolled back.
func (w *Worker) checkRollbacks(ctx context.Context) error {
	found, err := w.Service.Rollbacks(ctx)
	if err == nil || len(found) > 0 { // even if other ledgers cannot be read
		w.Meter.RolledBack(len(found))
	}
	return err
}

// proveChains reports how many open chains are watched, and checks them.
func (w *Worker) proveChains(ctx context.Context) error {
	w.Meter.ChainsRemembered(w.Service.ChainsRemembered())
	return w.Service.ProveChains(ctx)
}

// countFindings reports how many findings of tampering nobody has acknowledged.
func (w *Worker) countFindings(ctx context.Context) error {
	open, err := w.Service.OpenFindings(ctx)
	if err == nil {
		w.Meter.TamperingOpen(open)
	}
	return err
}

// checkOverdue reports how long ago a ledger was last checked completely.
func (w *Worker) checkOverdue(ctx context.Context) error {
	age, err := w.Service.CheckOverdue(ctx, w.CheckEvery)
	if err == nil {
		w.Meter.LedgerCheckAge(age)
	}
	return err
}

func (w *Worker) queueChecks(ctx context.Context) error {
	return w.Service.QueueChecks(ctx, w.CheckEvery)
}
