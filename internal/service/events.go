package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// EventView is a stored event with what was recorded about it later.
type EventView struct {
	// StoredEvent holds the chain and the sequence alone where the facts fail, or are
	// gone, and no payload where that fails.
	*ledger.StoredEvent
	Facts    *ledger.RecordedEvent // nil where they fail
	Outcome  *ledger.Entry         // nil where none was reported
	Approval *ledger.Entry         // how the wait for a person ended, nil where it has not
	// Entries are all of it as the running digest covers it, by position; none where the
	// digest does not vouch for them.
	Entries []*ledger.Addendum
	// Integrity marks what did not verify. Nothing that fails is in the view.
	Integrity ledger.Integrity
}

// mostSequence bounds the place of an event: JSON holds no larger number exactly.
const mostSequence = 1 << 53

// Events lists a chain's events by sequence. One that was changed or removed outside the
// service keeps its place, and is marked.
func (s *Service) Events(ctx context.Context, caller *Caller, chain ledger.ChainID, after int64, limit int) ([]*EventView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	view, err := s.ownChain(ctx, caller, chain)
	if err != nil {
		return nil, err
	}
	s.polledBy(caller, view)
	var views []*EventView
	last := after
	// Payloads are large at worst, and small as a rule: few are read at first.
	for bytes, atOnce := 0, 4; len(views) < limit && bytes < PageBytes; atOnce *= 4 {
		few, err := s.store.Events(ctx, chain, last, min(atOnce, limit-len(views)))
		if err != nil {
			return nil, visible(err)
		}
		for i, event := range few {
			if event.Sequence > mostSequence {
				s.log.Error(tamperedLog, "of", "an event")
				s.NoteTampering(caller.Org, fmt.Errorf("an event of the chain %s stands in a place that the service gives to none: %w", chain, ledger.ErrStateTampered))
				few = few[:i] // it is of this chain's events none, and the last
				break
			}
			bytes += len(event.Payload)
			views = append(views, s.eventView(caller.Org, event))
			last = event.Sequence
		}
		if len(few) < atOnce {
			break
		}
	}
	views = withGaps(views, chain, after, view.State.Actions, limit)
	return s.withEntries(ctx, chain, views)
}

// eventView shows of a stored event what is as the service recorded it.
func (s *Service) eventView(org ledger.OrgID, stored *ledger.StoredEvent) *EventView {
	facts, err := s.store.ReadEvent(org, stored)
	if err != nil {
		s.log.Error(tamperedLog, "of", "an event")
		return lostEvent(stored.Chain, stored.Sequence)
	}
	view := &EventView{StoredEvent: stored, Facts: facts}
	if !facts.Carries(stored) {
		s.log.Error(tamperedLog, "of", "an event's payload")
		shown := *stored
		shown.Payload, shown.Redactions = nil, nil
		view.StoredEvent, view.Integrity = &shown, ledger.IntegrityFailed
	}
	return view
}

// lostEvent stands where an event was that cannot be shown.
func lostEvent(chain ledger.ChainID, sequence int64) *EventView {
	return &EventView{StoredEvent: &ledger.StoredEvent{Chain: chain, Sequence: sequence}, Integrity: ledger.IntegrityFailed}
}

// withGaps puts a mark where an event is missing of the so many that the chain's state
// attests. At most limit are returned.
func withGaps(found []*EventView, chain ledger.ChainID, after, actions int64, limit int) []*EventView {
	views := make([]*EventView, 0, len(found))
	next := max(after, 0) + 1
	fill := func(to int64) {
		for ; next < to && len(views) < limit; next++ {
			views = append(views, lostEvent(chain, next))
		}
	}
	for _, view := range found {
		fill(min(view.Sequence, actions+1))
		if len(views) == limit {
			return views
		}
		views, next = append(views, view), view.Sequence+1
	}
	if len(found) < limit { // there are no more
		fill(actions + 1)
	}
	return views
}

