package worker

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/witness"
)

const (
	// passEvery is how often to look for logs that have grown.
	passEvery = time.Second
	// submitEvery is the minimum time between two submissions of a log to a witness.
	submitEvery = 10 * time.Second
	// submitTimeout bounds a submission, including a second try. It is shorter than submitEvery, so
	// that a log has one round at a time.
	submitTimeout = 8 * time.Second
	// gatherTime is how long a round keeps its slot, and how long a submission waits for a slot at
	// a witness. Slower answers are handled without the slot.
	gatherTime = 2 * time.Second
	// maxPause is the longest pause before retrying a witness that does not answer, or a log that
	// it refuses.
	maxPause = 10 * time.Minute
	// submitRounds is how many logs are submitted in parallel, and submitLanes how many of them to
	// one witness.
	submitRounds = 32
	submitLanes  = 8
	// maxLogs bounds for how many logs the witnesses' states are cached. For others, the store and
	// the witness know.
	maxLogs = 100_000
)

// Results of a submission, for the metrics.
const (
	submitCosigned     = "cosigned"
	submitFailed       = "failed"       // no answer, or an invalid one
	submitRefused      = "refused"      // the witness does not know the log, or not its key
	submitInconsistent = "inconsistent" // the witness has cosigned another history
)

// witnessedLogs is what a submitter needs from the service.
type witnessedLogs interface {
	GrownLogs(ctx context.Context) (grown []ledger.OrgID, signs bool, err error)
	LogToWitness(ctx context.Context, org ledger.OrgID) (*service.LogToWitness, error)
	ProveToWitness(ctx context.Context, log *service.LogToWitness, older int64) ([]tlog.Hash, error)
	AttachCosignatures(ctx context.Context, log *service.LogToWitness, cosignatures []byte) error
}

// submitter submits checkpoints to witnesses and stores their cosignatures. Nothing waits for it,
// and everything that it caches can be learned again: from the stored cosignatures, and from the
// witness, which says what it has cosigned.
type submitter struct {
	logs      witnessedLogs
	witnesses []*target
	clock     func() time.Time
	log       *slog.Logger
	meter     Meter

	stopped context.Context // ends when answers are no longer awaited
	stop    context.CancelFunc
	running *sync.WaitGroup
	rounds  chan struct{} // one slot per round

	mu    sync.Mutex // guards the map, its values, and the pauses of the witnesses
	byOrg map[ledger.OrgID]*submittedLog
}

// target is a witness.
type target struct {
	*witness.Client
	lanes chan struct{} // one slot per submission
	pause               // active while it does not answer
}

// pause counts consecutive failures, and says when to retry.
type pause struct {
	failures int
	until    time.Time
}

func (p *pause) over(now time.Time) bool { return p.failures == 0 || !now.Before(p.until) }

// longer doubles the pause.
func (p *pause) longer(now time.Time) {
	const doublings = 6 // to maxPause
	p.until = now.Add(min(submitEvery<<min(p.failures, doublings), maxPause))
	p.failures++
}

// submittedLog is what is known about an organization's log.
type submittedLog struct {
	origin  string
	size    int64 // of the newest checkpoint that was read
	grown   bool  // there may be a newer one
	running bool  // a round is under way
	next    time.Time
	states  []witnessState // by index of the witness
}

// startOver makes the next round read the log and ask the witnesses again.
func (l *submittedLog) startOver() { l.origin, l.grown = "", true }

// witnessState is the state of a witness for one log.
type witnessState struct {
	size      int64  // of what it has cosigned last; notAsked before it has told this process
	stored    int64  // size of the last stored cosignature, a guess at size
	refused   string // why it does not cosign, or ""
	disagrees bool   // it has cosigned another history
	pause
}

// notAsked is the size before a witness was asked. Each is asked once even about a log that has not
// grown, which reveals that a database was rolled back.
const notAsked = -1

