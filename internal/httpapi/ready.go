package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

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
	Count int    `json:"count"` // of organizations, or of findings
}

const (
	// reasonEscalation: an approval that escalates would reach nobody.
	reasonEscalation = "escalation_without_channel"
	// reasonTampering: rows were changed outside the service, and no operator has
	// acknowledged it.
	reasonTampering = "tampering"
)

type readinessCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`

	reason *readinessReason // of a check that is "degraded"
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
			r.Reasons = append(r.Reasons, *check.reason)
		}
	}
	if httpStatus == http.StatusOK && len(r.Reasons) > 0 {
		r.Status = "degraded"
	}
	return httpStatus
}

func ready(x *exchange) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), 2*time.Second)
	defer cancel()
	var answer readiness
	if err := x.api.service.Ready(ctx); err != nil {
		answer.Checks = []readinessCheck{{Name: "storage", Status: "failed", Detail: "the store does not answer"}}
		x.api.log.Error("not ready", "request_id", x.id, "error", err)
	} else {
		checks, ledger := x.surveyed(ctx)
		answer.Checks, answer.Ledger = append([]readinessCheck{{Name: "storage", Status: "ok"}}, checks...), ledger
	}
	status := answer.conclude()
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return x.answer(status, body)
}

// survey keeps what takes a look at every organization: probes come often, and
// from several sides.
type survey struct {
	mu     sync.Mutex
	checks []readinessCheck
	ledger *readinessLedger
	until  time.Time
}

const surveyLasts = 5 * time.Second

// surveyed are the checks of the survey and which ledger this is, looked at anew where
// they are old. What could not be looked at is not kept.
func (x *exchange) surveyed(ctx context.Context) ([]readinessCheck, *readinessLedger) {
	s := &x.api.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.until) {
		return s.checks, s.ledger
	}
	policy, policyErr := x.policyCheck(ctx)
	rollback, rollbackErr := x.rollbackCheck(ctx)
	escalation, escalationErr := x.escalationCheck(ctx)
	tampering, tamperingErr := x.tamperingCheck(ctx)
	checks := []readinessCheck{policy, rollback, tampering, escalation}
	ledger := x.ledger(ctx)
	if policyErr == nil && rollbackErr == nil && escalationErr == nil && tamperingErr == nil {
		s.checks, s.ledger, s.until = checks, ledger, time.Now().Add(surveyLasts)
	}
	return checks, ledger
}

// ledger is which ledger this is. It is for people and auditors: nothing fails
// without it.
func (x *exchange) ledger(ctx context.Context) *readinessLedger {
	stored, err := x.api.service.Ledger(ctx)
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
func (x *exchange) policyCheck(ctx context.Context) (readinessCheck, error) {
	organizations, alone, err := x.api.service.PolicyCoverage(ctx)
	if err != nil {
		return readinessCheck{Name: "policy", Status: "warning", Detail: notKnown}, err
	}
	return readinessCheck{
		Name: "policy", Status: "ok",
		Detail: fmt.Sprintf("%d of %d organizations are under the built-in defaults alone", alone, organizations),
	}, nil
}

// rollbackCheck says whether the database was put back behind receipts that were
// given out. Anyone can ask, so it names no organization.
func (x *exchange) rollbackCheck(ctx context.Context) (readinessCheck, error) {
	found, err := x.api.service.Rollbacks(ctx)
	switch {
	case err != nil:
		return readinessCheck{Name: "rollback", Status: "warning", Detail: notKnown}, err
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
func (x *exchange) escalationCheck(ctx context.Context) (readinessCheck, error) {
	unheard, organizations, err := x.api.service.UnheardEscalations(ctx)
	switch {
	case err != nil:
		return readinessCheck{Name: "escalation", Status: "warning", Detail: notKnown}, err
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
func (x *exchange) tamperingCheck(ctx context.Context) (readinessCheck, error) {
	open, err := x.api.service.OpenFindings(ctx)
	switch {
	case err != nil:
		return readinessCheck{Name: "tampering", Status: "warning", Detail: notKnown}, err
	case open > 0:
		return readinessCheck{
			Name: "tampering", Status: "degraded", reason: &readinessReason{reasonTampering, open},
			Detail: fmt.Sprintf("%d findings of tampering are not acknowledged: see countersign tampering list", open),
		}, nil
	}
	return readinessCheck{Name: "tampering", Status: "ok"}, nil
}
