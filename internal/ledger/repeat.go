package ledger

import (
	"bytes"
)

// Repeats reports whether an action is the recorded one sent again, unchanged. Removed values are
// compared by their digests, so the action must be bound.
func (e *RecordedEvent) Repeats(action *Action) bool {
	a := &e.Action
	sameTime := (a.ExecutedAt == nil) == (action.ExecutedAt == nil) &&
		(a.ExecutedAt == nil || *a.ExecutedAt == *action.ExecutedAt)
	// An action that a client decided is not one that the service was asked about. Neither may be
	// mistaken for the other.
	source := action.Source
	if source == "" {
		source = SourceBackend
	}
	return e.Decision.Source == source && a.AgentName == action.AgentName && a.ActionType == action.ActionType && a.ActionName == action.ActionName &&
		a.ParentAgentName == action.ParentAgentName && bytes.Equal(a.Metadata, action.Metadata) && sameTime &&
		e.PayloadSHA256 == PayloadHash(action.Payload) && e.binds(action)
}

// binds compares what the service cannot see any more. Older records do not contain it.
func (e *RecordedEvent) binds(action *Action) bool {
	return e.RedactionsSHA256 == nil ||
		*e.RedactionsSHA256 == RedactionsHash(action.Redactions) && e.Action.SentHMAC == action.SentHMAC && e.Action.FoundSHA256 == action.FoundSHA256
}

// AnswerRepeated returns the answer for a recorded event when the same action is sent again: what
// may happen now, not what could have happened then, because the client may not have started yet.
// The record itself does not change.
//
// q is about the action as it was sent again. approval is the one that the event waits or waited
// for, or nil.
func (e *RecordedEvent) AnswerRepeated(policy *Policy, q *Question, approval *Approval) *Event {
	answer := e.Event
	if approval != nil {
		if status := approval.At(q.Now); !status.Open() {
			answer.Decision = approval.Release(status)
		}
	}
	switch {
	case q.Org.Controls.KillSwitch.Active:
		answer.Decision = answer.Decision.Halted(&q.Org.Controls.KillSwitch)
	case e.Act != q.Org.Controls.Act || q.State.Status == ChainAutoPaused || q.timedOut():
		now := Decide(policy, q.without(e, approval))
		answer.Decision = answer.Decision.tightened(now)
		if now.AutoPaused { // even for an earlier denial
			answer.Decision.AutoPaused, answer.Decision.PauseReason = true, now.PauseReason
		}
	}
	answer.Status = answer.Decision.Outcome.status()
	return &answer
}

// AnswerReported returns the answer for an event that a client decided when it is reported again:
// it has happened, so it is unchanged. Whether its chain is stopped is current, because clients
// take that from every response.
func (e *RecordedEvent) AnswerReported(org *Organization, state *ChainState) *Event {
	answer := e.Event
	switch k := &org.Controls.KillSwitch; {
	case k.Active:
		answer.Decision.KillSwitchActive, answer.Decision.PauseReason = true, k.Reason
	case state.Status == ChainAutoPaused && org.Settings.EvaluationMode != Shadow:
		answer.Decision.AutoPaused, answer.Decision.PauseReason = true, state.PauseReason
	}
	return &answer
}

// tightened applies the current rules' decision to an earlier one. They can only make it stricter.
// Once a person has approved the action, only a denial counts. Rules in shadow decide allow, so
// they change nothing.
func (d Decision) tightened(now Decision) Decision {
	if !now.Outcome.StricterThan(d.Outcome) || (d.Source == SourceHuman && now.Outcome != Deny) {
		return d
	}
	if now.Outcome == RequireApproval {
		// Nobody was asked when it was recorded, and the record does not change.
		now.Outcome = Deny
		now.Remediation = "The rules have changed since this action was allowed. Send it under another idempotency_key to ask for approval."
	}
	now.Approvers = nil
	return now
}

// without returns the question without the event's own contribution to the chain, so that an action
// does not block itself.
func (q *Question) without(e *RecordedEvent, approval *Approval) *Question {
	state := *q.State
	own := Reservation{Facts: q.Action.Facts, Tokens: q.Action.Facts.Tokens()}
	counted := e.Status == EventAllowed || e.Status == EventFlagged
	if approval != nil {
		own, counted = approval.Reserved, approval.Status == ApprovalApproved
		state.Approvals--
	}
	if q.Action.marker() {
		state.Markers--
	}
	state.Actions--
	// An event of a chain that this one continues was counted there.
	recorded := q.Recorded
	if recorded == nil {
		recorded = q.State
	}
	granted := &state.Granted
	before := recorded.Carried.Actions+recorded.Carried.Markers+e.Sequence <= granted.Actions+granted.Markers // no longer counted, because the chain was resumed since
	if before {
		granted.Actions--
	}
	switch {
	case counted:
		state.Metrics.FinancialExposure = state.Metrics.FinancialExposure.Sub(own.exposure())
		if !before {
			state.Tokens -= min(own.Tokens, state.TotalTokens())
		}
	case approval != nil && approval.Status.Open():
		state.release(&own)
	}
	again := *q
	again.State = &state
	again.Standings = withoutUses(q.Standings, e.Uses, counted, approval != nil && approval.Status.Open())
	return &again
}
