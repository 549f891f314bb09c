package service

import (
	"cmp"
	"context"
	"errors"
	"time"

	"countersign/internal/cache"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// recordService records events and their outcomes in chains, and seals chains.
type recordService struct {
	*shared
	budgets   *budgetService
	chains    *chainService
	findings  *findingService
	policies  *policyService
	receipts  *receiptService
	entryLogs *cache.Cache[ledger.ChainID, *entryLog] // of chains in use
}

// Recorded is the answer to a recorded action: the decision, and the chain's metrics after it.
type Recorded struct {
	Event   *ledger.Event
	Metrics ledger.Metrics
	// FastPath reports whether the client may still decide harmless actions itself.
	FastPath bool
	// ContinuedBy is the chain in which to continue, if it is not the requested one; nil
	// otherwise.
	ContinuedBy *ledger.ChainID
	Terms       Terms
}

// RecordEvent decides an action and records it. An action with an idempotency key is recorded
// once, however often it is sent.
func (s *recordService) RecordEvent(ctx context.Context, caller *Caller, chain ledger.ChainID, action *ledger.Action) (*Recorded, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	s.price(action)
	op := &recordEvent{caller: caller, line: s.chains.lineage(chain), action: action, counters: s.budgets.expectCounters(caller, chain, action)}
	err := s.chains.retryLineage(op.line, func() error { return s.policies.commitExamined(ctx, op, caller.Org, action) })
	if err != nil {
		return nil, err
	}
	return &op.recorded, nil
}

// ReportEvents records actions that a client decided itself, in order. Each has its own result:
// one that cannot be recorded does not block the others.
func (s *recordService) ReportEvents(ctx context.Context, caller *Caller, chain ledger.ChainID, actions []*ledger.Action) (*Report, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	op := &reportEvents{line: s.chains.lineage(chain), until: len(actions)}
	for _, action := range actions {
		s.price(action)
		op.events = append(op.events, &recordEvent{caller: caller, line: op.line, action: action, counters: s.budgets.expectCounters(caller, chain, action)})
	}
	err := s.chains.retryLineage(op.line, func() error {
		for !op.done() {
			if err := s.policies.commitExamined(ctx, op, caller.Org, actions[op.from:]...); err != nil {
				return err
			}
			op.advance()
		}
		return nil
	})
	switch {
	case err != nil && op.before.stored > 0 && errors.Is(err, store.ErrUnavailable):
		return nil, &cause{fault.Errorf(fault.CodeOutcomeUnknown, "a part of the report is stored: send the same request again"), err}
	case err == nil && op.stored == 0:
		return nil, op.first // nothing was recorded: the request as a whole is refused
	case err != nil:
		return nil, err
	}
	return &op.report, nil
}

// Report is the answer to a list of actions that a client decided itself.
type Report struct {
	Results []Reported // one for each action, in order
	// ContinuedBy is as in Recorded.
	ContinuedBy *ledger.ChainID
	Terms       Terms
}

// Reported is the result of one reported action.
type Reported struct {
	*Recorded
	Err error // why it was not recorded; nil if it was
}

// reportEvents records as many events of a report as can be planned in a short time, and is
// committed again for the rest: all operations of a transaction wait for them.
type reportEvents struct {
	line   *lineage
	events []*recordEvent
	from   int    // index of the first event that is not committed
	until  int    // index after the last event of the next attempt
	report Report // results of the committed events, and of the last plan
	stored int    // number of events recorded
	first  error  // the first error of an event

	before progress // after the last commit
}

// progress is the part of the state that a plan changes. A plan starts from the last committed
// one.
type progress struct {
	stored int
	first  error
}

// done reports whether all events are committed.
func (o *reportEvents) done() bool { return o.from == len(o.events) }

// advance moves past the committed events. The next attempt takes twice as many as the last one
// had time for.
func (o *reportEvents) advance() {
	const minEvents = 8
	committed := len(o.report.Results)
	o.until = min(committed+max(2*(committed-o.from), minEvents), len(o.events))
	o.from = committed
	o.before = progress{o.stored, o.first}
}

// next returns the events of the next attempt.
func (o *reportEvents) next() []*recordEvent { return o.events[o.from:o.until] }

func (o *reportEvents) tenant() ledger.OrgID { return o.events[0].caller.Org }

func (o *reportEvents) size() (total int) {
	for _, event := range o.events[o.from:] {
		total += event.size()
	}
	return total
}

func (o *reportEvents) need(needs *store.Needs) {
	for _, event := range o.next() {
		event.need(needs)
	}
}

func (o *reportEvents) plan(b *batch) error {
	began := time.Now()
	o.report.Results = o.report.Results[:o.from] // drop those of a plan that was not committed
	o.stored, o.first = o.before.stored, o.before.first
	// Checked before anything is recorded: missing chains of the lineage cause a retry.
	caller := o.events[0].caller
	if err := b.confirm(caller); err != nil {
		return err
	}
	live, err := o.line.newest(b, caller)
	if err != nil {
		return err
	}
	until, err := o.standings(b, live, began)
	if err != nil {
		return err
	}
	if err := o.examined(b, caller); err != nil {
		return err
	}
	for _, event := range o.events[o.from:until] {
		if len(o.report.Results) > o.from && time.Since(began) > maxPlanning {
			break
		}
		err := event.plan(b)
		if err != nil {
			o.first = cmp.Or(o.first, err)
		} else {
			o.stored++
		}
		o.report.Results = append(o.report.Results, Reported{&event.recorded, visible(err)})
	}
	if len(o.report.Results) < len(o.events) || o.stored == 0 {
		return nil
	}
	return o.grant(b)
}

// examined fails if the policy in force has not examined all actions of the attempt.
func (o *reportEvents) examined(b *batch, caller *Caller) error {
	org, err := b.org(caller.Org)
	if err != nil {
		return err
	}
	actions := make([]*ledger.Action, 0, len(o.next()))
	for _, event := range o.next() {
		actions = append(actions, event.action)
	}
	_, err = b.policyFor(org, actions...)
	return err
}

// standings checks that the counters of the events are loaded, and returns the index after the
// last event that it checked. It takes at most half of the planning time.
func (o *reportEvents) standings(b *batch, live *liveChain, began time.Time) (until int, err error) {
	org, err := b.org(o.events[0].caller.Org)
	if err != nil || len(org.Settings.Budgets) == 0 {
		return o.until, err
	}
	policy, err := b.policy(org)
	if err != nil {
		return 0, err
	}
	var missing error
	for until = o.from; until < o.until && (until == o.from || time.Since(began) < maxPlanning/2); until++ {
		if _, err := o.events[until].standings(b, live, org, policy); errors.Is(err, errNotLoaded) {
			missing = err // continue, so that the next attempt names all counters
		}
	}
	return until, missing
}

// grant sets the terms of the whole report, once all events are counted.
func (o *reportEvents) grant(b *batch) error {
	caller := o.events[0].caller
	live, err := o.line.newest(b, caller)
	if err != nil {
		return err
	}
	o.report.ContinuedBy = o.line.continuedBy(live)
	org, err := b.org(caller.Org)
	if err != nil {
		return err
	}
	policy, err := b.policy(org)
	if err != nil {
		return err
	}
	o.report.Terms = b.terms(caller, org, policy, live.chain, live.state)
	return nil
}

// price sets the cost of a model call.
func (s *shared) price(action *ledger.Action) {
	f := &action.Facts
	if f.Model == "" {
		return
	}
	if cost, ok := s.prices.Cost(f.Model, f.InputTokens, f.OutputTokens); ok {
		money := ledger.MoneyFrom(cost)
		action.Cost = &money
	}
}

type recordEvent struct {
	caller     *Caller
	line       *lineage
	action     *ledger.Action
	approvalID *ledger.ApprovalID // of the event that this repeats; nil until it is known
	counters   counting
	recorded   Recorded // result
}

func (o *recordEvent) ref(chain ledger.ChainID) store.EventRef {
	return store.EventRef{Chain: chain, Key: o.action.IdempotencyKey}
}

func (o *recordEvent) tenant() ledger.OrgID { return o.caller.Org }

func (o *recordEvent) size() int {
	return o.action.MemoryBytes() + smallOperation
}

func (o *recordEvent) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	o.line.need(needs)
	if o.action.IdempotencyKey != "" {
		for chain := range o.line.all() {
			needs.Repeats = append(needs.Repeats, o.ref(chain))
		}
	}
	if o.approvalID != nil {
		needs.Approvals = append(needs.Approvals, *o.approvalID)
	}
	o.counters.need(needs)
}

