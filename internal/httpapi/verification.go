package httpapi

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

func verifyApproval(x *exchange) error {
	id, err := x.approvalID()
	if err != nil {
		return err
	}
	verified, err := x.api.service.VerifyApproval(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendVerification(nil, verified))
}

func verifyReceipt(x *exchange) error {
	id, err := x.namedReceipt()
	if err != nil {
		return err
	}
	verified, err := x.api.service.VerifyReceipt(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendVerification(nil, verified))
}

const (
	// maxAudit bounds how long an audit occupies a connection. A ledger that takes longer must be
	// audited on the command line.
	maxAudit = 5 * time.Minute
	// retryAudit is the Retry-After while another audit of the ledger runs.
	retryAudit = 10 * time.Second
)

// audits are the ledgers that are being audited. An audit reads the whole ledger, and a second one at
// the same time would find nothing new.
type audits struct {
	mu    sync.Mutex
	under map[ledger.OrgID]bool // guarded by mu
}

func (a *audits) begin(org ledger.OrgID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.under[org] {
		return false
	}
	if a.under == nil {
		a.under = make(map[ledger.OrgID]bool)
	}
	a.under[org] = true
	return true
}

func (a *audits) end(org ledger.OrgID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.under, org)
}

func auditLedger(x *exchange) error {
	q := x.parameters("receipts_only")
	options := verify.AuditOptions{ReceiptsOnly: q.boolean("receipts_only")}
	if err := q.err(); err != nil {
		return err
	}
	// A caller who may not audit must not block those who may. The service refuses the request.
	if org := x.caller.Org; x.caller.Role.Includes(ledger.RoleAdmin) {
		if !x.api.audits.begin(org) {
			return x.tooMany(retryAudit, "an audit of this ledger is under way")
		}
		defer x.api.audits.end(org)
	}
	x.extend(maxAudit)
	ctx, cancel := context.WithTimeout(x.r.Context(), maxAudit)
	defer cancel()
	audit, err := x.api.service.AuditLedger(ctx, x.caller, options)
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Errorf(fault.CodeUnavailable, "the ledger is too large to audit within one request, so there is no result: run countersign audit")
	}
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendAudit(nil, audit))
}

func appendAudit(dst []byte, a *verify.LedgerAudit) []byte {
	w := canon.BeginObject(dst)
	w.String("status", a.Status)
	w.Int("receipts_checked", a.Receipts)
	w.Int("chains_checked", a.Chains)
	w.Int("events_checked", a.Events)
	w.Int("acts_checked", a.Acts)
	head := canon.BeginObject(w.Name("head"))
	head.Int("count", a.HeadCount)
	head.StringOrNull("last_receipt_number", a.LastNumber)
	w.Value(head.End())
	if a.Break == nil {
		w.Null("first_break")
	} else {
		found := canon.BeginObject(w.Name("first_break"))
		found.StringOrNull("receipt_number", a.Break.ReceiptNumber)
		found.String("check", string(a.Break.Check))
		found.String("detail", a.Break.Detail)
		w.Value(found.End())
	}
	w.Strings("not_checked", a.NotChecked)
	return w.End()
}

func anchorHead(x *exchange) error {
	if err := x.api.service.AnchorHead(x.r.Context(), x.caller); err != nil {
		return err
	}
	return x.answer(http.StatusAccepted, []byte(`{"status":"queued"}`))
}
