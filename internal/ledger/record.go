package ledger

import (
	"countersign/internal/fault"
)

// Recording is an action to be recorded in a chain, with everything needed to decide it.
type Recording struct {
	Keys   Keys
	Policy *Policy
	Org    *Organization
	Chain  *Chain
	Action *Action
	By     KeyID // the key that records the action
	Now    Time
	Random [10]byte
	// Standings are as in Question. Recording the action changes the counters.
	Standings []BudgetStanding
	// NewApproval returns an id if a person must decide.
	NewApproval func() ApprovalID
}

// Recorded is a decided action with the records to store.
type Recorded struct {
	Event    *Event
	Stored   *StoredEvent
	Approval *Approval // nil if no approval is needed
	Paused   bool      // the action paused its chain
}

// Record decides an action, records it in the chain and advances the state.
func (s *ChainState) Record(r *Recording) *Recorded {
	now := Later(r.Now, s.LastAt)
	leased := s.covered(r)
	question := &Question{Org: r.Org, Chain: r.Chain, State: s, Action: r.Action, Now: now, Leased: leased, Standings: r.Standings}
	decision := Decide(r.Policy, question)
	s.Actions++
	s.LastAt = now
	event := &Event{
		ID:         NewEventID(now, r.Random, s.Actions),
		Chain:      r.Chain.ID,
		Sequence:   s.Actions,
		Action:     *r.Action,
		Decision:   decision,
		Status:     decision.Outcome.status(),
		Act:        r.Org.Controls.Act,
		RecordedAt: now,
	}
	if leased {
		event.Lease = r.Action.LeaseID
	}
	event.Uses = question.count(event.Status)
	recorded := &Recorded{Event: event}
	switch event.Status {
	case EventAllowed, EventFlagged:
		if r.Action.marker() {
			break
		}
		s.spend(&r.Action.Facts, decision.EstimatedCost, r.Action.Facts.Tokens())
	case EventAwaiting:
		recorded.Approval = s.ask(r, event)
		event.Approval = recorded.Approval.ID
	}
	if decision.AutoPaused && s.Status == ChainActive {
		s.Status, s.PauseReason = ChainAutoPaused, decision.PauseReason
		recorded.Paused = true
	}
	s.PolicyVersion = decision.PolicyVersion
	s.countAgent(r.Action)
	body := event.Encode()
	s.enter(body)
	recorded.Stored = &StoredEvent{
		Chain: r.Chain.ID, Sequence: event.Sequence, IdempotencyKey: r.Action.IdempotencyKey,
		Body: body, Payload: r.Action.Payload, Redactions: r.Action.Redactions, MAC: Authenticate(r.Keys, r.Chain.Org, PurposeEvent, body),
	}
	return recorded
}

// spend counts an action that may happen.
func (s *ChainState) spend(facts *Facts, cost *Money, tokens int64) {
	s.Metrics.Count(facts, cost, tokens)
	s.Tokens = addCount(s.Tokens, tokens)
}

// ask creates the approval of an action that a person must decide, and reserves what the action
// would use of the chain's budgets.
func (s *ChainState) ask(r *Recording, event *Event) *Approval {
	redactions := RedactionsHash(event.Action.Redactions)
	span := approvalTime(&r.Org.Settings, &r.Chain.Limits)
	facts := r.Action.Facts
	approval := &Approval{
		ID: r.NewApproval(), Org: r.Chain.Org, Chain: r.Chain.ID, Event: event.ID, Sequence: event.Sequence, RequestedBy: r.By, OpenedBy: r.Chain.OpenedBy,
		AgentName: event.Action.AgentName, ActionType: event.Action.ActionType, ActionName: event.Action.ActionName,
		PayloadSHA256: PayloadHash(event.Action.Payload), RedactionsSHA256: &redactions,
		Reason: event.Decision.Reason, PolicyName: event.Decision.PolicyName, PolicyVersion: event.Decision.PolicyVersion,
		Matched:   event.Decision.Matched,
		Approvers: event.Decision.Approvers, TwoPerson: r.Org.Settings.TwoPersonApproval,
		Escalate:    r.fallbackApprovers(),
		Fallback:    r.Org.Settings.FallbackApprovers,
		Reserved:    Reservation{Facts: facts, Cost: event.Decision.EstimatedCost, Tokens: facts.Tokens(), Uses: event.Uses},
		RequestedAt: event.RecordedAt, EscalatesAt: event.RecordedAt.Add(span / 2), ExpiresAt: event.RecordedAt.Add(span),
		Status: ApprovalPending,
	}
	s.Approvals++
	s.Waiting++
	s.hold(&approval.Reserved)
	return approval
}

// fallbackApprovers returns those who are notified at half the time. The chain's own are used only
// if the organization has named none.
func (r *Recording) fallbackApprovers() []string {
	if own := r.Org.Settings.FallbackApprovers; len(own) > 0 {
		return own
	}
	return unite(r.Chain.FallbackApprovers)
}

func (s *ChainState) hold(r *Reservation) {
	s.Pending.Exposure = s.Pending.Exposure.Add(r.exposure())
	s.Pending.Tokens = addCount(s.Pending.Tokens, r.Tokens)
}

func (s *ChainState) release(r *Reservation) {
	s.Pending.Exposure = s.Pending.Exposure.Sub(r.exposure())
	s.Pending.Tokens -= min(r.Tokens, s.Pending.Tokens)
}

// Settle records the end of an approval in its chain. The reservation is released, and counts as
// spent if it was approved.
func (s *ChainState) Settle(a *Approval, now Time) *Addendum {
	s.Waiting--
	s.release(&a.Reserved)
	if a.Status == ApprovalApproved {
		s.spend(&a.Reserved.Facts, a.Reserved.Cost, a.Reserved.Tokens)
	}
	s.LastAt = Later(now, s.LastAt)
	return s.append(&Entry{
		Kind: EntryApproval, Event: a.Event, Sequence: a.Sequence,
		Approval: a.ID, ApprovalHash: a.Hash(), ApprovalStatus: a.Status,
	}, a.Chain)
}

// Resume lifts an auto-pause: the limits start counting again from here. event is the event of the
// chain that the entry refers to.
func (s *ChainState) Resume(chain ChainID, event EventID, by string, now Time) (*Addendum, error) {
	if err := s.Open(); err != nil {
		return nil, err
	}
	if s.Status != ChainAutoPaused {
		return nil, fault.Errorf(fault.CodeNotPaused, "the chain is not paused")
	}
	s.LastAt = Later(now, s.LastAt)
	s.Status, s.PauseReason = ChainActive, ""
	s.Granted = Allowance{Actions: s.TotalActions(), Markers: s.totalMarkers(), Tokens: s.TotalTokens(), At: s.LastAt}
	return s.append(&Entry{Kind: EntryResume, Event: event, Sequence: event.Sequence(), Detail: by}, chain), nil
}
