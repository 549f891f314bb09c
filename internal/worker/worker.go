// Package worker runs, at least once, the jobs that were queued together with their causes: it
// handles deadlines of approvals, turns notices into deliveries, delivers them by webhook and
// e-mail, shows approvals in Slack, anchors decisions and heads, and checks the ledgers. It also runs
// periodic chores, and submits the checkpoints of transparency logs to witnesses.
//
// Any number of workers, in one process or several, share a store. A job is leased to one of them
// at a time, and the lease of a worker that dies expires.
package worker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/witness"
)

// Config configures a Worker. Zero values of optional members are replaced by defaults.
type Config struct {
	Service  *service.Service
	Webhooks *notify.Webhooks
	Mailer   *notify.Mailer // nil: e-mail is not sent
	Slack    *notify.Slack  // nil: nothing is sent to Slack
	// Anchoring is used for anchor jobs, if the service queues any.
	Anchoring Anchoring
	// Witnesses are asked to cosign the checkpoints that the service signs. They are optional.
	Witnesses []*witness.Client
	Log       *slog.Logger
	Meter     Meter            // optional
	Clock     func() time.Time // the service's own; optional
	Random    func() float64   // in [0, 1), spreads retries; optional
	// CheckEvery is the time between two self-checks of a ledger. It is optional; the default is a
	// day.
	CheckEvery time.Duration
	// Ticks say when to look for jobs that nobody announced: those that another replica queued, and
	// those that have become due. They are optional; the default is every second.
	Ticks <-chan time.Time
}

// Meter receives the metrics of the worker. Kinds are those of the service.
type Meter interface {
	JobDone(kind string)
	JobRetried(kind string)
	JobBuried(kind string)
	JobsCounted(waiting, buried int64)
	// AnchorMoved is called when an anchor changes its standing.
	AnchorMoved(method, standing string)
	// RolledBack receives the number of organizations whose ledger is older than what was
	// acknowledged.
	RolledBack(organizations int)
	// ChainsRemembered receives how many open chains are recorded outside the database, and how
	// many were dropped since the start because the limit was reached.
	ChainsRemembered(chains int, dropped int64)
	// TamperingOpen receives the number of findings of tampering that nobody has acknowledged.
	TamperingOpen(findings int)
	// Submitted receives the result of a submission to a witness.
	Submitted(witness, result string)
	// WitnessesDisagree receives the number of logs of which a witness has cosigned another
	// history.
	WitnessesDisagree(logs int)
	// LedgerCheckAge receives how long ago this process last saw a self-check of a ledger
	// finish, for the ledger for which that is longest.
	LedgerCheckAge(age time.Duration)
}

const (
	tick = time.Second
	// jobTimeout bounds one job. It is longer than any delivery takes.
	jobTimeout = time.Minute
	// lease is much longer than jobTimeout. A job starts when it is leased.
	lease = 5 * time.Minute
	// checkEvery is the default of Config.CheckEvery.
	checkEvery = 24 * time.Hour
)

// concurrency is how many jobs of each kind may run at once. A job is leased only when it can
// start, so a hang in one kind, such as a receiver that does not answer, does not block the others.
var concurrency = map[string]int{
	service.JobDeadline: 8, service.JobNotice: 8, service.JobKeyExpiry: 1, // depend only on the store
	service.JobWebhook: 16, service.JobEmail: 5, service.JobSlack: 4, service.JobAnchor: 4, service.JobCheck: 1, service.JobAbandon: 1,
}

// Worker runs jobs concurrently, those of each kind in their own lane.
type Worker struct {
	Config
	jobs      *service.Jobs
	lanes     map[string]lane
	endpoints endpoints
	submitter *submitter // nil without witnesses

	finished chan struct{} // signalled when a job has finished
	stopping chan struct{} // closed when nothing more may start
	stop     func()
	working  context.Context // ends when running jobs are abandoned
	giveUp   context.CancelFunc
	running  sync.WaitGroup

	chores    []*chore
	unclaimed bool // the last claim failed and was logged
	noMailer  sync.Once
	noSlack   sync.Once
}

// lane has one slot for each running job of a kind.
type lane chan struct{}

