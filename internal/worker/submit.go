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
	// passEvery is how often logs are looked for that have grown.
	passEvery = time.Second
	// submitEvery is how often a log is submitted to a witness at most.
	submitEvery = 10 * time.Second
	// submitTimeout bounds a submission, also one that has to be made twice. It is shorter
	// than submitEvery, so that a log has one round at a time.
	submitTimeout = 8 * time.Second
	// gatherTime is how long a round holds its place and waits for one at a witness. What
	// takes longer goes on without it.
	gatherTime = 2 * time.Second
	// longestPause is the longest that a witness is left alone which does not answer, or
	// a log which it refuses.
	longestPause = 10 * time.Minute
	// submitRounds is how many logs are submitted side by side, and submitLanes how many of
	// them to one witness.
	submitRounds = 32
	submitLanes  = 8
	// mostLogs is of how many logs it is remembered which witness has cosigned what. Of
	// others the store and the witness know.
	mostLogs = 100_000
)

// What becomes of a submission, for the meter.
const (
	submitCosigned     = "cosigned"
	submitFailed       = "failed"       // no answer, or one that makes no sense
	submitRefused      = "refused"      // the witness does not know the log, or not its key
	submitInconsistent = "inconsistent" // the witness has cosigned another history
)

// witnessedLogs is what a submitter needs of the service.
type witnessedLogs interface {
	GrownLogs(ctx context.Context) (grown []ledger.OrgID, signs bool, err error)
	LogToWitness(ctx context.Context, org ledger.OrgID) (*service.LogToWitness, error)
	ProveToWitness(ctx context.Context, log *service.LogToWitness, older int64) ([]tlog.Hash, error)
	AttachCosignatures(ctx context.Context, log *service.LogToWitness, cosignatures []byte) error
}

// submitter submits checkpoints to witnesses and keeps their cosignatures. Nobody waits
// for it, and all that it remembers can be learned again: from the cosignatures that are
// stored, and from the witness, which says what it has cosigned.
type submitter struct {
	logs      witnessedLogs
	witnesses []*target
	clock     func() time.Time
	log       *slog.Logger
	meter     Meter

	stopped context.Context // ends when no answer is waited for any more
	stop    context.CancelFunc
	running *sync.WaitGroup
	rounds  chan struct{} // a place for each round

	mu sync.Mutex // guards what follows, and what it leads to
	of map[ledger.OrgID]*submittedLog
}

// target is a witness.
type target struct {
	*witness.Client
	lanes chan struct{} // a place for each submission
	pause               // while it does not answer
}

// pause is how often something has failed in succession, and until when it is left alone.
type pause struct {
	failures int
	until    time.Time
}

func (p *pause) over(now time.Time) bool { return p.failures == 0 || !now.Before(p.until) }

// longer has the pause last twice as long as the one before.
func (p *pause) longer(now time.Time) {
	const doublings = 6 // to longestPause
	p.until = now.Add(min(submitEvery<<min(p.failures, doublings), longestPause))
	p.failures++
}

// submittedLog is what is known of an organization's log.
type submittedLog struct {
	origin  string
	size    int64 // of the newest checkpoint that was looked at
	grown   bool  // there may be a newer one
	running bool  // a round is under way
	next    time.Time
	by      []standing // by witness
}

// standing is where a witness stands with a log.
type standing struct {
	size      int64  // of what it has cosigned last; notAsked before it has said so to this process
	stored    int64  // the size of the last cosignature that is stored: a guess at size
	refused   string // why it does not cosign; "" where it does
	disagrees bool   // it has cosigned another history
	pause
}

// notAsked is the size where a witness was not asked yet. Each is asked once about a log
// that has not grown, too: so it shows that a database was put back.
const notAsked = -1

func newSubmitter(logs witnessedLogs, witnesses []*witness.Client, w *Worker) *submitter {
	s := &submitter{
		logs: logs, clock: w.Clock, log: w.Log, meter: w.Meter, running: &w.running,
		rounds: make(chan struct{}, submitRounds), of: make(map[ledger.OrgID]*submittedLog),
	}
	s.stopped, s.stop = context.WithCancel(w.working)
	for _, client := range witnesses {
		s.witnesses = append(s.witnesses, &target{Client: client, lanes: make(chan struct{}, submitLanes)})
	}
	return s
}

// pass begins a round for each log that is due.
func (s *submitter) pass(ctx context.Context) error {
	due, err := s.due(ctx)
	for i, org := range due {
		select {
		case s.rounds <- struct{}{}:
		case <-ctx.Done(): // those that are left stay due
			s.giveBack(due[i:])
			return nil
		case <-s.stopped.Done():
			return nil
		}
		s.begin(func() { s.round(org) }) //nolint:contextcheck // a round outlives the pass that begins it
	}
	return err
}

// begin starts a goroutine. One that panics must not take the server with it.
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

// due lists the logs for which a round is to begin, which then are running.
func (s *submitter) due(ctx context.Context) (due []ledger.OrgID, err error) {
	grown, signs, err := s.logs.GrownLogs(ctx)
	if err != nil {
		return nil, err
	}
	now := s.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !signs { // another replica submits now
		clear(s.of)
		s.meter.WitnessesDisagree(0)
		return nil, nil
	}
	for _, org := range grown {
		if s.of[org] == nil {
			s.makeRoom()
			s.of[org] = new(submittedLog)
		}
		s.of[org].grown = true
	}
	for org, log := range s.of {
		if !log.running && !now.Before(log.next) && (log.grown || len(s.behind(log, now)) > 0) {
			log.running = true
			due = append(due, org)
		}
	}
	s.meter.WitnessesDisagree(s.countDisagreements())
	return due, nil
}

// makeRoom forgets a log about which nothing is to be done. The caller holds mu.
func (s *submitter) makeRoom() {
	if len(s.of) < mostLogs {
		return
	}
	for org, log := range s.of {
		if !log.grown && !log.running {
			delete(s.of, org)
			return
		}
	}
}

func (s *submitter) giveBack(orgs []ledger.OrgID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, org := range orgs {
		if log := s.of[org]; log != nil {
			log.running = false
		}
	}
}

// behind are the witnesses that can be asked now to cosign the newest checkpoint. The
// caller holds mu.
func (s *submitter) behind(log *submittedLog, now time.Time) (witnesses []int) {
	for i := range log.by {
		if log.by[i].size != log.size && log.by[i].over(now) && s.witnesses[i].over(now) {
			witnesses = append(witnesses, i)
		}
	}
	return witnesses
}

// disagreements counts the logs of which a witness has cosigned another history.
func (s *submitter) disagreements() (logs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countDisagreements()
}

// countDisagreements is disagreements for who holds mu.
func (s *submitter) countDisagreements() (logs int) {
	for _, log := range s.of {
		for i := range log.by {
			if log.by[i].disagrees {
				logs++
				break
			}
		}
	}
	return logs
}

// known is where the witnesses may stand, as the stored cosignatures tell. Lines that are not
// theirs count for nothing: then the witness itself says what it has cosigned.
func (s *submitter) known(log *service.LogToWitness) []standing {
	by := make([]standing, len(s.witnesses))
	for i, w := range s.witnesses {
		by[i].size = notAsked
		if _, err := note.Open(log.Cosigned, note.VerifierList(w.Verifier)); err == nil {
			by[i].stored = log.CosignedSize
		}
	}
	return by
}
