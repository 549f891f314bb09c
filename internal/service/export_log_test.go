package service

import (
	"context"

	"countersign/internal/ledger"
)

// SignRound runs one round of the signer, and the further rounds that it requests.
func (s *Service) SignRound(ctx context.Context) {
	for poll := true; s.signer.Round(ctx, poll); poll = false {
	}
}

// Resign lets another replica become the signer.
func (s *Service) Resign() { s.signer.Resign(context.Background()) }

// SignSealed is SignRound for the receipts that this process has sealed.
func (s *Service) SignSealed(ctx context.Context) { s.signer.Round(ctx, false) }

// EndRoundsAt ends the signer's rounds at a point, as if the process had crashed there.
func (s *Service) EndRoundsAt(fault error, point string) {
	s.signer.EndRoundsAt(func(reached string) error {
		if reached == point {
			return fault
		}
		return nil
	})
}

// ForgetPauses ends the pauses of logs that failed.
func (s *Service) ForgetPauses() { s.signer.ForgetPauses() }

// CloseLogForTest closes a log as accepting a rollback does.
func (o *Operator) CloseLogForTest(ctx context.Context, org ledger.OrgID, slug string) error {
	closing, err := o.closingOf(ctx, org)
	if err == nil {
		err = o.endLogs(org.UUID)
	}
	if err != nil {
		return err
	}
	return o.logAcceptance(ctx, org, slug, closing, closing.describe)
}
