package service

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// LedgerAudit is an audit with the head that it began under.
type LedgerAudit struct {
	*AuditReport
	HeadCount  int64  // how many receipts the stored head counts
	LastNumber string // of the newest receipt that verifies by itself; "" where none does
}

// AuditLedger walks the caller's own ledger. It returns an error only when it
// could not read; tampering is in the report.
func (s *Service) AuditLedger(ctx context.Context, caller *Caller, options AuditOptions) (*LedgerAudit, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	audit, err := s.auditLedger(ctx, caller.Org, options)
	s.tellOfAudit(ctx, caller.Org, audit)
	var own *ledger.Error
	if err != nil && !errors.As(err, &own) {
		return nil, &cause{ledger.Errorf(ledger.CodeUnavailable, "the ledger could not be read to its end, so nothing is said about it: try again"), err}
	}
	return audit, err
}

func (s *Service) auditLedger(ctx context.Context, id ledger.OrgID, options AuditOptions) (*LedgerAudit, error) {
	org, err := s.store.Organization(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	audit := &LedgerAudit{}
	head, err := s.store.Head(ctx, id)
	if err == nil {
		audit.HeadCount = head.Count
	} else if !errors.Is(err, store.ErrNotFound) {
		return nil, visible(err)
	}
	newest, err := s.store.Receipts(ctx, id, 0, 1)
	if err != nil {
		return nil, visible(err)
	}
	for _, receipt := range newest {
		if check := ledger.CheckReceipt(receipt, org.Slug, s.keys); check.Valid {
			audit.LastNumber = check.Number
		}
	}
	audit.AuditReport, err = s.Operator().Audit(ctx, org.Slug, options)
	return audit, err
}
