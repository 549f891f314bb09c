package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// An organization's rules may take up to a tenth of a second on an action. What depends on
// the action alone is evaluated before the transaction, which all organizations share, and
// one action at a time for each organization. So an organization can keep one processor
// busy, but delays only its own writes.

// examine asks a policy what it says of an action alone.
func (s *policyService) examine(ctx context.Context, org ledger.OrgID, policy *ledger.Policy, action *ledger.Action) error {
	if policy.Rules == nil || policy.Rules.Examined(action) {
		return nil
	}
	done, err := s.examining.lock(ctx, org)
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
	largeAction          = 64 << 10 // bytes
	maxLargeExaminations = 2
)

// SlowPolicy is a set in force that was put under the bounds of an earlier version.
type SlowPolicy struct {
	Organization string // slug
	Rules        []string
}

// SlowPolicies lists the sets in force whose rules exceed the current bounds.
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

// notExamined says that the policy in force has not examined the action: it was changed in
// the meantime, or this process did not know it yet.
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
	b.service.policyCache.noteInForce(org.ID, policy)
	for _, action := range actions {
		if !policy.Rules.Examined(action) {
			return nil, &notExamined{policy}
		}
	}
	return policy, nil
}

// commitExamined commits an operation that decides actions, after examining them. If that
// was by a policy that is no longer in force, it repeats both.
func (s *policyService) commitExamined(ctx context.Context, op operation, org ledger.OrgID, actions ...*ledger.Action) error {
	policy := s.policyCache.inForce(org)
	for range maxRetries {
		for _, action := range actions {
			if policy == nil {
				break
			}
			if err := s.examine(ctx, org, policy, action); err != nil {
				return err
			}
		}
		err := s.commitLoaded(ctx, op)
		var missing *notExamined
		if !errors.As(err, &missing) {
			return err
		}
		policy = missing.policy
	}
	return visible(fmt.Errorf("the policy was changed %d times while an action was examined: %w", maxRetries, store.ErrUnavailable))
}

// orgLocks is a lock for each organization, which is granted in the order of arrival.
type orgLocks struct {
	mu sync.Mutex // guards of
	of map[ledger.OrgID]*orgLock
}

type orgLock struct {
	callers int           // that wait or have their turn; guarded by turns.mu
	free    chan struct{} // holds a value while someone has their turn
}

// maxTurnWait bounds how long a caller waits for the others of its organization.
const maxTurnWait = 20 * time.Second

