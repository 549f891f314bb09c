package service

import (
	"context"

	"countersign/internal/ledger"
)

// SignRound makes one round of the signer, and those that it asks for.
func (s *Service) SignRound(ctx context.Context) {
	for poll := true; s.signer.Round(ctx, poll); poll = false {
	}
}

// Resign lets another replica be the signer.
func (s *Service) Resign() { s.signer.Resign(context.Background()) }

// SignSealed is SignRound for what this process has sealed alone.
func (s *Service) SignSealed(ctx context.Context) { s.signer.Round(ctx, false) }

// EndRoundsAt has the signer's rounds end at a point, as if the process had.
func (s *Service) EndRoundsAt(fault error, point string) {
	s.signer.EndRoundsAt(func(reached string) error {
		if reached == point {
			return fault
		}
		return nil
	})
}

// ForgetPauses has logs looked at that were left alone.
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
	return o.enterAcceptance(ctx, org, slug, closing, closing.describe)
}
