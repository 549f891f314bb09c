package service

import (
	"context"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Recorded is the answer to a recorded action: the decision, and where the
// chain stands after it.
type Recorded struct {
	Event   *ledger.Event
	Metrics ledger.Metrics
}

// RecordEvent decides an action and records it. Under an idempotency key the
// same action is recorded once however often it is sent.
func (s *Service) RecordEvent(ctx context.Context, caller *Caller, chain ledger.ChainID, action *ledger.Action) (*Recorded, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	op := &recordEvent{caller: caller, chain: chain, action: action}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	return &op.recorded, nil
}

type recordEvent struct {
	caller   *Caller
	chain    ledger.ChainID
	action   *ledger.Action
	recorded Recorded
}

func (o *recordEvent) ref() store.EventRef {
	return store.EventRef{Chain: o.chain, Key: o.action.IdempotencyKey}
}

func (o *recordEvent) size() int {
	return len(o.action.Payload) + len(o.action.Metadata) + smallOperation
}

func (o *recordEvent) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Chains = append(needs.Chains, o.chain)
	if o.action.IdempotencyKey != "" {
		needs.Repeats = append(needs.Repeats, o.ref())
	}
}

func (o *recordEvent) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := b.chain(o.caller, o.chain)
	if err != nil {
		return err
	}
	if o.action.IdempotencyKey != "" {
		if earlier := b.loaded.Repeats[o.ref()]; earlier != nil {
			return o.repeat(live, earlier)
		}
	}
	if err := live.state.Accepts(o.action); err != nil {
		return err
	}
	event, body := live.state.Record(ledger.BuiltinPolicy, live.chain, o.action, b.now, b.service.timedRandom())
	live.changed = true
	if live.summary != nil {
		live.summary.Count(event)
	}
	stored := &ledger.StoredEvent{
		Chain: o.chain, Sequence: event.Sequence, IdempotencyKey: o.action.IdempotencyKey,
		Body: body, Payload: o.action.Payload,
	}
	b.changes.NewEvents = append(b.changes.NewEvents, stored)
	if o.action.IdempotencyKey != "" {
		b.loaded.Repeats[o.ref()] = stored
	}
	o.recorded = Recorded{Event: event, Metrics: live.state.Metrics}
	return nil
}

func (o *recordEvent) repeat(live *liveChain, earlier *ledger.StoredEvent) error {
	event, err := ledger.DecodeEvent(earlier.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	if !event.Repeats(o.action) {
		return ledger.Errorf(ledger.CodeIdempotencyConflict, "this idempotency_key recorded another action already: use a new key for a new action")
	}
	o.recorded = Recorded{Event: &event.Event, Metrics: live.state.Metrics}
	return nil
}

// EventView is a stored event with what was recorded about it later.
type EventView struct {
	*ledger.StoredEvent
	Outcome *ledger.OutcomeReport // nil where none was reported
}

// Events lists a chain's events by sequence.
func (s *Service) Events(ctx context.Context, caller *Caller, chain ledger.ChainID, after int64, limit int) ([]*EventView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	if _, err := s.ownChain(ctx, caller, chain); err != nil {
		return nil, err
	}
	events, err := s.store.Events(ctx, chain, after, limit)
	if err != nil {
		return nil, visible(err)
	}
	return s.withOutcomes(ctx, chain, events)
}

func (s *Service) withOutcomes(ctx context.Context, chain ledger.ChainID, events []*ledger.StoredEvent) ([]*EventView, error) {
	views := make([]*EventView, 0, len(events))
	if len(events) == 0 {
		return views, nil
	}
	bySequence := make(map[int64]*EventView, len(events))
	for _, event := range events {
		view := &EventView{StoredEvent: event}
		bySequence[event.Sequence] = view
		views = append(views, view)
	}
	addenda, err := s.store.Addenda(ctx, chain, events[0].Sequence, events[len(events)-1].Sequence)
	if err != nil {
		return nil, visible(err)
	}
	for _, addendum := range addenda {
		report, err := ledger.DecodeOutcomeReport(addendum.Body)
		if err != nil {
			return nil, visible(fmt.Errorf("%w: %w", ledger.ErrStateTampered, err))
		}
		if view := bySequence[addendum.Sequence]; view != nil {
			view.Outcome = report
		}
	}
	return views, nil
}

// ReportOutcome records what became of an allowed action.
func (s *Service) ReportOutcome(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID, report *ledger.OutcomeReport) (*ledger.OutcomeReport, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	event, err := s.eventByID(ctx, chain, id)
	if err != nil {
		return nil, err
	}
	op := &reportOutcome{caller: caller, event: event, report: *report}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	return op.result, nil
}

// eventByID reads an event's facts, which never change, before the transaction
// that needs them. Whether the caller may see it is judged there.
func (s *Service) eventByID(ctx context.Context, chain ledger.ChainID, id ledger.EventID) (*ledger.RecordedEvent, error) {
	if id.Sequence() == 0 {
		return nil, ledger.ErrNotFound
	}
	events, err := s.store.Events(ctx, chain, id.Sequence()-1, 1)
	if err != nil {
		return nil, visible(err)
	}
	if len(events) == 0 {
		return nil, ledger.ErrNotFound
	}
	event, err := ledger.DecodeEvent(events[0].Body)
	if err != nil {
		return nil, visible(fmt.Errorf("%w: %w", ledger.ErrStateTampered, err))
	}
	if event.ID != id {
		return nil, ledger.ErrNotFound
	}
	return event, nil
}

type reportOutcome struct {
	caller *Caller
	event  *ledger.RecordedEvent
	report ledger.OutcomeReport
	result *ledger.OutcomeReport
}

func (o *reportOutcome) at() store.EventAt {
	return store.EventAt{Chain: o.event.Chain, Sequence: o.event.Sequence}
}

func (o *reportOutcome) size() int { return smallOperation }

func (o *reportOutcome) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Chains = append(needs.Chains, o.event.Chain)
	needs.Addenda = append(needs.Addenda, o.at())
}

func (o *reportOutcome) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := b.chain(o.caller, o.event.Chain)
	if err != nil {
		return err
	}
	var earlier []*ledger.OutcomeReport
	for _, addendum := range b.loaded.Addenda[o.at()] {
		report, err := ledger.DecodeOutcomeReport(addendum.Body)
		if err != nil {
			return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
		}
		earlier = append(earlier, report)
	}
	report, addendum, err := live.state.ReportOutcome(o.event, earlier, o.report, b.now)
	if err != nil {
		return err
	}
	o.result = report
	if addendum != nil {
		live.changed = true
		b.changes.NewAddenda = append(b.changes.NewAddenda, addendum)
		b.loaded.Addenda[o.at()] = append(b.loaded.Addenda[o.at()], addendum)
	}
	return nil
}
