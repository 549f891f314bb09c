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

// round submits a log's newest checkpoint to every witness that has not cosigned it, and stores the
// answers: cosignatures count together only if they are for one checkpoint. It releases its slot
// after gatherTime.
func (s *submitter) round(org ledger.OrgID) {
	release := sync.OnceFunc(func() { <-s.rounds })
	defer release()
	began := s.clock()
	next, finished := began.Add(submitEvery), false
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if known := s.byOrg[org]; known != nil {
			known.running, known.next = false, next
			if !finished { // it panicked
				known.startOver()
			}
		}
	}()
	log, asked, err := s.open(org, began)
	if err == nil && log == nil {
		next = began // nothing is signed yet: the first checkpoint need not wait
	}
	if len(asked) > 0 {
		s.gather(log, asked, release)
	}
	finished = true
}

// submission is a request to a witness.
type submission struct {
	witness int
	old     int64 // the size that it has cosigned, as far as known
}

// open reads the newest checkpoint and returns it with the submissions to make. It returns nil
// if there is no checkpoint to cosign.
func (s *submitter) open(org ledger.OrgID, now time.Time) (*service.LogToWitness, []submission, error) {
	s.mu.Lock()
	if known := s.byOrg[org]; known != nil {
		known.grown = false // later checkpoints are for the next round
	}
	s.mu.Unlock()
	log, err := s.logs.LogToWitness(s.stopped, org)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.byOrg[org]
	switch {
	case known == nil:
		return nil, nil, nil
	case err != nil:
		known.grown = true
		if s.stopped.Err() == nil {
			s.log.Warn("a checkpoint could not be read for the witnesses and will be retried", "reason", reason(err))
		}
		return nil, nil, err
	case log == nil:
		*known = submittedLog{running: true, grown: known.grown}
		return nil, nil, nil
	}
	if known.origin != log.Origin {
		known.origin, known.states = log.Origin, s.known(log)
	}
	known.size = log.Size
	var asked []submission
	for _, i := range s.behind(known, now) {
		if w := s.witnesses[i]; w.failures > 0 { // one submission checks whether it answers again
			w.until = now.Add(submitTimeout)
		}
		old := known.states[i].size
		if old == notAsked {
			old = known.states[i].stored
		}
		if old > log.Size { // the log was rolled back; let the witness say what it has
			old = 0
		}
		asked = append(asked, submission{i, old})
	}
	return log, asked, nil
}

// gather asks witnesses in parallel and stores their cosignatures: all together if they answer in
// time. Otherwise it stores what it has after gatherTime, unless an older checkpoint has more
// cosignatures, and the rest with the last answer.
func (s *submitter) gather(log *service.LogToWitness, asked []submission, release func()) {
	answers := make(chan string, len(asked)) // cosignature lines; "" for none
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
			release()
			if log.CosignedSize == log.Size || count >= log.Cosignatures {
				store()
			}
		}
	}
	store()
}

// attach stores cosignatures, even while the server stops. If storing fails, the witnesses are
// asked again and return the same.
func (s *submitter) attach(log *service.LogToWitness, lines []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.stopped), recordTimeout)
	defer cancel()
	err := s.logs.AttachCosignatures(ctx, log, lines)
	if err == nil {
		return
	}
	s.log.Warn("the cosignatures of witnesses could not be stored and will be requested again", "log", short(log.Origin), "reason", reason(err))
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byOrg[log.Org]; known != nil {
		known.startOver()
	}
}

// short returns the start of a log's id, which is the end of its origin: log lines do not contain
// whole ids.
func short(origin string) string {
	const digits = 8
	id := origin[strings.LastIndex(origin, "/")+1:]
	return id[:min(len(id), digits)]
}

// errAhead says that a witness has cosigned more than the log has.
var errAhead = fmt.Errorf("%w: it has cosigned a larger tree than the log has", witness.ErrInconsistent)

// ask submits to one witness and records the result. It returns the cosignature, or "".
func (s *submitter) ask(log *service.LogToWitness, a submission) string {
	w := s.witnesses[a.witness]
	wait := time.NewTimer(gatherTime)
	defer wait.Stop()
	select {
	case w.lanes <- struct{}{}:
		defer func() { <-w.lanes }()
	case <-wait.C: // busy with others; retry in the next round
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
	s.recordResult(log, a.witness, err)
	return cosignature.Line
}

// errLocal says that a submission could not be made because of a local error.
type errLocal struct{ error }

func (e errLocal) Unwrap() error { return e.error }

// submit makes a submission, and another one if the witness has cosigned another size than was
// known: somebody else submits too, or its last answer was lost.
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
	case newer == nil || newer.Origin != log.Origin || newer.Size >= conflict.Size: // submitted by someone else in the meantime
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

// recordResult records the result of a submission, and logs what is new. It holds s.mu.
func (s *submitter) recordResult(log *service.LogToWitness, i int, err error) {
	now, w := s.clock(), s.witnesses[i]
	name := w.Verifier.Name()
	s.mu.Lock()
	defer s.mu.Unlock()
	var at *witnessState
	if known := s.byOrg[log.Org]; known != nil && known.origin == log.Origin {
		at = &known.states[i]
	} else {
		at = new(witnessState) // no longer cached
	}
	var conflict *witness.ConflictError
	var local errLocal
	result := submitCosigned
	switch {
	case errors.As(err, &local):
		s.log.Warn("a checkpoint could not be submitted and will be retried", "log", short(log.Origin), "witness", name, "reason", reason(local))
		return
	case errors.As(err, &conflict): // somebody else submits too
		at.size = min(conflict.Size, log.Size-1)
		return
	case err == nil:
		if at.refused != "" {
			s.log.Info("a witness cosigns a log again", "log", short(log.Origin), "witness", name)
		}
		*at = witnessState{size: log.Size}
	case errors.Is(err, witness.ErrInconsistent):
		result = submitInconsistent
		if !at.disagrees {
			s.log.Error("a witness has cosigned another history of this log: the database was rolled back or changed, or the witness is wrong; run countersign doctor, and compare with what the witness has cosigned",
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
			s.log.Warn("a witness does not answer and will be retried", "witness", name, "error", err)
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

// refusal reports whether the witness answered and refuses this log.
func refusal(err error) bool {
	var status *witness.StatusError
	return errors.As(err, &status) && status.Status >= http.StatusBadRequest && status.Status < http.StatusInternalServerError &&
		status.Status != http.StatusTooManyRequests && status.Status != http.StatusRequestTimeout
}
