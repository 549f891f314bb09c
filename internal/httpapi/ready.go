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

// readiness is the answer of /readyz. The status is "unavailable" if a check failed, otherwise
// "degraded" if there are reasons, otherwise "ready". Anyone can read it, so it names no
// organization.
type readiness struct {
	Status  string            `json:"status"`
	Reasons []readinessReason `json:"reasons"`
	Checks  []readinessCheck  `json:"checks"`
	Ledger  *readinessLedger  `json:"ledger"` // null if unknown
}

// readinessLedger identifies the ledger. A restored copy has its own id.
type readinessLedger struct {
	ID        string  `json:"id"`
	Parent    *string `json:"parent_id"` // null if it was never restored
	CreatedAt string  `json:"created_at"`
}

// readinessReason is something that does not work although the service answers requests.
type readinessReason struct {
	Name  string `json:"name"`
	Count int    `json:"count"` // of organizations, findings, checks, files or logs
}

const (
	// reasonEscalation means that an approval that escalates would reach nobody.
	reasonEscalation = "escalation_without_channel"
	// reasonTampering means that rows were changed outside the service and no operator has
	// acknowledged it.
	reasonTampering = "tampering"
	// reasonNotKnown means that a check could not be made.
	reasonNotKnown = "not_known"
)

type readinessCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`

	reason *readinessReason // set if the check is "degraded" or could not be made
}

// conclude derives the status and the reasons from the checks. A degraded service answers 200, so
// that load balancers keep it: another replica would be no better.
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

// add adds a reason, or its count if there is one of the same name.
func (r *readiness) add(reason readinessReason) {
	for i := range r.Reasons {
		if r.Reasons[i].Name == reason.Name {
			r.Reasons[i].Count += reason.Count
			return
		}
	}
	r.Reasons = append(r.Reasons, reason)
}

// readinessTimeout bounds how long a probe waits, even if the store hangs.
const readinessTimeout = 1500 * time.Millisecond

func ready(x *exchange) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), readinessTimeout)
	defer cancel()
	var answer readiness
	storage, err := x.api.storageCheck(ctx)
	if err != nil {
		answer.Checks = []readinessCheck{storage}
		x.api.log.Error("not ready", "request_id", x.id, "error", err)
	} else {
		found := x.api.surveyResult(ctx)
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

// storageCheck checks the store. It returns when ctx is done even if the check hangs, because not
// every wait for a disk can be cancelled. The goroutine ends with the check.
func (a *API) storageCheck(ctx context.Context) (readinessCheck, error) {
	done := make(chan error, 1)
	go func() { done <- a.service.Ready(ctx) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return readinessCheck{Name: "storage", Status: "failed", Detail: service.StorageDetail(err)}, err
	}
	return readinessCheck{Name: "storage", Status: "ok"}, nil
}

// Fault is the result of a check outside the database. Anyone can read it, so it names no path and
// no organization.
type Fault struct {
	Check  string // the name of the check
	Reason string // the name of the reason if something is wrong
	Detail string // "" if nothing is wrong
	Count  int    // 0 means 1
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

// survey caches the checks that read every organization, because probes are frequent. At most one
// survey runs at a time, in its own goroutine. Requests wait for it until their deadline.
type survey struct {
	mu    sync.Mutex // guards the fields below
	found surveyResult
	until time.Time     // found is fresh until then
	done  chan struct{} // closed when the running survey ends; nil if none runs
}

type surveyResult struct {
	checks []readinessCheck
	ledger *readinessLedger
}

const (
	surveyTTL     = 5 * time.Second
	surveyTimeout = 10 * time.Second
)

// surveyResult returns the result of the last survey, or runs a new one if it is stale. A result
// with checks that could not be made is not cached.
func (a *API) surveyResult(ctx context.Context) surveyResult {
	s := &a.survey
	s.mu.Lock()
	if time.Now().Before(s.until) {
		defer s.mu.Unlock()
		return s.found
	}
	if s.done == nil {
		s.done = make(chan struct{})
		go a.runSurvey(s.done) //nolint:contextcheck,gosec // other requests wait for it too
	}
	done := s.done
	s.mu.Unlock()
	select {
	case <-done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.found
	case <-ctx.Done():
		return unknownSurvey()
	}
}

// runSurvey runs a survey and wakes the requests that wait for it.
func (a *API) runSurvey(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), surveyTimeout)
	defer cancel()
	found, err := a.runChecks(ctx)
	s := &a.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found, s.done = found, nil; err == nil {
		s.until = time.Now().Add(surveyTTL)
	}
	close(done)
}

func (a *API) runChecks(ctx context.Context) (found surveyResult, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			a.log.Error("readiness check panicked", "stack", string(debug.Stack()))
			found, err = unknownSurvey(), problem.ErrPanicked
		}
	}()
	policy, policyErr := a.policyCheck(ctx)
	rollback, rollbackErr := a.rollbackCheck(ctx)
	escalation, escalationErr := a.escalationCheck(ctx)
	tampering, tamperingErr := a.tamperingCheck(ctx)
	found = surveyResult{[]readinessCheck{policy, rollback, tampering, escalation}, a.ledger(ctx)}
	return found, errors.Join(policyErr, rollbackErr, escalationErr, tamperingErr)
}

// unknownSurvey is the result if the store does not answer in time.
func unknownSurvey() (found surveyResult) {
	for _, name := range []string{"policy", "rollback", "tampering", "escalation"} {
		found.checks = append(found.checks, unknownCheck(name))
	}
	return found
}

// unknownCheck returns a check that could not be made. It makes the service degraded: a service that
// does not know its state must not say that it is ready.
func unknownCheck(name string) readinessCheck {
	return readinessCheck{Name: name, Status: "warning", Detail: notKnown, reason: &readinessReason{reasonNotKnown, 1}}
}

// ledger returns the identity of the ledger, or nil if it cannot be read. It is informational, so
// that is not an error.
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

// policyCheck says how many organizations have no policies of their own. It never fails because of
// them.
func (a *API) policyCheck(ctx context.Context) (readinessCheck, error) {
	organizations, alone, err := a.service.PolicyCoverage(ctx)
	if err != nil {
		return unknownCheck("policy"), err
	}
	return readinessCheck{
		Name: "policy", Status: "ok",
		Detail: fmt.Sprintf("%d of %d organizations use only the built-in defaults", alone, organizations),
	}, nil
}

// rollbackCheck fails if the database is older than receipts that this server has issued.
func (a *API) rollbackCheck(ctx context.Context) (readinessCheck, error) {
	found, err := a.service.Rollbacks(ctx)
	switch {
	case len(found) > 0: // even if other ledgers cannot be read
		return readinessCheck{
			Name: "rollback", Status: "failed",
			Detail: rollbackDetail(found),
		}, err
	case err != nil:
		return unknownCheck("rollback"), err
	}
	return readinessCheck{Name: "rollback", Status: "ok"}, nil
}

// rollbackDetail describes rollbacks without naming organizations.
func rollbackDetail(found []verify.Rollback) string {
	for _, rollback := range found {
		switch {
		case rollback.OtherLedger:
			return "this server's heads file belongs to another ledger: see countersign doctor"
		case rollback.Unremembered:
			return fmt.Sprintf("%d ledgers contain receipts that this server has no record of: see countersign doctor", len(found))
		}
	}
	return fmt.Sprintf("%d ledgers are older than receipts that this server has issued: see countersign doctor", len(found))
}

// escalationCheck says in how many organizations an approval that escalates would reach nobody.
// An organization without any approval, as in a new install, does not make the service degraded.
func (a *API) escalationCheck(ctx context.Context) (readinessCheck, error) {
	without, organizations, err := a.service.EscalationsWithoutRecipient(ctx)
	if err != nil {
		return unknownCheck("escalation"), err
	}
	asked := 0
	for _, org := range without {
		if org.Asked {
			asked++
		}
	}
	const remedy = "add a webhook for approval.escalated, or fallback approvers and a mail server (countersign doctor has the details)"
	switch {
	case asked > 0:
		return readinessCheck{
			Name: "escalation", Status: "degraded", reason: &readinessReason{reasonEscalation, asked},
			Detail: fmt.Sprintf("in %d of %d organizations nobody is notified when an approval escalates: %s", asked, organizations, remedy),
		}, nil
	case len(without) > 0:
		return readinessCheck{
			Name: "escalation", Status: "ok",
			Detail: fmt.Sprintf("no approval was asked for yet in %d of %d organizations where nobody would be notified when one escalates: %s", len(without), organizations, remedy),
		}, nil
	}
	return readinessCheck{Name: "escalation", Status: "ok"}, nil
}

// tamperingCheck says how many findings of tampering no operator has acknowledged.
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
