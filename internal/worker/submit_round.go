package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/witness"
)

// round submits a log's newest checkpoint to every witness that has not cosigned it, and
// keeps what they answer: cosignatures count together only where they are of one
// checkpoint. It gives its place back after gatherTime.
func (s *submitter) round(org ledger.OrgID) {
	leave := sync.OnceFunc(func() { <-s.rounds })
	defer leave()
	began := s.clock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if known := s.of[org]; known != nil {
			known.running, known.next = false, began.Add(submitEvery)
		}
	}()
	log, asked := s.open(org, began)
	if len(asked) > 0 {
		s.gather(log, asked, leave)
	}
}

// submission is what a witness is asked.
type submission struct {
	witness int
	old     int64 // the size that it has cosigned, as far as is known
}

// open reads the newest checkpoint and says which witnesses are asked to cosign it.
func (s *submitter) open(org ledger.OrgID, now time.Time) (*service.LogToWitness, []submission) {
	s.mu.Lock()
	if known := s.of[org]; known != nil {
		known.grown = false // what is published from here on is for the next round
	}
	s.mu.Unlock()
	log, err := s.logs.LogToWitness(s.stopped, org)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.of[org]
	switch {
	case known == nil:
		return nil, nil
	case err != nil:
		known.grown = true
		if s.stopped.Err() == nil {
			s.log.Warn("a checkpoint could not be read for the witnesses and is tried again", "reason", reason(err))
		}
		return nil, nil
	case log == nil:
		*known = submittedLog{running: true, grown: known.grown}
		return nil, nil
	}
	if known.origin != log.Origin {
		known.origin, known.by = log.Origin, s.known(log)
	}
	known.size = log.Size
	var asked []submission
	for _, i := range s.behind(known, now) {
		if w := s.witnesses[i]; w.failures > 0 { // one submission finds out whether it answers again
			w.until = now.Add(submitTimeout)
		}
		old := known.by[i].size
		if old == notAsked {
			old = known.by[i].stored
		}
		if old > log.Size { // the log has gone back: let the witness say what it knows
			old = 0
		}
		asked = append(asked, submission{i, old})
	}
	return log, asked
}

// gather asks witnesses side by side and stores their cosignatures: all together where
// they answer in time. Else what is there after gatherTime is stored, unless it is less
// than what is stored of an older checkpoint, and the rest with the last answer.
func (s *submitter) gather(log *service.LogToWitness, asked []submission, leave func()) {
	answers := make(chan string, len(asked)) // lines, "" for none
	for _, a := range asked {
		s.begin(func() {
			line := ""
			defer func() { answers <- line }()
			line = s.ask(log, a)
		})
	}
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	var lines []byte
	count, stored := 0, 0
	store := func() {
		if count > stored {
			s.attach(log, lines)
			stored = count
		}
	}
	for waiting := len(asked); waiting > 0; {
		select {
		case line := <-answers:
			if waiting--; line != "" {
				lines = append(lines, line...)
				count++
			}
		case <-timer.C:
			leave()
			if log.CosignedSize == log.Size || count >= log.Cosignatures {
				store()
			}
		}
	}
	store()
}

// attach stores cosignatures, also while the server stops. What could not be stored is
// asked for again: witnesses give it again.
func (s *submitter) attach(log *service.LogToWitness, lines []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.stopped), aftermath)
	defer cancel()
	err := s.logs.AttachCosignatures(ctx, log, lines)
	if err == nil {
		return
	}
	s.log.Warn("the cosignatures of witnesses could not be stored and are asked for again", "log", short(log.Origin), "reason", reason(err))
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.of[log.Org]; known != nil {
		known.origin, known.grown = "", true
	}
}

// short is the beginning of a log's id, which ends its origin: a log line does not show ids
// as a whole.
func short(origin string) string {
	const digits = 8
	id := origin[strings.LastIndex(origin, "/")+1:]
	return id[:min(len(id), digits)]
}

// errAhead is a witness that has cosigned more than there is.
var errAhead = fmt.Errorf("%w: it has cosigned a larger tree than the log has", witness.ErrInconsistent)

