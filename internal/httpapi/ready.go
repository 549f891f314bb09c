package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/problem"
	"countersign/internal/service"
	"countersign/internal/verify"
)

// readiness is "unavailable" where a check has failed, else "degraded" where there
// is a reason for it, else "ready".
type readiness struct {
	Status  string            `json:"status"`
	Reasons []readinessReason `json:"reasons"`
	Checks  []readinessCheck  `json:"checks"`
	Ledger  *readinessLedger  `json:"ledger"` // null where it is not known
}

// readinessLedger tells two databases apart that began as one.
type readinessLedger struct {
	ID        string  `json:"id"`
	Parent    *string `json:"parent_id"` // null where it was not restored
	CreatedAt string  `json:"created_at"`
}

// readinessReason is something that the service should do and cannot, although it
// serves requests. Anyone can ask, so it counts and names no organization.
type readinessReason struct {
	Name  string `json:"name"`
	Count int    `json:"count"` // of organizations, of findings, of checks, of files, or of logs
}

const (
	// reasonEscalation: an approval that escalates would reach nobody.
	reasonEscalation = "escalation_without_channel"
	// reasonTampering: rows were changed outside the service, and no operator has
	// acknowledged it.
	reasonTampering = "tampering"
	// reasonNotKnown: something could not be looked at.
	reasonNotKnown = "not_known"
)

type readinessCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`

	reason *readinessReason // of a check that is "degraded" or could not be made
}

// conclude derives the status and the reasons from the checks. A load balancer
// sends requests to a service that is degraded: another replica would be no better.
func (r *readiness) conclude() (httpStatus int) {
	httpStatus, r.Status, r.Reasons = http.StatusOK, "ready", []readinessReason{}
	for _, check := range r.Checks {
		switch {
		case check.Status == "failed":
			httpStatus, r.Status = http.StatusServiceUnavailable, "unavailable"
		case check.reason != nil:
			r.add(*check.reason)
		}
	}
	if httpStatus == http.StatusOK && len(r.Reasons) > 0 {
		r.Status = "degraded"
	}
	return httpStatus
}

// add counts reasons of one name together.
func (r *readiness) add(reason readinessReason) {
	for i := range r.Reasons {
		if r.Reasons[i].Name == reason.Name {
			r.Reasons[i].Count += reason.Count
			return
		}
	}
	r.Reasons = append(r.Reasons, reason)
}

// readinessTime bounds how long a probe waits for an answer, whatever the store does.
const readinessTime = 1500 * time.Millisecond

func ready(x *exchange) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), readinessTime)
	defer cancel()
	var answer readiness
	storage, err := x.api.storageCheck(ctx)
	if err != nil {
		answer.Checks = []readinessCheck{storage}
		x.api.log.Error("not ready", "request_id", x.id, "error", err)
	} else {
		found := x.api.surveyed(ctx)
		answer.Checks, answer.Ledger = append([]readinessCheck{storage}, found.checks...), found.ledger
	}
	if x.api.faults != nil {
		answer.Checks = append(answer.Checks, faultChecks(x.api.faults())...)
	}
	status := answer.conclude()
	body, err := encode(answer)
	if err != nil {
		return err
	}
	return x.answer(status, body)
}

// storageCheck asks the service, and does not wait for it longer than ctx lasts: not every
// wait for a disk can be ended.
func (a *API) storageCheck(ctx context.Context) (readinessCheck, error) {
	asked := make(chan error, 1)
	go func() { asked <- a.service.Ready(ctx) }()
	var err error
	select {
	case err = <-asked:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return readinessCheck{Name: "storage", Status: "failed", Detail: service.StorageDetail(err)}, err
	}
	return readinessCheck{Name: "storage", Status: "ok"}, nil
}

// Fault is something that is wrong beside the database, for anyone to read: it names no
// path and no organization.
type Fault struct {
	Check  string // the name of the check
	Reason string // the reason why the service is degraded
	Detail string // "" where nothing is wrong
	Count  int    // optional, 1
}

func faultChecks(faults []Fault) (checks []readinessCheck) {
	for _, fault := range faults {
		check := readinessCheck{Name: fault.Check, Status: "ok"}
		if fault.Detail != "" {
			check = readinessCheck{Name: fault.Check, Status: "degraded", Detail: fault.Detail, reason: &readinessReason{fault.Reason, max(fault.Count, 1)}}
		}
		checks = append(checks, check)
	}
	return checks
}

// survey keeps what takes a look at every organization: probes come often, and
// from several sides. One look at a time is under way, in a goroutine of its own: those
// who ask wait for it as long as they can.
type survey struct {
	mu    sync.Mutex
	found surveyFound
	until time.Time     // found is fresh until then
	done  chan struct{} // closed with the look under way; nil where none is
}

type surveyFound struct {
	checks []readinessCheck
	ledger *readinessLedger
}

const (
	surveyLasts = 5 * time.Second
	surveyTime  = 10 * time.Second // bounds a look
)

// surveyed are the checks of the survey and which ledger this is, looked at anew where
// they are old. What could not be looked at is not kept.
func (a *API) surveyed(ctx context.Context) surveyFound {
	s := &a.survey
	s.mu.Lock()
	if time.Now().Before(s.until) {
		defer s.mu.Unlock()
		return s.found
	}
	if s.done == nil {
		s.done = make(chan struct{})
		go a.look(s.done) //nolint:contextcheck,gosec // others wait for it too
	}
	done := s.done
	s.mu.Unlock()
	select {
	case <-done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.found
	case <-ctx.Done():
		return notLookedAt()
	}
}

// look takes a look and tells those who wait.
func (a *API) look(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), surveyTime)
	defer cancel()
	found, err := a.lookAt(ctx)
	s := &a.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found, s.done = found, nil; err == nil {
		s.until = time.Now().Add(surveyLasts)
	}
	close(done)
}

func (a *API) lookAt(ctx context.Context) (found surveyFound, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			a.log.Error("a look at the readiness panicked", "stack", string(debug.Stack()))
			found, err = notLookedAt(), problem.ErrPanicked
		}
	}()
	policy, policyErr := a.policyCheck(ctx)
	rollback, rollbackErr := a.rollbackCheck(ctx)
	escalation, escalationErr := a.escalationCheck(ctx)
	tampering, tamperingErr := a.tamperingCheck(ctx)
	found = surveyFound{[]readinessCheck{policy, rollback, tampering, escalation}, a.ledger(ctx)}
	return found, errors.Join(policyErr, rollbackErr, escalationErr, tamperingErr)
}

// notLookedAt is what is said of a store that does not answer in time.
func notLookedAt() (found surveyFound) {
	for _, name := range []string{"policy", "rollback", "tampering", "escalation"} {
		found.checks = append(found.checks, unknownCheck(name))
	}
	return found
}

// unknownCheck is a check that could not be made. A service that does not know whether it
// should serve does not say that it is ready.
func unknownCheck(name string) readinessCheck {
	return readinessCheck{Name: name, Status: "warning", Detail: notKnown, reason: &readinessReason{reasonNotKnown, 1}}
}

// ledger is which ledger this is. It is for people and auditors: nothing fails
// without it.
func (a *API) ledger(ctx context.Context) *readinessLedger {
	stored, err := a.service.Ledger(ctx)
	if err != nil {
		return nil
	}
	answer := &readinessLedger{ID: stored.ID.String(), CreatedAt: stored.CreatedAt.String()}
	if stored.Parent != uuid.Nil {
		parent := stored.Parent.String()
		answer.Parent = &parent
	}
	return answer
}

const notKnown = "not known: the store does not answer"

// policyCheck says how many organizations nobody has written policies for. It
// keeps no request from being served.
func (a *API) policyCheck(ctx context.Context) (readinessCheck, error) {
	organizations, alone, err := a.service.PolicyCoverage(ctx)
	if err != nil {
		return unknownCheck("policy"), err
	}
	return readinessCheck{
		Name: "policy", Status: "ok",
		Detail: fmt.Sprintf("%d of %d organizations are under the built-in defaults alone", alone, organizations),
	}, nil
}

// rollbackCheck says whether the database was put back behind receipts that were
// given out. Anyone can ask, so it names no organization.
func (a *API) rollbackCheck(ctx context.Context) (readinessCheck, error) {
	found, err := a.service.Rollbacks(ctx)
	switch {
	case err != nil:
		return unknownCheck("rollback"), err
	case len(found) > 0:
		return readinessCheck{
			Name: "rollback", Status: "failed",
			Detail: rollbackDetail(found),
		}, nil
	}
	return readinessCheck{Name: "rollback", Status: "ok"}, nil
}

// rollbackDetail counts, for anyone can ask.
func rollbackDetail(found []verify.Rollback) string {
	for _, rollback := range found {
		switch {
		case rollback.OtherLedger:
			return "this server remembers the receipts of another ledger: see countersign doctor"
		case rollback.Unremembered:
			return fmt.Sprintf("%d ledgers hold receipts of which this server remembers nothing: see countersign doctor", len(found))
		}
	}
	return fmt.Sprintf("%d ledgers are older than the receipts that this server has given out: see countersign doctor", len(found))
}

// escalationCheck says in how many organizations an approval that escalates would
// reach nobody. Anyone can ask, so it names none of them.
func (a *API) escalationCheck(ctx context.Context) (readinessCheck, error) {
	unheard, organizations, err := a.service.UnheardEscalations(ctx)
	switch {
	case err != nil:
		return unknownCheck("escalation"), err
	case len(unheard) > 0:
		return readinessCheck{
			Name: "escalation", Status: "degraded", reason: &readinessReason{reasonEscalation, len(unheard)},
			Detail: fmt.Sprintf("in %d of %d organizations nobody is told when an approval escalates: see countersign doctor", len(unheard), organizations),
		}, nil
	}
	return readinessCheck{Name: "escalation", Status: "ok"}, nil
}

// tamperingCheck says how much tampering is known that no operator has acknowledged.
// Anyone can ask, so it names nothing.
func (a *API) tamperingCheck(ctx context.Context) (readinessCheck, error) {
	open, err := a.service.OpenFindings(ctx)
	switch {
	case err != nil:
		return unknownCheck("tampering"), err
	case open > 0:
		return readinessCheck{
			Name: "tampering", Status: "degraded", reason: &readinessReason{reasonTampering, open},
			Detail: fmt.Sprintf("%d findings of tampering are not acknowledged: see countersign tampering list", open),
		}, nil
	}
	return readinessCheck{Name: "tampering", Status: "ok"}, nil
}
