package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// sizeType is the content type of a conflict's answer.
const sizeType = "text/x.tlog.size"

// submitTime bounds how long a submission waits for others of the same log.
const submitTime = 20 * time.Second

// Handler serves the protocol, below any prefix that a proxy takes away, and two
// routes for whoever runs the witness.
func (w *Witness) Handler() http.Handler {
	s := &server{w}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", s.addCheckpoint)
	mux.HandleFunc("GET /{hash}/checkpoint", s.latest)
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	return mux
}

type server struct{ witness *Witness }

// What can become of a submission.
const (
	ResultCosigned     = "cosigned"
	ResultConflict     = "conflict"     // another size was cosigned than the log thought: it tries again
	ResultRefused      = "refused"      // malformed, not signed, or of a log that is not registered
	ResultInconsistent = "inconsistent" // it does not continue what was cosigned
	ResultFailed       = "failed"       // the witness could not cosign
)

// Results lists what can become of a submission.
func Results() []string {
	return []string{ResultCosigned, ResultConflict, ResultRefused, ResultInconsistent, ResultFailed}
}

func (s *server) addCheckpoint(rw http.ResponseWriter, r *http.Request) {
	result := s.submit(rw, r)
	if s.witness.Received != nil {
		s.witness.Received(result)
	}
}

// submit answers a submission and says what became of it.
func (s *server) submit(rw http.ResponseWriter, r *http.Request) (result string) {
	ctx, cancel := context.WithTimeout(r.Context(), submitTime)
	defer cancel()
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, int64(maxRequest)))
	if err != nil {
		var long *http.MaxBytesError
		if errors.As(err, &long) {
			answer(rw, http.StatusRequestEntityTooLarge, fmt.Sprintf("a request has at most %d bytes\n", maxRequest))
			return ResultRefused
		}
		answer(rw, http.StatusBadRequest, "the request ended early\n")
		return ResultRefused
	}
	submitted, err := parseRequest(body)
	if err != nil {
		return s.refuse(rw, err)
	}
	line, err := s.witness.cosign(ctx, submitted)
	if err != nil {
		return s.refuse(rw, err)
	}
	answer(rw, http.StatusOK, line)
	return ResultCosigned
}

// refusals are the answers to errors, as the protocol has them.
var refusals = []struct {
	err    error
	status int
	result string
}{
	{errMalformed, http.StatusBadRequest, ResultRefused},
	{errOldSize, http.StatusBadRequest, ResultRefused},
	{errSignature, http.StatusForbidden, ResultRefused},
	{errUnknownOrigin, http.StatusNotFound, ResultRefused},
	{errOtherRoot, http.StatusConflict, ResultInconsistent},
	{errProof, http.StatusUnprocessableEntity, ResultInconsistent},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, ResultFailed},
	{context.Canceled, http.StatusServiceUnavailable, ResultFailed},
}

// refuse answers an error with the status that the protocol gives it, and says what became of
// the submission.
func (s *server) refuse(rw http.ResponseWriter, err error) (result string) {
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		rw.Header().Set("Content-Type", sizeType)
		rw.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(rw, strconv.FormatInt(conflict.Size, 10)+"\n")
		return ResultConflict
	}
	for _, refusal := range refusals {
		if errors.Is(err, refusal.err) {
			s.witness.log.Debug("a submission was refused", "status", refusal.status, "error", err)
			answer(rw, refusal.status, err.Error()+"\n")
			return refusal.result
		}
	}
	s.witness.log.Error("a submission could not be cosigned", "error", err)
	answer(rw, http.StatusInternalServerError, "the witness could not cosign: try again later\n")
	return ResultFailed
}

func answer(rw http.ResponseWriter, status int, text string) {
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	rw.WriteHeader(status)
	_, _ = io.WriteString(rw, text) // a client that has gone is told nothing
}

// latest serves the last checkpoint that was cosigned of a log to its monitors.
func (s *server) latest(rw http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), submitTime)
	defer cancel()
	signed, err := s.witness.latest(ctx, r.PathValue("hash"))
	switch {
	case err != nil:
		s.refuse(rw, err)
	case signed == "":
		answer(rw, http.StatusNotFound, "no checkpoint of this log was cosigned\n")
	default:
		rw.Header().Set("Cache-Control", "no-cache")
		answer(rw, http.StatusOK, signed)
	}
}

// readiness has the form that the service's /readyz has, so that countersign health
// reads it. Anyone can ask, so it counts and names no log.
type readiness struct {
	Status  string   `json:"status"`
	Reasons []reason `json:"reasons"`
	Checks  []check  `json:"checks"`
}

type reason struct {
	Name  string `json:"name"`
	Count int    `json:"count"` // of logs
}

type check struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// ready answers 200 while alarms stand: one log's fault must not take the witness
// from the others.
func (s *server) ready(rw http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	status, found := s.witness.readiness(ctx)
	body, err := json.Marshal(found)
	if err != nil {
		s.refuse(rw, err)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_, _ = rw.Write(append(body, '\n'))
}

func (w *Witness) readiness(ctx context.Context) (status int, found readiness) {
	status, found = http.StatusOK, readiness{Status: "ready", Reasons: []reason{}}
	unreadable := 0
	for _, o := range w.origins {
		if _, err := w.snapshot(ctx, o); err != nil && ctx.Err() == nil {
			unreadable++
		}
	}
	if unreadable > 0 {
		status, found.Status = http.StatusServiceUnavailable, "unavailable"
		found.Checks = append(found.Checks, check{"storage", "failed", fmt.Sprintf("the state of %d logs cannot be read", unreadable)})
	} else {
		found.Checks = append(found.Checks, check{"storage", "ok", ""})
	}
	counts := w.CountAlarms()
	for _, kind := range alarmKinds {
		if counts[kind] == 0 {
			found.Checks = append(found.Checks, check{kind, "ok", ""})
			continue
		}
		found.Checks = append(found.Checks, check{kind, "degraded", fmt.Sprintf("%s (%d logs): see the witness's log", alarmTexts[kind], counts[kind])})
		found.Reasons = append(found.Reasons, reason{kind, counts[kind]})
		if status == http.StatusOK {
			found.Status = "degraded"
		}
	}
	return status, found
}