// ask submits to one witness and notes what it says. It returns the cosignature, or "".
func (s *submitter) ask(log *service.LogToWitness, a submission) string {
	w := s.witnesses[a.witness]
	wait := time.NewTimer(gatherTime)
	defer wait.Stop()
	select {
	case w.lanes <- struct{}{}:
		defer func() { <-w.lanes }()
	case <-wait.C: // others keep it busy: next time
		return ""
	case <-s.stopped.Done():
		return ""
	}
	ctx, cancel := context.WithTimeout(s.stopped, submitTimeout)
	defer cancel()
	cosignature, err := s.submit(ctx, w.Client, log, a.old)
	if err != nil && s.stopped.Err() != nil {
		return ""
	}
	s.note(log, a.witness, err)
	return cosignature.Line
}

// errLocal is why a submission could not be made here.
type errLocal struct{ error }

func (e errLocal) Unwrap() error { return e.error }

// submit makes a submission, and another where the witness has cosigned another size than
// was known: because somebody else submits, or what it said last did not arrive.
func (s *submitter) submit(ctx context.Context, client *witness.Client, log *service.LogToWitness, old int64) (witness.Cosignature, error) {
	cosignature, err := s.submitFrom(ctx, client, log, old)
	var conflict *witness.ConflictError
	if !errors.As(err, &conflict) {
		return cosignature, err
	}
	if conflict.Size <= log.Size {
		return s.submitFrom(ctx, client, log, conflict.Size)
	}
	newer, err := s.logs.LogToWitness(ctx, log.Org)
	switch {
	case err != nil:
		return cosignature, errLocal{err}
	case newer == nil || newer.Origin != log.Origin || newer.Size >= conflict.Size: // it was submitted meanwhile
		return cosignature, conflict
	}
	return cosignature, fmt.Errorf("%w: %d and %d leaves", errAhead, conflict.Size, newer.Size)
}

func (s *submitter) submitFrom(ctx context.Context, client *witness.Client, log *service.LogToWitness, old int64) (witness.Cosignature, error) {
	proof, err := s.logs.ProveToWitness(ctx, log, old)
	if err != nil {
		return witness.Cosignature{}, errLocal{err}
	}
	return client.Submit(ctx, log.Checkpoint, old, proof)
}

// note remembers what became of a submission, and tells people what is new in it.
func (s *submitter) note(log *service.LogToWitness, i int, err error) {
	now, w := s.clock(), s.witnesses[i]
	name := w.Verifier.Name()
	s.mu.Lock()
	defer s.mu.Unlock()
	var at *standing
	if known := s.of[log.Org]; known != nil && known.origin == log.Origin {
		at = &known.by[i]
	} else {
		at = new(standing) // nobody remembers it any more
	}
	var conflict *witness.ConflictError
	var local errLocal
	result := submitCosigned
	switch {
	case errors.As(err, &local):
		s.log.Warn("a checkpoint could not be submitted and is tried again", "log", short(log.Origin), "witness", name, "reason", reason(local))
		return
	case errors.As(err, &conflict): // somebody else submits as well
		at.size = min(conflict.Size, log.Size-1)
		return
	case err == nil:
		if at.refused != "" {
			s.log.Info("a witness cosigns a log again", "log", short(log.Origin), "witness", name)
		}
		*at = standing{size: log.Size}
	case errors.Is(err, witness.ErrInconsistent):
		result = submitInconsistent
		if !at.disagrees {
			s.log.Error("a witness has cosigned another history of this log: the database was put back or changed, or the witness is wrong; run countersign doctor, and compare with what the witness has cosigned",
				"log", short(log.Origin), "size", log.Size, "witness", name, "error", err)
		}
		at.disagrees, at.refused = true, submitInconsistent
		at.longer(now)
	case refusal(err):
		result = submitRefused
		if text := err.Error(); at.refused != text {
			at.refused = text
			s.log.Warn("a witness refuses the checkpoints of a log: register the key that countersign log vkey prints for the organization there",
				"log", short(log.Origin), "witness", name, "error", err)
		}
		at.longer(now)
	default:
		s.meter.Submitted(name, submitFailed)
		if w.failures == 0 {
			s.log.Warn("a witness does not answer and is tried again", "witness", name, "error", err)
		}
		w.longer(now)
		return
	}
	if w.failures > 0 {
		s.log.Info("a witness answers again", "witness", name)
	}
	w.pause = pause{}
	s.meter.Submitted(name, result)
}

// refusal: the witness is there, and does not want this log.
func refusal(err error) bool {
	var status *witness.StatusError
	return errors.As(err, &status) && status.Status >= http.StatusBadRequest && status.Status < http.StatusInternalServerError &&
		status.Status != http.StatusTooManyRequests && status.Status != http.StatusRequestTimeout
}