// standings returns the standings of budgets before the action.
func (o *recordEvent) standings(b *batch, live *liveChain, org *ledger.Organization, policy *ledger.Policy) ([]ledger.BudgetStanding, error) {
	return b.standings(&o.counters, org, policy, live, o.subject(live), o.action)
}

func (o *recordEvent) subject(live *liveChain) *ledger.Subject {
	subject := o.caller.subject(o.action.AgentName)
	subject.Environment = live.chain.Environment
	return subject
}

func (o *recordEvent) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := o.line.newest(b, o.caller)
	if err != nil {
		return err
	}
	// A marker of dropped events, which occurs only in reports, belongs to no agent.
	if o.action.Source == "" || o.action.ActionType != ledger.ActionTypeGap {
		if err := b.mayRecord(o.caller, o.action.AgentName); err != nil {
			return err
		}
	}
	org, err := b.org(o.caller.Org)
	if err != nil {
		return err
	}
	policy, err := b.policyFor(org, o.action)
	if err != nil {
		return err
	}
	o.action.Bind(b.service.keys, live.chain)
	if earlier := o.earlier(b, live); earlier != nil {
		return o.repeat(b, live, org, policy, earlier)
	}
	standings, err := o.standings(b, live, org, policy)
	if err != nil {
		return err
	}
	if live.state.Abandoned {
		if live, err = b.openSuccessor(live, policy); err != nil {
			return err
		}
	}
	if err := live.state.Accepts(o.action); err != nil {
		return err
	}
	o.record(b, live, org, policy, standings)
	return nil
}

