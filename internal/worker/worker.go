// Package worker does, at least once, what was queued together with its cause:
// it moves approvals on when their time comes, turns notices into deliveries,
// delivers them by webhook and e-mail, anchors decisions and heads in time, and
// looks the ledgers over. Beside that it does what has to be done now and then, and
// submits the checkpoints of transparency logs to witnesses.
//
// Any number of workers, in one process or several, share a store: a job is
// leased to one of them at a time, and one that dies leaves its lease to run out.
package worker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/witness"
)

// Config is what a Worker stands on. Zero values of the optional members are
// replaced by the real thing.
type Config struct {
	Service  *service.Service
	Webhooks *notify.Webhooks
	Mailer   *notify.Mailer // nil: e-mail is not sent
	// Anchoring does the jobs of anchors, where the service queues any.
	Anchoring Anchoring
	// Witnesses are asked to cosign the checkpoints that the service signs; optional.
	Witnesses []*witness.Client
	Log       *slog.Logger
	Meter     Meter            // optional
	Clock     func() time.Time // the service's own; optional
	Random    func() float64   // in [0, 1), spreads attempts; optional
	// CheckEvery is how long a ledger is left alone once it was looked over; optional,
	// a day.
	CheckEvery time.Duration
	// Ticks say when to look for work that nobody announced: what another replica
	// queued, and what has become due. Optional, every second.
	Ticks <-chan time.Time
}

// Meter receives the figures of the queue. Kinds are those of the service.
type Meter interface {
	JobDone(kind string)
	JobRetried(kind string)
	JobBuried(kind string)
	JobsCounted(waiting, buried int64)
	// AnchorMoved hears that an anchor of a method has come to a new standing.
	AnchorMoved(method, standing string)
	// RolledBack hears of how many organizations the ledger is older than what
	// was acknowledged.
	RolledBack(organizations int)
	// ChainsRemembered hears how many open chains are remembered outside the database, and
	// how many were dropped from that since the start for want of room.
	ChainsRemembered(chains int, dropped int64)
	// TamperingOpen hears how many findings of tampering nobody has acknowledged.
	TamperingOpen(findings int)
	// Submitted hears what became of a submission to a witness.
	Submitted(witness, result string)
	// WitnessesDisagree hears of how many logs a witness has cosigned another history.
	WitnessesDisagree(logs int)
	// LedgersLookedOver hears how long ago this process last saw a look over a ledger come
	// to its end, of the ledger for which that is longest.
	LedgersLookedOver(age time.Duration)
}

const (
	tick = time.Second
	// longestJob bounds one job; it is longer than any delivery waits.
	longestJob = time.Minute
	// A job begins when it is leased, so the lease outlasts it by far.
	lease = 5 * time.Minute
	// checkEvery is how often each ledger is looked over, unless told otherwise.
	checkEvery = 24 * time.Hour
)

// places are how many jobs of each kind may be under way. A job is leased when
// there is a place for it, and never before: so what hangs in one kind, a receiver
// that does not answer, holds up nothing of the others.
var places = map[string]int{
	service.JobDeadline: 8, service.JobNotice: 8, service.JobKeyExpiry: 1, // wait for nobody but the store
	service.JobWebhook: 16, service.JobEmail: 5, service.JobAnchor: 4, service.JobCheck: 1, service.JobAbandon: 1,
}

// Worker runs jobs side by side, those of each kind in a lane of their own.
type Worker struct {
	Config
	jobs      *service.Jobs
	lanes     map[string]lane
	endpoints endpoints
	submitter *submitter // nil without witnesses

	finished chan struct{} // nudged when a place became free
	stopping chan struct{} // closed when nothing more is begun
	stop     func()
	working  context.Context // ends when what is under way is given up
	giveUp   context.CancelFunc
	running  sync.WaitGroup

	chores    []*chore
	unclaimed bool // the last claim failed, and the log says so
	noMailer  sync.Once
}

// lane has a place for each job of a kind that is under way.
type lane chan struct{}

// New makes a worker that does nothing until it is started.
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
	for kind, count := range places {
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

// Stop begins nothing more and lets what is under way finish until ctx ends.
// What is not done then is given back: it was not the receiver's fault.
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

// fill takes on as many jobs of each kind as there are places. Only the loop fills,
// so places that are free stay so until it does.
func (w *Worker) fill() {
	room := make(map[string]int)
	for kind, places := range w.lanes {
		if free := cap(places) - len(places); free > 0 {
			room[kind] = free
		}
	}
	for _, job := range w.claim(room) {
		places := w.lanes[job.Kind]
		places <- struct{}{}
		w.running.Go(func() {
			w.work(w.working, job)
			<-places
			w.nudge()
		})
	}
}

// claim is not cancelled by stopping: a lease that was taken and not heard of
// would hold its job up until it ran out.
func (w *Worker) claim(room map[string]int) []*service.Job {
	if len(room) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.working, longestJob)
	defer cancel()
	jobs, err := w.jobs.Claim(ctx, span(lease), room)
	if err != nil && !w.unclaimed && w.working.Err() == nil {
		w.Log.Warn("the queue cannot be read: notices and deadlines wait", "reason", reason(err))
	}
	w.unclaimed = err != nil
	return jobs
}

// RunOnce does what is due now, up to as many jobs as there are places, and waits
// for it. It returns how many there were; what follows from them is for the next
// call.
func (w *Worker) RunOnce(ctx context.Context) (done int, err error) {
	jobs, err := w.jobs.Claim(ctx, span(lease), places)
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

// WitnessDisagreements counts the logs of which a witness has cosigned another history.
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

func span(d time.Duration) ledger.Time { return ledger.Time(d.Milliseconds()) }

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

func (silentMeter) LedgersLookedOver(time.Duration) {}