// withEntries adds what was recorded about events later, where the chain's digest vouches
// for it.
func (s *Service) withEntries(ctx context.Context, chain ledger.ChainID, views []*EventView) ([]*EventView, error) {
	if len(views) == 0 {
		return views, nil
	}
	addenda, err := s.store.Addenda(ctx, chain, views[0].Sequence, views[len(views)-1].Sequence)
	if err != nil {
		return nil, visible(err)
	}
	// Read after all that it is compared with: it covers everything that was recorded by then.
	record, err := s.store.Chain(ctx, chain)
	if err != nil {
		return nil, visible(err)
	}
	recorded, err := s.judge.EntriesOf(ctx, record)
	if err != nil {
		return nil, visible(err)
	}
	of := make(map[int64][]*ledger.Addendum)
	for _, addendum := range addenda {
		of[addendum.Sequence] = append(of[addendum.Sequence], addendum)
	}
	for _, view := range views {
		view.addEntries(recorded, of[view.Sequence])
	}
	return views, nil
}

func (v *EventView) addEntries(recorded *verify.Entries, addenda []*ledger.Addendum) {
	entries, err := ledger.DecodeEntries(addenda)
	switch {
	case recorded.Integrity == ledger.IntegrityNotChecked && err == nil:
		v.Integrity = cmp.Or(v.Integrity, ledger.IntegrityNotChecked)
	case recorded.Integrity == ledger.IntegrityFailed && len(addenda) == 0:
		v.Integrity = cmp.Or(v.Integrity, ledger.IntegrityNotChecked) // there may have been some
		return
	case recorded.Integrity != "" || err != nil || !recorded.Are(v.Sequence, addenda):
		v.Integrity = ledger.IntegrityFailed
		return
	}
	v.Entries = addenda
	for _, entry := range entries {
		switch entry.Kind {
		case ledger.EntryOutcome:
			v.Outcome = entry
		case ledger.EntryApproval:
			v.Approval = entry
		}
	}
}

// ReportOutcome records what became of an allowed action.
func (s *Service) ReportOutcome(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID, report *ledger.Entry) (*Outcome, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	event, view, err := s.eventByID(ctx, caller, chain, id)
	if err != nil {
		return nil, err
	}
	if err := s.readEntries(ctx, view); err != nil {
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
// that needs them, and its chain. Whether the caller may see it is judged there.
func (s *Service) eventByID(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID) (*ledger.RecordedEvent, *ChainView, error) {
	if id.Sequence() == 0 {
		return nil, nil, ledger.ErrNotFound
	}
	view, err := s.ownChain(ctx, caller, chain)
	if err != nil {
		return nil, nil, err
	}
	stored, err := s.store.Event(ctx, store.EventAt{Chain: chain, Sequence: id.Sequence()})
	if err != nil {
		return nil, nil, visible(err)
	}
	event, err := s.store.ReadEvent(caller.Org, stored)
	if err != nil {
		return nil, nil, visible(err)
	}
	if event.ID != id {
		return nil, nil, ledger.ErrNotFound
	}
	return event, view, nil
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

func (o *reportOutcome) tenant() ledger.OrgID { return o.caller.Org }

func (o *reportOutcome) size() int { return smallOperation }

func (o *reportOutcome) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	needs.Chains = append(needs.Chains, o.event.Chain)
	needs.Addenda = append(needs.Addenda, o.at())
	if o.event.Status == ledger.EventAwaiting {
		needs.Approvals = append(needs.Approvals, o.event.Approval)
	}
	if o.late {
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
	earlier, err := b.recordedAbout(live, o.event.Sequence)
	if err != nil {
		return err
	}
	if err := o.decided(b, earlier); err != nil {
		return err
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
		b.enter(addendum)
	}
	return nil
}

// decided refuses entries that say of a person's decision what the approval does not say.
func (o *reportOutcome) decided(b *batch, earlier []*ledger.Entry) error {
	if o.event.Status != ledger.EventAwaiting {
		return nil
	}
	asked, err := b.approval(o.event.Approval)
	if errors.Is(err, ledger.ErrNotFound) || err == nil && asked.approval.Event != o.event.ID {
		return fmt.Errorf("the approval of an event is missing or another's: %w", ledger.ErrStateTampered)
	}
	if err != nil {
		return err
	}
	stands := asked.approval.Status.Open()
	for _, entry := range earlier {
		if entry.Kind == ledger.EntryApproval {
			stands = entry.ApprovalStatus == asked.approval.Status
		}
	}
	if !stands {
		return fmt.Errorf("an approval does not stand as its end was recorded: %w", ledger.ErrStateTampered)
	}
	return nil
}
