package ledger

// Again is a recorded event as it is answered when the same action is asked about once
// more: what may happen now, not what could have happened then. The client that asks
// may not have begun yet. The record itself stays as it was.
//
// The question is about the action as it was sent again. The approval is the one that
// the event waits or waited for, nil for none.
func (e *RecordedEvent) Again(policy *Policy, q *Question, approval *Approval) *Event {
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
		if now.AutoPaused { // also of what was denied before
			answer.Decision.AutoPaused, answer.Decision.PauseReason = true, now.PauseReason
		}
	}
	answer.Status = answer.Decision.Outcome.status()
	return &answer
}

// Stands is an event that a client decided by itself, as it is answered when it is
// reported once more: it has happened, and stands as it was recorded. Whether its chain
// is stopped is said as it is now, for the client takes that from every answer.
func (e *RecordedEvent) Stands(org *Organization, state *ChainState) *Event {
	answer := e.Event
	switch k := &org.Controls.KillSwitch; {
	case k.Active:
		answer.Decision.KillSwitchActive, answer.Decision.PauseReason = true, k.Reason
	case state.Status == ChainAutoPaused && org.Settings.EvaluationMode != Shadow:
		answer.Decision.AutoPaused, answer.Decision.PauseReason = true, state.PauseReason
	}
	return &answer
}

// tightened is an earlier decision under the rules that are in force now, which have
// decided anew. They can only make it stricter. What a person has approved is past
// asking a person, and past every flag. Rules on trial decide allow, and so they
// change nothing.
func (d Decision) tightened(now Decision) Decision {
	if !now.Outcome.StricterThan(d.Outcome) || (d.Source == SourceHuman && now.Outcome != Deny) {
		return d
	}
	if now.Outcome == RequireApproval {
		// Nobody was asked when it was recorded, and its record does not change.
		now.Outcome = Deny
		now.Remediation = "The rules have changed since this action was allowed. Send it under another idempotency_key to ask for approval."
	}
	now.Approvers = nil
	return now
}

// without is the question with the event's own part in the chain left out: an action
// does not stand in its own way.
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
	before := recorded.Carried.Actions+recorded.Carried.Markers+e.Sequence <= granted.Actions+granted.Markers // it counts no more: the chain was resumed since
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

// Release is the decision that a settled approval amounts to, before anything that
// was changed since.
func (a *Approval) Release(status ApprovalStatus) Decision {
	d := Decision{
		Outcome: Deny, Source: SourceHuman, PolicyName: a.PolicyName, PolicyVersion: a.PolicyVersion,
		Mode: Enforce, EstimatedCost: a.Reserved.Cost,
	}
	switch status {
	case ApprovalApproved:
		d.Outcome, d.Reason = Allow, commented("a reviewer approved the action", a.Comment)
	case ApprovalDenied:
		if by := a.DeniedBy; by != nil {
			d.Source, d.PolicyName, d.PolicyVersion = SourceBackend, by.PolicyName, by.PolicyVersion
			d.Reason, d.Remediation = bounded("the rules have changed while the action waited for approval, and deny it: "+by.Reason), by.Remediation
			break
		}
		d.Reason = commented("a reviewer denied the action", a.Comment)
	case ApprovalTimedOut:
		d.Reason = "nobody decided before the approval timed out at " + a.ExpiresAt.String()
		d.Remediation = "Record the action again to ask anew."
	default:
		d.Reason = "the chain was completed before anyone decided"
		if a.Comment != "" {
			d.Reason = commented("the approval was cancelled before anyone decided", a.Comment)
		}
		d.Remediation = "Record the action in a new chain to ask anew."
	}
	return d
}

// DecidedBy says who ended the approval: a person, or a rule that came into force while
// it waited. It is "" where nobody did.
func (a *Approval) DecidedBy() Source {
	switch {
	case a.DeniedBy != nil:
		return SourceBackend
	case a.Reviewer != nil:
		return SourceHuman
	}
	return ""
}

func commented(what, comment string) string {
	if comment == "" {
		return what
	}
	return what + ": " + comment
}
