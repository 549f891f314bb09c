package service

import (
	"context"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/policy"
	"countersign/internal/store"
)

// Delay is the default delay of a service.
var Delay = delay

// ShownURL exposes shownURL to tests.
var ShownURL = shownURL

// LongestWait returns how long a caller may wait whose secret is valid until ends.
func LongestWait(ends *ledger.Time, wait time.Duration, now ledger.Time) time.Duration {
	return (&Caller{ends: ends}).longestWait(wait, now)
}

// AbandonForTest seals a chain if it is abandoned.
func (s *Service) AbandonForTest(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) error {
	_, err := s.abandon(ctx, org, chain)
	return err
}

// RecheckKeys sets how often waits that start from now on check their key.
func (s *Service) RecheckKeys(every time.Duration) { s.keyRecheck = every }

// CommitPanicking commits an operation that corrupts the changes of the operations before it, and
// then panics.
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

// WaitForFindings waits until all pending findings are stored.
func (s *Service) WaitForFindings() { s.unkept.Wait() }

// ForgetFindings makes the next call read the findings again.
func (s *Service) ForgetFindings() { s.known.forget() }

// Bare returns a service without a store, for examining actions.
func Bare() *Service { return &Service{policyService: new(policyService)} }

// HoldExamination blocks the examination of an organization's actions until release is called.
func (s *Service) HoldExamination(ctx context.Context, org ledger.OrgID) (release func(), err error) {
	return s.examining.lock(ctx, org)
}

// HoldCompilation blocks the compilation of an organization's policy sets until release is called.
func (s *Service) HoldCompilation(ctx context.Context, org ledger.OrgID) (release func(), err error) {
	return s.compiling.lock(ctx, org)
}

// Compiling returns how many callers of an organization compile a set or wait to do so.
func (s *Service) Compiling(org ledger.OrgID) int { return s.compiling.callers(org) }

// HoldSimulation blocks the simulations of an organization until release is called.
func (s *Service) HoldSimulation(ctx context.Context, org ledger.OrgID) (release func(), err error) {
	return s.simulating.lock(ctx, org)
}

// Simulating returns how many callers of an organization run a simulation or wait to do so.
func (s *Service) Simulating(org ledger.OrgID) int { return s.simulating.callers(org) }

func (t *orgLocks) callers(org ledger.OrgID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if queue := t.of[org]; queue != nil {
		return queue.callers
	}
	return 0
}

// Examining returns how many callers of an organization examine an action or wait to do so.
func (s *Service) Examining(org ledger.OrgID) int { return s.examining.callers(org) }

// PutPolicyAsBefore stores a set without the bounds that an earlier version did not have.
func (s *Service) PutPolicyAsBefore(ctx context.Context, caller *Caller, document *PolicyDocument) (*PolicyView, error) {
	format, _ := document.format()
	set, err := policy.ParseStored(document.Text, format)
	if err != nil {
		return nil, err
	}
	return s.putPolicy(ctx, caller, document, set, nil)
}

// IgnoreSlowness lets batches fill up however long planning takes: under the race detector
// everything is slow.
func (s *Service) IgnoreSlowness() {
	s.committer.mu.Lock()
	defer s.committer.mu.Unlock()
	s.committer.queue.slowness = time.Hour
}

// DecidesInSlack reports whether a Slack member decides as a key of an organization.
func (s *Service) DecidesInSlack(ctx context.Context, org ledger.OrgID, member string) bool {
	caller, err := s.slackCaller(ctx, org, member)
	return err == nil && caller != nil
}
