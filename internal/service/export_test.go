package service

import (
	"context"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/policy"
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
func (s *Service) WaitForMet() { s.unkept.Wait() }

// ForgetFindings has the findings read again, as after a few seconds.
func (s *Service) ForgetFindings() { s.known.forget() }

// Bare makes a service without a store, to examine actions with.
func Bare() *Service { return &Service{policyService: new(policyService)} }

// HoldExamination keeps every action of an organization from being examined until the
// returned function is called.
func (s *Service) HoldExamination(ctx context.Context, org ledger.OrgID) (release func(), err error) {
	return s.examining.lock(ctx, org)
}

// HoldCompilation keeps every policy set of an organization from being compiled until the
// returned function is called.
func (s *Service) HoldCompilation(ctx context.Context, org ledger.OrgID) (release func(), err error) {
	return s.compiling.lock(ctx, org)
}

// Compiling is how many callers of an organization compile a set or wait for it.
func (s *Service) Compiling(org ledger.OrgID) int { return s.compiling.callers(org) }

// HoldSimulation keeps every simulation of an organization from beginning until the
// returned function is called.
func (s *Service) HoldSimulation(ctx context.Context, org ledger.OrgID) (release func(), err error) {
	return s.simulating.lock(ctx, org)
}

// Simulating is how many callers of an organization simulate or wait for it.
func (s *Service) Simulating(org ledger.OrgID) int { return s.simulating.callers(org) }

func (t *orgLocks) callers(org ledger.OrgID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if queue := t.of[org]; queue != nil {
		return queue.callers
	}
	return 0
}

// Examining is how many callers of an organization examine an action or wait for it.
func (s *Service) Examining(org ledger.OrgID) int { return s.examining.callers(org) }

// PutPolicyAsBefore puts a set as an earlier version did, whose bounds were wider.
func (s *Service) PutPolicyAsBefore(ctx context.Context, caller *Caller, document *PolicyDocument) (*PolicyView, error) {
	format, _ := document.format()
	set, err := policy.ParseStored(document.Text, format)
	if err != nil {
		return nil, err
	}
	return s.putPolicy(ctx, caller, document, set, false)
}

// IgnoreSlowness has batches filled however long planning takes: under the race detector
// everything is slow.
func (s *Service) IgnoreSlowness() {
	s.committer.mu.Lock()
	defer s.committer.mu.Unlock()
	s.committer.queue.slowness = time.Hour
}
