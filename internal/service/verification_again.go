package service

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// maxJudgements bounds how often an approval is read anew: it changes a few times
// in its life.
const maxJudgements = 3

// judgeApproval verifies an approval. What is decided or sealed while it is being
// read disagrees with what was read before, and is no tampering: so nothing is
// called failed that was looked at once.
func (s *Service) judgeApproval(ctx context.Context, record *store.ApprovalRecord) (*ledger.Verification, error) {
	for attempt := 1; ; attempt++ {
		v := &approvalVerification{service: s, record: record, result: s.newVerification(ledger.ArtifactApproval, record.ID.UUID)}
		if err := v.run(ctx); err != nil {
			return nil, visible(err)
		}
		if overall, _ := v.result.Conclude(); overall != ledger.VerdictFailed || attempt == maxJudgements {
			return v.result, nil
		}
		again, err := s.store.Approval(ctx, record.ID)
		if errors.Is(err, store.ErrNotFound) {
			return v.result, nil
		}
		if err != nil {
			return nil, visible(err)
		}
		record = again
	}
}

// withoutReceipt says why there is none: the chain goes on, or someone took it.
func (v *approvalVerification) withoutReceipt(ctx context.Context, approval *ledger.Approval) error {
	record, err := v.service.store.Chain(ctx, approval.Chain)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil {
		if view, viewErr := v.service.view(record); viewErr == nil && !view.State.Status.Sealed() {
			v.skip("the chain is not completed yet", ledger.CheckNotApplicable, checkReceipt)
			return nil
		}
	}
	v.check(checkReceipt, "the chain is not open, and its receipt is missing")
	return nil
}
