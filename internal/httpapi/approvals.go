package httpapi

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const (
	// waitPattern is the route on which a request can wait for a decision.
	waitPattern = "/v1/approvals/{approval_id}"
	// maxWait is the longest time that a request can wait for a decision, in seconds.
	maxWait = 60
)

func listApprovals(x *exchange) error {
	q := x.search("status", "chain_id")
	filter := service.ApprovalFilter{Status: ledger.ApprovalStatus(q.text("status")), Limit: q.limit()}
	if filter.Status != "" && !slices.Contains(ledger.ApprovalStatuses, filter.Status) {
		q.fault("status", "must be one of pending, escalated, approved, denied, timed_out, cancelled")
	}
	if text := q.text("chain_id"); text != "" {
		id, err := ledger.ParseID(text)
		if err != nil {
			q.fault("chain_id", "must be a chain's id")
		}
		filter.Chain = &ledger.ChainID{UUID: id}
	}
	if at, id, given := q.momentCursor(approvalCursor); given {
		filter.Before = &service.ApprovalPlace{RequestedAt: at, ID: ledger.ApprovalID{UUID: id}}
	}
	find := q.find()
	if err := q.err(); err != nil {
		return err
	}
	found := new(service.Found[*service.ApprovalView, service.ApprovalPlace])
	var err error
	if find.Any() {
		found, err = x.api.service.FindApprovals(x.r.Context(), x.caller, &service.ApprovalSearch{Find: find, ApprovalFilter: filter})
	} else {
		found.Items, err = x.api.service.Approvals(x.r.Context(), x.caller, filter)
	}
	if err != nil {
		return err
	}
	cursor := func(a *service.ApprovalView) string {
		return encodeMomentCursor(approvalCursor, a.RequestedAt, a.ID.UUID)
	}
	rest := ""
	if found.Next != nil {
		rest = encodeMomentCursor(approvalCursor, found.Next.RequestedAt, found.Next.ID.UUID)
	}
	return listPart(x, found.Items, filter.Limit, cursor, rest, x.appendApproval)
}

func getApproval(x *exchange) error {
	id, err := x.approvalID()
	if err != nil {
		return err
	}
	q := x.parameters("wait")
	wait := q.seconds("wait", maxWait)
	if err := q.err(); err != nil {
		return err
	}
	if wait == 0 {
		if err := x.admitRead(); err != nil {
			return err
		}
	} else {
		if !x.api.polls.enter(x.caller.Org, x.caller.Key) {
			x.w.Header().Set("Connection", "close")
			return x.tooMany(pollRetryAfter, "too many requests are waiting for decisions, of this API key, its organization or all callers")
		}
		defer x.api.polls.leave(x.caller.Org, x.caller.Key)
		x.extend(wait)
	}
	approval, err := x.api.service.Approval(x.r.Context(), x.caller, id, wait)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendApproval(nil, approval))
}

// extend extends the connection's deadlines for a request that waits. The server's timeouts are for
// requests that are answered at once, and the read timeout would cancel this request's context. A
// ResponseWriter without deadlines, as in tests, needs no extension.
func (x *exchange) extend(wait time.Duration) {
	until := time.Now().Add(wait + 30*time.Second)
	deadlines := http.NewResponseController(x.w)
	_ = deadlines.SetReadDeadline(until)
	_ = deadlines.SetWriteDeadline(until)
}

func approve(x *exchange) error { return x.decide(true) }

func deny(x *exchange) error { return x.decide(false) }

func (x *exchange) decide(approve bool) error {
	id, err := x.approvalID()
	if err != nil {
		return err
	}
	verdict, err := parsedOptional(x, func(body canon.Value) (*ledger.Verdict, error) { return ledger.ParseVerdict(body, approve) })
	if err != nil {
		return err
	}
	approval, err := x.api.service.DecideApproval(x.r.Context(), x.caller, id, verdict)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendApproval(nil, approval))
}

// cancel records that the client no longer waits for the approval.
func cancel(x *exchange) error {
	id, err := x.approvalID()
	if err != nil {
		return err
	}
	comment, err := parsedOptional(x, ledger.ParseCancellation)
	if err != nil {
		return err
	}
	approval, err := x.api.service.CancelApproval(x.r.Context(), x.caller, id, comment)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendApproval(nil, approval))
}

// approvalStatus is for clients that poll per chain. Its list has no pages. It is cut off at the size
// of a page, with the pending approvals first.
func approvalStatus(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	approvals, err := x.api.service.ChainApprovals(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	status := cmp.Or(string(approvals.Standing), "none")
	return x.answer(http.StatusOK, x.appendApprovalStatus(nil, status, approvals.Shown[:min(len(approvals.Shown), maxLimit)]))
}
