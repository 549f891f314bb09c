package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// An organization's rules may take long on an action: up to a tenth of a second, by
// their bounds. What they say of the action alone is found out before the transaction
// in which everyone's writes are, one action at a time for each organization. So an
// organization can keep one processor busy, and delays nobody's writes but its own.

// examine asks a policy what it says of an action alone.
func (s *Service) examine(ctx context.Context, org ledger.OrgID, policy *ledger.Policy, action *ledger.Action) error {
	if policy.Rules == nil || policy.Rules.Examined(action) {
		return nil
	}
	done, err := s.examining.turn(ctx, org)
	if err != nil {
		return visible(err)
	}
	defer done()
	if action.Held() > largeAction {
		s.examiningLarge <- struct{}{} // for as long as others take to examine theirs
		defer func() { <-s.examiningLarge }()
	}
	policy.Rules.Examine(action)
	return nil
}

// Large actions are parsed to be examined, which can take a hundred times their size in
// memory, so few are at a time.
const (
	largeAction = 64 << 10 // bytes
	mostLarge   = 2
)

// SlowPolicy is a set in force that was put under the bounds of an earlier version.
type SlowPolicy struct {
	Organization string // slug
	Rules        []string
}

// SlowPolicies lists the sets in force with rules that could not be put any more.
func (o *Operator) SlowPolicies(ctx context.Context) ([]SlowPolicy, error) {
	orgs, err := o.service.organizations(ctx)
	if err != nil {
		return nil, err
	}
	var slow []SlowPolicy
	for _, org := range orgs {
		policy, err := o.service.policyInForce(ctx, org)
		if errors.Is(err, ledger.ErrStateTampered) {
			continue // it decides nothing, and the audit names it
		}
		if err != nil {
			return nil, visible(err)
		}
		if rules, ok := policy.Rules.(ruleSet); ok && len(rules.set.Slow()) > 0 {
			slow = append(slow, SlowPolicy{org.Slug, rules.set.Slow()})
		}
	}
	return slow, nil
}

// notExamined says that an action is to be decided under a policy that has not examined
// it: the policy was changed meanwhile, or this process did not know it yet.
type notExamined struct {
	policy *ledger.Policy
}

func (e *notExamined) Error() string {
	return "policy " + e.policy.Version + " has not examined the action"
}

// policyFor is the policy in force for an organization, once it has examined the
// actions that are about to be decided.
func (b *batch) policyFor(org *ledger.Organization, actions ...*ledger.Action) (*ledger.Policy, error) {
	policy, err := b.policy(org)
	if err != nil || policy.Rules == nil || org.Controls.KillSwitch.Active {
		return policy, err
	}
	b.service.policies.noteInForce(org.ID, policy)
	for _, action := range actions {
		if !policy.Rules.Examined(action) {
			return nil, &notExamined{policy}
		}
	}
	return policy, nil
}

// commitExamined commits an operation that decides actions, which it has examined
// before. Where that was by another policy than the one in force, it begins anew.
func (s *Service) commitExamined(ctx context.Context, op operation, org ledger.OrgID, actions ...*ledger.Action) error {
	policy := s.policies.inForce(org)
	for range mostAgain {
		for _, action := range actions {
			if policy == nil {
				break
			}
			if err := s.examine(ctx, org, policy, action); err != nil {
				return err
			}
		}
		err := s.commitWhole(ctx, op)
		var missing *notExamined
		if !errors.As(err, &missing) {
			return err
		}
		policy = missing.policy
	}
	return visible(fmt.Errorf("the policy was changed %d times while an action was examined: %w", mostAgain, store.ErrUnavailable))
}

// turns lets one caller of each organization go on at a time, in the order in which
// they came.
type turns struct {
	mu sync.Mutex
	of map[ledger.OrgID]*turnQueue
}

type turnQueue struct {
	callers int           // that wait or have their turn; guarded by turns.mu
	free    chan struct{} // holds a value while someone has their turn
}

// maxTurnWait bounds how long a caller waits for the others of its organization.
const maxTurnWait = 20 * time.Second

// turn waits for a turn, which lasts until done is called.
func (t *turns) turn(ctx context.Context, org ledger.OrgID) (done func(), err error) {
	t.mu.Lock()
	queue := t.of[org]
	if queue == nil {
		queue = &turnQueue{free: make(chan struct{}, 1)}
		if t.of == nil {
			t.of = make(map[ledger.OrgID]*turnQueue)
		}
		t.of[org] = queue
	}
	queue.callers++
	t.mu.Unlock()
	select {
	case queue.free <- struct{}{}: // nobody has it, as almost always
	default:
		if err := queue.wait(ctx); err != nil {
			t.leave(org, queue)
			return nil, err
		}
	}
	return func() {
		<-queue.free
		t.leave(org, queue)
	}, nil
}

func (q *turnQueue) wait(ctx context.Context) error {
	timer := time.NewTimer(maxTurnWait)
	defer timer.Stop()
	select {
	case q.free <- struct{}{}:
		return nil
	case <-timer.C:
		return fmt.Errorf("the organization's policy is busy with other actions: %w", store.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
}

func (t *turns) leave(org ledger.OrgID, queue *turnQueue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if queue.callers--; queue.callers == 0 {
		delete(t.of, org)
	}
}