// earlier returns the event that was recorded before with the action's idempotency key, in the
// chain or in one that it continues; nil for none.
func (o *recordEvent) earlier(b *batch, live *liveChain) *ledger.StoredEvent {
	if o.action.IdempotencyKey == "" {
		return nil
	}
	if earlier := b.loaded.Repeats[o.ref(live.chain.ID)]; earlier != nil {
		return earlier
	}
	for _, chain := range live.chain.Continues {
		if earlier := b.loaded.Repeats[o.ref(chain)]; earlier != nil {
			return earlier
		}
	}
	return nil
}

func (o *recordEvent) record(b *batch, live *liveChain, org *ledger.Organization, policy *ledger.Policy, standings []ledger.BudgetStanding) {
	recorded := live.state.Record(&ledger.Recording{
		Keys: b.service.keys, Policy: policy, Org: org, Chain: live.chain, Action: o.action, By: o.caller.Key,
		Now: b.now, Random: b.service.timedRandom(), NewApproval: b.service.approvalID, Standings: standings,
	})
	live.changed = true
	b.countEvent(live, recorded)
	b.changes.NewEvents = append(b.changes.NewEvents, recorded.Stored)
	b.outcomes = append(b.outcomes, recorded.Event.Decision.Outcome)
	b.overBudget = append(b.overBudget, recorded.Event.Decision.Over...)
	if o.action.IdempotencyKey != "" {
		b.loaded.Repeats[o.ref(live.chain.ID)] = recorded.Stored
	}
	if recorded.Approval != nil {
		b.requestApproval(live, recorded.Approval, org)
	}
	if recorded.Paused {
		b.queueNotice(org, notify.Notice{
			Kind: notify.ChainAutoPaused, Chain: live.chain.Name, Environment: live.chain.Environment, ChainID: live.chain.ID.String(),
			Agent: o.action.AgentName, Action: o.action.ActionName, Amount: o.action.Facts.Amount,
			Policy: recorded.Event.Decision.PolicyName, Reason: recorded.Event.Decision.Reason, Rules: recorded.Event.Decision.Matched,
		}, live.chain.ID.String())
	}
	answered := recorded.Event
	if o.action.Source != "" {
		// An action under a lease counts as allowed even in a paused chain. The client must
		// not take that for the end of the pause.
		answered = (&ledger.RecordedEvent{Event: *answered}).AnswerReported(org, live.state)
	}
	o.answer(b, live, org, policy, answered)
}

// answer sets the result: the decision, and what the client may decide itself afterwards.
func (o *recordEvent) answer(b *batch, live *liveChain, org *ledger.Organization, policy *ledger.Policy, event *ledger.Event) {
	o.recorded = Recorded{
		Event: event, Metrics: live.state.Metrics, FastPath: live.chain.FastPath && policy.FastPath, ContinuedBy: o.line.continuedBy(live),
	}
	if !event.Decision.Outcome.StricterThan(ledger.AllowWithFlag) {
		b.service.noteGrant(org.ID)
	}
	if o.action.Source == "" { // a report has its own terms
		o.recorded.Terms = b.terms(o.caller, org, policy, live.chain, live.state)
	}
}

// repeat sets the result for an action that was recorded before. The record must be authentic:
// an edit must not turn a denial into an allow. An allowed action is decided again by the
// current rules, because the client that repeats the request may not have begun yet.
func (o *recordEvent) repeat(b *batch, live *liveChain, org *ledger.Organization, policy *ledger.Policy, earlier *ledger.StoredEvent) error {
	event, err := b.service.store.ReadEvent(org.ID, earlier)
	if err != nil {
		return err
	}
	if !event.Repeats(o.action) {
		return fault.Errorf(fault.CodeIdempotencyConflict, "this idempotency_key recorded another action already: use a new key for a new action")
	}
	b.service.chainPolls.note(live.chain, live.state.LastAt, b.now)
	if o.action.Source != "" { // the client has executed it
		o.answer(b, live, org, policy, event.AnswerReported(org, live.state))
		return nil
	}
	recorded, err := o.line.member(b, live, event.Chain)
	if err != nil {
		return err
	}
	now := ledger.Later(b.now, live.state.LastAt)
	standings, standErr := b.standAgain(&o.counters, org, policy, o.subject(live), o.action, event.Uses, now)
	approval, err := o.approval(b, event) // called in any case, so that a retry names both needs
	if err = cmp.Or(standErr, err); err != nil {
		return err
	}
	question := &ledger.Question{
		Org: org, Chain: live.chain, State: live.state, Action: o.action, Now: now, Recorded: recorded.state, Standings: standings,
	}
	o.answer(b, live, org, policy, event.AnswerRepeated(policy, question, approval))
	return nil
}

// approval returns the approval of the repeated event; nil for none.
func (o *recordEvent) approval(b *batch, event *ledger.RecordedEvent) (*ledger.Approval, error) {
	id := event.Approval
	if id == (ledger.ApprovalID{}) {
		return nil, nil
	}
	if o.approvalID == nil && b.approvals[id] == nil && b.loaded.Approvals[id] == nil {
		o.approvalID = &id
		return nil, errNotLoaded
	}
	return b.approvalOf(event)
}