// New returns a worker that does nothing until it is started.
func New(c Config) *Worker {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Meter == nil {
		c.Meter = silentMeter{}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.CheckEvery <= 0 {
		c.CheckEvery = checkEvery
	}
	w := &Worker{
		Config: c, jobs: c.Service.Jobs(), lanes: make(map[string]lane),
		finished: make(chan struct{}, 1), stopping: make(chan struct{}),
	}
	for kind, count := range concurrency {
		w.lanes[kind] = make(lane, count)
	}
	w.stop = sync.OnceFunc(func() { close(w.stopping) })
	w.working, w.giveUp = context.WithCancel(context.Background())
	if len(c.Witnesses) > 0 {
		w.submitter = newSubmitter(c.Service, c.Witnesses, w)
	}
	w.chores = w.newChores()
	return w
}

// Start runs jobs until Stop.
func (w *Worker) Start() {
	w.running.Go(func() {
		ticks := w.Ticks
		if ticks == nil {
			ticker := time.NewTicker(tick)
			defer ticker.Stop()
			ticks = ticker.C
		}
		w.loop(ticks)
	})
}

// Stop starts nothing more and lets running jobs finish until ctx ends. Jobs that are not done then
// are released, because it was not the receiver's fault.
func (w *Worker) Stop(ctx context.Context) {
	w.stop()
	if w.submitter != nil {
		w.submitter.stop()
	}
	done := make(chan struct{})
	go func() {
		w.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		w.giveUp()
		<-done
	}
	w.giveUp()
}

func (w *Worker) loop(ticks <-chan time.Time) {
	for {
		w.fill()
		w.beginChores()
		select {
		case <-w.stopping:
			return
		case <-w.Service.JobsAdded():
		case <-w.finished:
		case <-ticks:
		}
	}
}

// fill claims and starts as many jobs of each kind as there are free slots. Only the loop calls it,
// so free slots stay free until it does.
func (w *Worker) fill() {
	capacity := make(map[string]int)
	for kind, slots := range w.lanes {
		if free := cap(slots) - len(slots); free > 0 {
			capacity[kind] = free
		}
	}
	for _, job := range w.claim(capacity) {
		slots := w.lanes[job.Kind]
		slots <- struct{}{}
		w.running.Go(func() {
			w.work(w.working, job)
			<-slots
			w.nudge()
		})
	}
}

// claim is not cancelled by stopping: a lease that was taken but whose answer was lost would block
// its job until it expires.
func (w *Worker) claim(capacity map[string]int) []*service.Job {
	if len(capacity) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.working, jobTimeout)
	defer cancel()
	jobs, err := w.jobs.Claim(ctx, lease, capacity)
	if err != nil && !w.unclaimed && w.working.Err() == nil {
		w.Log.Warn("the queue cannot be read: notifications and deadlines are delayed", "reason", reason(err))
	}
	w.unclaimed = err != nil
	return jobs
}

// RunOnce runs the jobs that are due now, within the limits of each kind, and waits for them. It
// returns how many there were. Jobs that they queue are left for the next call.
func (w *Worker) RunOnce(ctx context.Context) (done int, err error) {
	jobs, err := w.jobs.Claim(ctx, lease, concurrency)
	if err != nil {
		return 0, err
	}
	var all sync.WaitGroup
	for _, job := range jobs {
		all.Go(func() { w.work(ctx, job) })
	}
	all.Wait()
	return len(jobs), nil
}

// WitnessDisagreements returns the number of logs of which a witness has cosigned another history.
func (w *Worker) WitnessDisagreements() int {
	if w.submitter == nil {
		return 0
	}
	return w.submitter.disagreements()
}

func (w *Worker) nudge() {
	select {
	case w.finished <- struct{}{}:
	default:
	}
}

type silentMeter struct{}

func (silentMeter) JobDone(string)              {}
func (silentMeter) JobRetried(string)           {}
func (silentMeter) JobBuried(string)            {}
func (silentMeter) JobsCounted(int64, int64)    {}
func (silentMeter) AnchorMoved(string, string)  {}
func (silentMeter) RolledBack(int)              {}
func (silentMeter) TamperingOpen(int)           {}
func (silentMeter) Submitted(string, string)    {}
func (silentMeter) WitnessesDisagree(int)       {}
func (silentMeter) ChainsRemembered(int, int64) {}

func (silentMeter) LedgerCheckAge(time.Duration) {}