func newSubmitter(logs witnessedLogs, witnesses []*witness.Client, w *Worker) *submitter {
	s := &submitter{
		logs: logs, clock: w.Clock, log: w.Log, meter: w.Meter, running: &w.running,
		rounds: make(chan struct{}, submitRounds), byOrg: make(map[ledger.OrgID]*submittedLog),
	}
	s.stopped, s.stop = context.WithCancel(w.working)
	for _, client := range witnesses {
		s.witnesses = append(s.witnesses, &target{Client: client, lanes: make(chan struct{}, submitLanes)})
	}
	return s
}

// pass starts a round for each log that is due.
func (s *submitter) pass(ctx context.Context) error {
	due, err := s.due(ctx)
	for i, org := range due {
		select {
		case s.rounds <- struct{}{}:
		case <-ctx.Done(): // the others remain due
			s.release(due[i:])
			return nil
		case <-s.stopped.Done():
			return nil
		}
		s.begin(func() { s.round(org) }) //nolint:contextcheck // a round outlives its pass
	}
	return err
}

// begin starts a goroutine that Worker.Stop waits for. A panic in it must not end the server.
func (s *submitter) begin(do func()) {
	s.running.Go(func() {
		defer func() {
			if fault := recover(); fault != nil {
				s.log.Error("a submission to witnesses panicked", "stack", string(debug.Stack()))
			}
		}()
		do()
	})
}

// due returns the logs that need a round and marks them as running.
func (s *submitter) due(ctx context.Context) (due []ledger.OrgID, err error) {
	grown, signs, err := s.logs.GrownLogs(ctx)
	if err != nil {
		return nil, err
	}
	now := s.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !signs { // another replica is the signer
		clear(s.byOrg)
		s.meter.WitnessesDisagree(0)
		return nil, nil
	}
	for _, org := range grown {
		if s.byOrg[org] == nil {
			s.evict()
			s.byOrg[org] = new(submittedLog)
		}
		s.byOrg[org].grown = true
	}
	for org, log := range s.byOrg {
		if !log.running && !now.Before(log.next) && (log.grown || len(s.behind(log, now)) > 0) {
			log.running = true
			due = append(due, org)
		}
	}
	s.meter.WitnessesDisagree(s.countDisagreements())
	return due, nil
}

// evict drops a log that needs no work if the limit is reached. The caller holds mu.
func (s *submitter) evict() {
	if len(s.byOrg) < maxLogs {
		return
	}
	for org, log := range s.byOrg {
		if !log.grown && !log.running {
			delete(s.byOrg, org)
			return
		}
	}
}

func (s *submitter) release(orgs []ledger.OrgID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, org := range orgs {
		if log := s.byOrg[org]; log != nil {
			log.running = false
		}
	}
}

// behind returns the witnesses that can now be asked to cosign the newest checkpoint. The caller
// holds mu.
func (s *submitter) behind(log *submittedLog, now time.Time) (witnesses []int) {
	for i := range log.states {
		if log.states[i].size != log.size && log.states[i].over(now) && s.witnesses[i].over(now) {
			witnesses = append(witnesses, i)
		}
	}
	return witnesses
}

// disagreements returns the number of logs of which a witness has cosigned another history.
func (s *submitter) disagreements() (logs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countDisagreements()
}

// countDisagreements is disagreements for callers that hold mu.
func (s *submitter) countDisagreements() (logs int) {
	for _, log := range s.byOrg {
		for i := range log.states {
			if log.states[i].disagrees {
				logs++
				break
			}
		}
	}
	return logs
}

// known returns the probable states of the witnesses according to the stored cosignatures. Lines of
// others are ignored; the witness itself then says what it has cosigned.
func (s *submitter) known(log *service.LogToWitness) []witnessState {
	states := make([]witnessState, len(s.witnesses))
	for i, w := range s.witnesses {
		states[i].size = notAsked
		if _, err := note.Open(log.Cosigned, note.VerifierList(w.Verifier)); err == nil {
			states[i].stored = log.CosignedSize
		}
	}
	return states
}