// lock waits for an organization's lock, which is held until done is called.
func (t *orgLocks) lock(ctx context.Context, org ledger.OrgID) (done func(), err error) {
	t.mu.Lock()
	queue := t.of[org]
	if queue == nil {
		queue = &orgLock{free: make(chan struct{}, 1)}
		if t.of == nil {
			t.of = make(map[ledger.OrgID]*orgLock)
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

func (q *orgLock) wait(ctx context.Context) error {
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

func (t *orgLocks) leave(org ledger.OrgID, queue *orgLock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if queue.callers--; queue.callers == 0 {
		delete(t.of, org)
	}
}

// pacer makes a long evaluation sleep now and then, so that other requests are served. On
// few cores the scheduler does not ensure that: while something runs, it polls for new
// requests every ten milliseconds only, and yielding does not change that. It is used by one
// goroutine.
type pacer struct {
	steps int
	last  time.Time // when it began, or last paused
}

const (
	stretch      = time.Millisecond       // that is evaluated at a time
	breather     = 100 * time.Microsecond // between two stretches
	stepsToClock = 16                     // a look at the clock costs as much as a small step
)

// step is called between two steps of something that may take long.
func (p *pacer) step() {
	if p.steps++; p.steps%stepsToClock != 0 {
		return
	}
	now := time.Now()
	switch {
	case p.last.IsZero():
		p.last = now
	case now.Sub(p.last) >= stretch:
		time.Sleep(breather)
		p.last = time.Now()
	}
}

// Simulation asks what a candidate set would have decided about what was
// recorded.
type Simulation struct {
	Document  PolicyDocument
	Since     ledger.Time // of the chains' opening; 0: all
	MaxEvents int
}

// The bounds of a simulation.
const (
	maxSimulated      = 100_000
	defaultSimulated  = 10_000
	maxExamples       = 50
	maxSimulatedBytes = 256 << 10
)

// ParseSimulation reads the body of a request to simulate: the candidate set as
// an object or as the text of a document, and how far to look.
func ParseSimulation(v canon.Value) (*Simulation, error) {
	f := canon.NewFields(v)
	s := &Simulation{MaxEvents: int(f.Int("max_events", 1, maxSimulated))}
	if s.MaxEvents == 0 {
		s.MaxEvents = defaultSimulated
	}
	if since := ledger.ReadTime(f, "since"); since != nil {
		s.Since = *since
	}
	candidate, _ := v.Get("policy")
	f.Ignore("policy")
	switch candidate.Kind() {
	case canon.String:
		s.Document = PolicyDocument{Text: []byte(candidate.Str()), YAML: true}
	case canon.Object:
		s.Document = PolicyDocument{Text: candidate.Append(nil)}
	default:
		f.Fault("policy", "is required: the candidate set as an object, or as a string of YAML")
	}
	if len(s.Document.Text) > maxSimulatedBytes {
		f.Fault("policy", "must have at most %d bytes", maxSimulatedBytes)
	}
	return s, f.Err()
}

// SimulationReport says what would have been decided differently.
type SimulationReport struct {
	PolicyVersion string // the candidate's, as if it were put next
	Events        int64
	Chains        int64
	Changed       int64
	Complete      bool // every recorded event was looked at
	Changes       []ChangeCount
	Examples      []ChangedDecision
}

// ChangeCount counts the events whose decision would have changed in one way.
type ChangeCount struct {
	From, To ledger.Outcome
	Count    int64
}

// ChangedDecision is one event that would have been decided differently.
type ChangedDecision struct {
	Chain      ledger.ChainID
	Event      *ledger.RecordedEvent
	Outcome    ledger.Outcome
	PolicyName string
	Reason     string
}

var errEnough = errors.New("enough")

// SimulatePolicy runs a candidate set over recorded events, newest chains first, each chain
// from its beginning, under the current settings. The kill switch is ignored. Chains are
// evaluated one by one, and not in the order in which they shared budgets: decisions by
// budgets stay as recorded, and rules that read a budget find all of it left.
func (s *policyService) SimulatePolicy(ctx context.Context, caller *Caller, request *Simulation) (*SimulationReport, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	// One at a time: each reads all that was recorded, and keeps a connection for as long.
	done, err := s.simulating.lock(ctx, caller.Org)
	if err != nil {
		return nil, visible(err)
	}
	defer done()
	set, err := s.compileFor(ctx, caller.Org, &request.Document)
	if err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	if err := readBudgets(&org.Settings, set.Budgets(), "", setBudgetFirst); err != nil {
		return nil, err
	}
	org.Controls.KillSwitch = ledger.KillSwitch{}
	candidate := compiled(ledger.PolicyVersion(org.Controls.Policy.Number+1, set.Canonical()), set).Under(&org.Settings)
	run := &simulation{
		service: s, org: org, policy: candidate, limit: int64(request.MaxEvents),
		report: &SimulationReport{PolicyVersion: candidate.Version, Complete: true},
	}
	err = s.store.ScanEvents(ctx, caller.Org, request.Since, func(record *store.ChainRecord, stored *ledger.StoredEvent) error {
		return run.visit(ctx, record, stored)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, visible(err)
	}
	return run.report, nil
}

type simulation struct {
	service *policyService
	org     *ledger.Organization
	policy  *ledger.Policy
	limit   int64
	report  *SimulationReport

	chain   *ledger.Chain
	state   *ledger.ChainState
	entries int64              // of the chain, as it was recorded
	addenda []*ledger.Addendum // of the chain, those still to come
	asked   map[int64]*ledger.Approval
}

// begin turns to another chain.
func (r *simulation) begin(ctx context.Context, record *store.ChainRecord) (err error) {
	if r.chain, err = ledger.DecodeChain(record.Body); err != nil {
		return err
	}
	if r.addenda, err = r.service.store.Addenda(ctx, record.ID, 1, math.MaxInt64); err != nil {
		return err
	}
	r.state = ledger.NewChainState(r.chain.StartedAt, r.policy.Version)
	if r.chain.Predecessor() != nil {
		state, err := ledger.DecodeChainState(record.State, record.MAC, r.service.keys, r.chain)
		if err != nil {
			return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
		}
		r.state.Carried = state.Carried
	}
	r.entries, r.asked = 0, make(map[int64]*ledger.Approval)
	r.report.Chains++
	return nil
}

// catchUp does what people did between two events: a decision settles what waits
// here too, and a paused chain is resumed.
func (r *simulation) catchUp() error {
	for len(r.addenda) > 0 && r.addenda[0].Position == r.entries+1 {
		entry, err := ledger.DecodeEntry(r.addenda[0].Body)
		if err != nil {
			return err
		}
		r.addenda, r.entries = r.addenda[1:], r.entries+1
		if approval := r.asked[entry.Sequence]; entry.Kind == ledger.EntryApproval && approval != nil {
			approval.Status = entry.ApprovalStatus
			r.state.Settle(approval, entry.RecordedAt)
		}
		if entry.Kind == ledger.EntryResume && r.state.Status == ledger.ChainAutoPaused {
			if _, err := r.state.Resume(r.chain.ID, entry.Event, "", entry.RecordedAt); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *simulation) visit(ctx context.Context, record *store.ChainRecord, stored *ledger.StoredEvent) error {
	if r.report.Events >= r.limit {
		r.report.Complete = false
		return errEnough
	}
	if r.chain == nil || r.chain.ID != record.ID {
		if err := r.begin(ctx, record); err != nil {
			return err
		}
	}
	if err := r.catchUp(); err != nil {
		return err
	}
	r.entries++
	event, err := r.service.store.ReadEvent(r.org.ID, stored)
	if err != nil {
		return err
	}
	if !event.Carries(stored) {
		return fmt.Errorf("payload of event %d: %w", event.Sequence, ledger.ErrStateTampered)
	}
	r.report.Events++
	action, err := ledger.Reconstruct(event, stored.Payload)
	if err != nil {
		return err
	}
	r.service.price(action)
	if err := r.service.examine(ctx, r.org.ID, r.policy, action); err != nil {
		return err
	}
	recorded := r.state.Record(&ledger.Recording{
		Keys: r.service.keys, Policy: r.policy, Org: r.org, Chain: r.chain, Action: action,
		Now: event.RecordedAt, NewApproval: func() ledger.ApprovalID { return ledger.ApprovalID{} },
	})
	if recorded.Approval != nil {
		r.asked[event.Sequence] = recorded.Approval
	}
	r.compare(event, recorded.Event)
	return nil
}

func (r *simulation) compare(event *ledger.RecordedEvent, anew *ledger.Event) {
	from, to := event.Decision.Outcome, anew.Decision.Outcome
	if by := event.Decision.BudgetOutcome(); by.StricterThan(to) {
		to = by
	}
	if from == to || event.Decision.KillSwitchActive {
		return
	}
	r.report.Changed++
	r.count(from, to)
	if len(r.report.Examples) < maxExamples {
		r.report.Examples = append(r.report.Examples, ChangedDecision{
			Chain: r.chain.ID, Event: event, Outcome: to, PolicyName: anew.Decision.PolicyName, Reason: anew.Decision.Reason,
		})
	}
}

func (r *simulation) count(from, to ledger.Outcome) {
	for i := range r.report.Changes {
		if c := &r.report.Changes[i]; c.From == from && c.To == to {
			c.Count++
			return
		}
	}
	r.report.Changes = append(r.report.Changes, ChangeCount{From: from, To: to, Count: 1})
}
