package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// An organization's rules may take up to a tenth of a second per action. The parts that read
// only the action are evaluated before the transaction, which all organizations share, and one
// action of an organization at a time. So an organization can keep one processor busy, but
// delays only its own writes.

// examine evaluates the parts of a policy that read only the action.
func (s *policyService) examine(ctx context.Context, org ledger.OrgID, policy *ledger.Policy, action *ledger.Action) error {
	if policy.Rules == nil || policy.Rules.Examined(action) {
		return nil
	}
	done, err := s.examining.lock(ctx, org)
	if err != nil {
		return visible(err)
	}
	defer done()
	if action.MemoryBytes() > largeAction {
		s.examiningLarge <- struct{}{} // waits without a context: examinations are bounded
		defer func() { <-s.examiningLarge }()
	}
	policy.Rules.Examine(action)
	return nil
}

// Examining an action parses it, which can take a hundred times its size in memory, so few
// large actions are examined at a time.
const (
	largeAction          = 64 << 10 // bytes
	maxLargeExaminations = 2
)

// SlowPolicy is a set in force whose rules exceed the current bounds. An earlier version of the
// service accepted it.
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

// notExamined reports that the policy in force has not examined the action: the policy was
// changed in the meantime, or this process did not know it yet.
type notExamined struct {
	policy *ledger.Policy
}

func (e *notExamined) Error() string {
	return "policy " + e.policy.Version + " has not examined the action"
}

// policyFor returns the policy in force for an organization. It fails with notExamined if the
// policy has not examined the actions to be decided.
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

// commitExamined examines actions and commits the operation that decides them. It repeats both
// if the policy has changed in between.
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
		if err == nil {
			return nil
		}
		var missing *notExamined
		if !errors.As(err, &missing) {
			return err
		}
		policy = missing.policy
	}
	return visible(fmt.Errorf("the policy was changed %d times while an action was examined: %w", maxRetries, store.ErrUnavailable))
}

// orgLocks is a lock for each organization, granted in the order of arrival.
type orgLocks struct {
	mu sync.Mutex // guards of, and the callers of each lock
	of map[ledger.OrgID]*orgLock
}

type orgLock struct {
	callers int           // callers that hold the lock or wait for it; guarded by orgLocks.mu
	held    chan struct{} // holds a value while the lock is held
}

// maxLockWait bounds how long a caller waits for its organization's lock.
const maxLockWait = 20 * time.Second

// lock waits for an organization's lock. Calling unlock releases it.
func (t *orgLocks) lock(ctx context.Context, org ledger.OrgID) (unlock func(), err error) {
	t.mu.Lock()
	l := t.of[org]
	if l == nil {
		l = &orgLock{held: make(chan struct{}, 1)}
		if t.of == nil {
			t.of = make(map[ledger.OrgID]*orgLock)
		}
		t.of[org] = l
	}
	l.callers++
	t.mu.Unlock()
	select {
	case l.held <- struct{}{}: // usually free
	default:
		if err := l.wait(ctx); err != nil {
			t.leave(org, l)
			return nil, err
		}
	}
	return func() {
		<-l.held
		t.leave(org, l)
	}, nil
}

