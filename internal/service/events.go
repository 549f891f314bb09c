package service

import (
	"context"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// EventView is a stored event with what was recorded about it later.
type EventView struct {
	*ledger.StoredEvent
	Outcome  *ledger.Entry // nil where none was reported
	Approval *ledger.Entry // how the wait for a person ended, nil where it has not
	// Entries are all of it as the running digest covers it, by position.
	Entries []*ledger.Addendum
}

// Events lists a chain's events by sequence.
func (s *Service) Events(ctx context.Context, caller *Caller, chain ledger.ChainID, after int64, limit int) ([]*EventView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	view, err := s.ownChain(ctx, caller, chain)
	if err != nil {
		return nil, err
	}
	s.polledBy(caller, view)
	var events []*ledger.StoredEvent
	for bytes := 0; len(events) < limit && bytes < PageBytes; {
		const atOnce = 20 // payloads are large at worst
		few, err := s.store.Events(ctx, chain, after, min(atOnce, limit-len(events)))
		if err != nil {
			return nil, visible(err)
		}
		for _, event := range few {
			bytes += len(event.Payload)
			after = event.Sequence
		}
		events = append(events, few...)
		if len(few) < atOnce {
			break
		}
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
		entry, err := ledger.DecodeEntry(addendum.Body)
		if err != nil {
			return nil, visible(fmt.Errorf("%w: %w", ledger.ErrStateTampered, err))
		}
		view := bySequence[addendum.Sequence]
		if view != nil {
			view.Entries = append(view.Entries, addendum)
		}
		switch {
		case view == nil:
		case entry.Kind == ledger.EntryOutcome:
			view.Outcome = entry
		case entry.Kind == ledger.EntryApproval:
			view.Approval = entry
		}
	}
	return views, nil
}

// ReportOutcome records what became of an allowed action.
func (s *Service) ReportOutcome(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID, report *ledger.Entry) (*Outcome, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	event, err := s.eventByID(ctx, caller, chain, id)
	if err != nil {
		return nil, err
	}
	op := &reportOutcome{caller: caller, event: event, report: *report, line: s.lineage(chain)}
	if err := s.alongLineage(op.line, func() error { return s.committer.commit(ctx, op) }); err != nil {
		return nil, err
	}
	return &op.result, nil
}

// Outcome is what became of an event, as it was entered.
type Outcome struct {
	*ledger.Entry
	// ContinuedBy is as in Recorded. An outcome that comes after its chain was abandoned
	// is entered there.
	ContinuedBy *ledger.ChainID
}

// eventByID reads an event's facts, which never change, before the transaction
// that needs them. Whether the caller may see it is judged there.
func (s *Service) eventByID(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID) (*ledger.RecordedEvent, error) {
	if id.Sequence() == 0 {
		return nil, ledger.ErrNotFound
	}
	if _, err := s.ownChain(ctx, caller, chain); err != nil {
		return nil, err
	}
	stored, err := s.store.Event(ctx, store.EventAt{Chain: chain, Sequence: id.Sequence()})
	if err != nil {
		return nil, visible(err)
	}
	event, err := s.store.ReadEvent(caller.Org, stored)
	if err != nil {
		return nil, visible(err)
	}
	if event.ID != id {
		return nil, ledger.ErrNotFound
	}
	return event, nil
}

type reportOutcome struct {
	caller *Caller
	event  *ledger.RecordedEvent
	report ledger.Entry
	line   *lineage
	late   bool // the event's chain turned out to be abandoned: see planLate
	result Outcome
}

func (o *reportOutcome) at() store.EventAt {
	return store.EventAt{Chain: o.event.Chain, Sequence: o.event.Sequence}
}

func (o *reportOutcome) size() int { return smallOperation }

func (o *reportOutcome) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Chains = append(needs.Chains, o.event.Chain)
	needs.Addenda = append(needs.Addenda, o.at())
	if o.late {
		needs.Orgs = append(needs.Orgs, o.caller.Org)
		o.line.need(needs)
		for chain := range o.line.all() {
			needs.Repeats = append(needs.Repeats, o.markers(chain)...)
		}
	}
}

func (o *reportOutcome) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := b.chain(o.caller, o.event.Chain)
	if err != nil {
		return err
	}
	if err := b.mayRecord(o.caller, o.event.Action.AgentName); err != nil {
		return err
	}
	earlier, err := ledger.DecodeEntries(b.loaded.Addenda[o.at()])
	if err != nil {
		return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	if live.state.Abandoned {
		return o.planLate(b, earlier)
	}
	report, addendum, err := live.state.ReportOutcome(o.event, earlier, o.report, b.now)
	if err != nil {
		return err
	}
	o.result = Outcome{Entry: report}
	if addendum == nil {
		b.service.chainPolls.note(live.chain, live.state.LastAt, b.now)
	} else {
		live.changed = true
		b.changes.NewAddenda = append(b.changes.NewAddenda, addendum)
		b.loaded.Addenda[o.at()] = append(b.loaded.Addenda[o.at()], addendum)
	}
	return nil
}
