package worker

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// chore is something that is done now and then, beside the queue. It is not queued
// because nothing is lost when it is left out once.
type chore struct {
	name  string
	every time.Duration
	do    func(context.Context) error

	next     time.Time // when it is due; only the loop looks
	underWay atomic.Bool
	failing  atomic.Bool // the last time failed, and the log says so
}

const (
	// countEvery is how often the queue is counted for the meter.
	countEvery = 15 * time.Second
	// useEvery is how far the last use of a token, and the last poll of a chain, may lag
	// behind. The service knows it: abandoned chains are sealed two such spans later.
	useEvery = 5 * time.Second
	// keyUseEvery is how far the last use of an API key may lag behind, and how often
	// it is written at most.
	keyUseEvery = time.Minute
	// pollsEvery is how far the last poll of an approval may lag behind on another
	// replica, and how often it is written at most.
	pollsEvery = 15 * time.Second
	// legacyEvery is how far the counters of legacy routes may lag behind.
	legacyEvery = 15 * time.Second
	// pastEvery is how often the ledgers are held against what was acknowledged.
	pastEvery = 30 * time.Second
	// chainsEvery is how often open chains are held against what is remembered of them.
	chainsEvery = time.Minute
	// findingsEvery is how often the findings of tampering are counted for the meter.
	findingsEvery = 5 * time.Second
	// headsEvery is how often each organization's newest receipt is anchored.
	headsEvery = time.Hour
	// sweepEvery is how long a job that somebody put into the queue may hold up a stream.
	sweepEvery = 5 * time.Minute
	// queueEvery is how soon the checks of a new organization's ledger begin.
	queueEvery = time.Hour
	// overdueEvery is the pause between two looks at a ledger whose queued looks do not end.
	overdueEvery = time.Minute
)

func (w *Worker) newChores() []*chore {
	now := w.Clock()
	chores := []*chore{
		{name: "count the queue", every: countEvery, do: w.count, next: now},
		{name: "write down the use of tokens", every: useEvery, do: w.Service.FlushTokenUse, next: now},
		{name: "write down the polls of chains", every: useEvery, do: w.Service.FlushChainPolls, next: now},
		{name: "write down the use of API keys", every: keyUseEvery, do: w.Service.FlushKeyUse, next: now.Add(keyUseEvery)},
		{name: "write down the polls of approvals", every: pollsEvery, do: w.Service.FlushApprovalPolls, next: now.Add(pollsEvery)},
		{name: "write down the use of legacy routes", every: legacyEvery, do: w.Service.FlushLegacyUse, next: now.Add(legacyEvery)},
		{name: "look for a ledger that was put back", every: pastEvery, do: w.lookBack, next: now},
		{name: "look for open chains that were put back", every: chainsEvery, do: w.proveChains, next: now},
		{name: "count the findings of tampering", every: findingsEvery, do: w.countFindings, next: now},
		// Each replica has a moment of its own in the hour, so that mostly one of
		// them finds a head that has no anchor yet.
		{name: "anchor the heads", every: headsEvery, do: w.Service.AnchorHeads, next: now.Add(time.Duration(w.Random() * float64(headsEvery)))},
		{name: "bury jobs that must not run", every: sweepEvery, do: w.jobs.Sweep, next: now.Add(sweepEvery)},
		{name: "queue deadlines that were lost", every: queueEvery, do: w.Service.QueueDeadlines, next: now},
		{name: "queue the checks of the ledgers", every: queueEvery, do: w.queueChecks, next: now},
		{name: "look over ledgers that were not", every: overdueEvery, do: w.lookOverdue, next: now},
		{name: "queue the search for abandoned chains", every: queueEvery, do: w.Service.QueueAbandonment, next: now},
	}
	if w.submitter != nil {
		chores = append(chores, &chore{name: "submit checkpoints to witnesses", every: passEvery, do: w.submitter.pass, next: now})
	}
	return chores
}

// beginChores starts what is due. One that is still under way is left out.
func (w *Worker) beginChores() {
	now := w.Clock()
	for _, c := range w.chores {
		if now.Before(c.next) || !c.underWay.CompareAndSwap(false, true) {
			continue
		}
		c.next = now.Add(c.every)
		w.running.Go(func() {
			defer c.underWay.Store(false)
			w.doChore(c)
		})
	}
}

func (w *Worker) doChore(c *chore) {
	ctx, cancel := context.WithTimeout(w.working, longestJob)
	defer cancel()
	err := w.attemptChore(ctx, c)
	if w.working.Err() != nil {
		return
	}
	if err != nil && !c.failing.Load() {
		w.Log.Warn("this could not be done and is tried again: "+c.name, "reason", reason(err))
	}
	c.failing.Store(err != nil)
}

// attemptChore does a chore. One that panics must not take the server with it: it has
// failed, as jobs do.
func (w *Worker) attemptChore(ctx context.Context, c *chore) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			w.Log.Error("a chore panicked", "chore", c.name, "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return c.do(ctx)
}

// count tells the meter how long the queue is.
func (w *Worker) count(ctx context.Context) error {
	waiting, buried, err := w.jobs.Count(ctx)
	if err == nil {
		w.Meter.JobsCounted(waiting, buried)
	}
	return err
}

// lookBack tells the meter whether a ledger has gone back in time.
func (w *Worker) lookBack(ctx context.Context) error {
	found, err := w.Service.Rollbacks(ctx)
	if err == nil {
		w.Meter.RolledBack(len(found))
	}
	return err
}

// proveChains tells the meter how many open chains are watched.
func (w *Worker) proveChains(ctx context.Context) error {
	w.Meter.ChainsRemembered(w.Service.ChainsRemembered())
	return w.Service.ProveChains(ctx)
}

// countFindings tells the meter how much tampering nobody has acknowledged.
func (w *Worker) countFindings(ctx context.Context) error {
	open, err := w.Service.OpenFindings(ctx)
	if err == nil {
		w.Meter.TamperingOpen(open)
	}
	return err
}

// lookOverdue tells the meter how long ago a ledger was looked over last.
func (w *Worker) lookOverdue(ctx context.Context) error {
	age, err := w.Service.LookOverdue(ctx, span(w.CheckEvery))
	if err == nil {
		w.Meter.LedgersLookedOver(time.Duration(age) * time.Millisecond)
	}
	return err
}

func (w *Worker) queueChecks(ctx context.Context) error {
	return w.Service.QueueChecks(ctx, span(w.CheckEvery))
}