func (l *orgLock) wait(ctx context.Context) error {
	timer := time.NewTimer(maxLockWait)
	defer timer.Stop()
	select {
	case l.held <- struct{}{}:
		return nil
	case <-timer.C:
		return fmt.Errorf("the organization's policy is busy with other actions: %w", store.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
}

// leave removes a caller, and the lock if it was the last one.
func (t *orgLocks) leave(org ledger.OrgID, l *orgLock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.callers--; l.callers == 0 {
		delete(t.of, org)
	}
}

// pacer makes a long evaluation pause regularly, so that other requests are served. On few
// cores the scheduler does not ensure that: while goroutines run, it polls the network only
// every ten milliseconds. A sleep lets it poll at once, and yielding afterwards lets it run
// every goroutine that became ready before it resumes this one. It belongs to one goroutine.
type pacer struct {
	steps int
	last  time.Time // start of the evaluation, or end of the last pause
}

const (
	evaluationSlice = 500 * time.Microsecond // evaluated without a pause
	evaluationPause = 100 * time.Microsecond // between two slices
	stepsPerClock   = 16                     // reading the clock costs as much as a small step
)

// step is called between the steps of a long evaluation.
func (p *pacer) step() {
	if p.steps++; p.steps%stepsPerClock != 0 {
		return
	}
	now := time.Now()
	switch {
	case p.last.IsZero():
		p.last = now
	case now.Sub(p.last) >= evaluationSlice:
		time.Sleep(evaluationPause)
		runtime.Gosched()
		p.last = time.Now()
	}
}

// Simulation is a request to evaluate a candidate set on recorded events.
type Simulation struct {
	Document  PolicyDocument
	Since     ledger.Time // only chains opened since then; 0 for all
	MaxEvents int
}

// The bounds of a simulation.
const (
	maxSimulated      = 100_000 // events
	defaultSimulated  = 10_000  // events
	maxExamples       = 50
	maxSimulatedBytes = 256 << 10
)

// SimulationOf returns the simulation of a set with the default bounds.
func SimulationOf(d *PolicyDocument) *Simulation {
	return &Simulation{Document: *d, MaxEvents: defaultSimulated}
}

// ParseSimulation reads the body of a request to simulate: the candidate set as an object or as
// the text of a document, and the bounds of the simulation.
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

// SimulationReport lists the decisions that would have been different.
type SimulationReport struct {
	PolicyVersion string // of the candidate, as if it were stored next
	Events        int64
	Chains        int64
	Changed       int64
	Complete      bool // all recorded events were evaluated
	Changes       []ChangeCount
	Examples      []ChangedDecision
}

// ChangeCount counts the events whose decision would have changed from one outcome to another.
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

// SimulatePolicy evaluates a candidate set on recorded events, newest chains first, each chain
// from its beginning, under the current settings. The kill switch is ignored. Chains are
// evaluated one after the other, not in the order in which they used shared budgets: decisions
// by budgets stay as recorded, and rules that read a budget see its whole limit.
func (s *policyService) SimulatePolicy(ctx context.Context, caller *Caller, request *Simulation) (*SimulationReport, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	// One at a time: a simulation reads all recorded events, and holds a connection meanwhile.
	done, err := s.simulating.lock(ctx, caller.Org)
	if err != nil {
		return nil, visible(err)
	}
	defer done()
	set, err := s.compileFor(ctx, caller.Org, &request.Document)
	if err != nil {
		return nil, err
	}
	current, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	if err := readBudgets(&current.Settings, set.Budgets(), "", setBudgetFirst); err != nil {
		return nil, err
	}
	org := *current // a record that was read is never modified
	org.Controls.KillSwitch = ledger.KillSwitch{}
	candidate := compiled(ledger.PolicyVersion(org.Controls.Policy.Number+1, set.Canonical()), set).Under(&org.Settings)
	run := &simulation{
		service: s, org: &org, policy: candidate, limit: int64(request.MaxEvents),
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

	// The current chain.
	chain     *ledger.Chain
	state     *ledger.ChainState
	entries   int64                      // recorded entries so far
	addenda   []*ledger.Addendum         // remaining
	approvals map[int64]*ledger.Approval // requested in the simulation, by sequence
}

// begin starts another chain.
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
	r.entries, r.approvals = 0, make(map[int64]*ledger.Approval)
	r.report.Chains++
	return nil
}

// catchUp applies what people did between two events: a decision ends the approval that is
// open in the simulation, too, and a paused chain is resumed.
func (r *simulation) catchUp() error {
	for len(r.addenda) > 0 && r.addenda[0].Position == r.entries+1 {
		entry, err := ledger.DecodeEntry(r.addenda[0].Body)
		if err != nil {
			return err
		}
		r.addenda, r.entries = r.addenda[1:], r.entries+1
		if approval := r.approvals[entry.Sequence]; entry.Kind == ledger.EntryApproval && approval != nil {
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
		r.approvals[event.Sequence] = recorded.Approval
	}
	r.compare(event, recorded.Event)
	return nil
}

func (r *simulation) compare(event *ledger.RecordedEvent, simulated *ledger.Event) {
	from, to := event.Decision.Outcome, simulated.Decision.Outcome
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
			Chain: r.chain.ID, Event: event, Outcome: to, PolicyName: simulated.Decision.PolicyName, Reason: simulated.Decision.Reason,
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
