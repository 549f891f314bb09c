package service

import (
	"context"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Delay waits as a service does that was given no other way.
var Delay = delay

// LongestWait is how long a caller may wait whose secret is good until ends.
func LongestWait(ends *ledger.Time, wait time.Duration, now ledger.Time) time.Duration {
	return (&Caller{ends: ends}).longestWait(wait, now)
}

// AbandonForTest seals a chain if it is abandoned.
func (s *Service) AbandonForTest(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) error {
	_, err := s.abandon(ctx, org, chain)
	return err
}

// RecheckKeys has every wait that begins from now on look so often at its key.
func (s *Service) RecheckKeys(every time.Duration) { s.keyRecheck = every }

// CommitPanicking hands the committer an operation that meddles with all that the
// operations before it did, and then panics.
func (s *Service) CommitPanicking(ctx context.Context) error {
	return s.committer.commit(ctx, panicking{})
}

type panicking struct{}

func (panicking) need(*store.Needs) {}

func (panicking) tenant() ledger.OrgID { return ledger.OrgID{} }

func (panicking) size() int { return smallOperation }

func (panicking) plan(b *batch) error {
	for _, live := range b.order {
		live.state.Actions += 100
		live.changed = true
	}
	b.changes.NewEvents = append(b.changes.NewEvents, b.changes.NewEvents...)
	panic("a fault of one operation")
}

// WaitForMet waits until what requests have come upon is kept.
func (s *Service) WaitForMet() { s.noticing.Wait() }

// ForgetFindings has the findings read again, as after a few seconds.
func (s *Service) ForgetFindings() { s.known.forget() }
