package service

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// VerifyApproval judges one approval in all that was recorded about it.
func (s *Service) VerifyApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID) (*ledger.Verification, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	approval, err := s.findApproval(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if approval.org != caller.Org {
		return nil, ledger.ErrNotFound
	}
	return s.telling(ctx, caller.Org)(approval.judge(ctx))
}

// VerifyReceipt judges one receipt: by itself, between its neighbours, under the
// head, with its chain's events and approvals.
func (s *Service) VerifyReceipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.Verification, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipt, err := s.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if receipt.Org != caller.Org {
		return nil, ledger.ErrNotFound
	}
	return s.telling(ctx, caller.Org)(s.judge.Receipt(ctx, receipt, verify.InFull))
}

// keepFullCheck remembers what a full check of a large chain came to, for strangers who
// ask about it, on every replica. The check itself stands whether or not that succeeds.
func (s *Service) keepFullCheck(ctx context.Context, check *store.FullCheckRecord) {
	if err := s.store.PutFullCheck(ctx, check); err != nil {
		s.log.Warn("the full check of a large chain could not be kept: strangers are shown the one before it", "error", err)
	}
}

// VerifyReceipt judges one receipt of any organization: by itself, between its
// neighbours, under the organization's head, and with its chain's events. It returns
// an error only when it could not read; tampering is in the verdict.
func (o *Operator) VerifyReceipt(ctx context.Context, id ledger.ReceiptID) (*verify.Verdict, error) {
	verdict, err := o.service.judge.VerifyReceipt(ctx, id)
	return verdict, visible(err)
}

// Audit walks an organization's whole ledger. It returns an error only when it could
// not read; tampering is in the report.
func (o *Operator) Audit(ctx context.Context, slug string, options verify.AuditOptions) (*verify.AuditReport, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.AuditOrganization(ctx, org, options)
}

// AuditOrganization is Audit of an organization that was listed: by its slug it may not
// be found, where somebody else has written that.
func (o *Operator) AuditOrganization(ctx context.Context, org *ledger.Organization, options verify.AuditOptions) (*verify.AuditReport, error) {
	report, err := o.service.judge.Audit(ctx, org, options)
	return report, visible(err)
}

// Rollbacks finds the organizations whose ledger is not the one that this server has
// given receipts of. While one is missing altogether, no receipts are made for any.
func (s *Service) Rollbacks(ctx context.Context) ([]verify.Rollback, error) {
	found, err := s.judge.Rollbacks(ctx)
	return found, visible(err)
}

// AuditLedger walks the caller's own ledger. It returns an error only when it
// could not read; tampering is in the report.
func (s *Service) AuditLedger(ctx context.Context, caller *Caller, options verify.AuditOptions) (*verify.LedgerAudit, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	audit, err := s.judge.AuditLedger(ctx, caller.Org, options)
	err = visible(err)
	s.tellOfAudit(ctx, caller.Org, audit)
	var own *ledger.Error
	if err != nil && !errors.As(err, &own) {
		return nil, &cause{ledger.Errorf(ledger.CodeUnavailable, "the ledger could not be read to its end, so nothing is said about it: try again"), err}
	}
	return audit, err
}
