package httpapi

import (
	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

func (x *exchange) appendApproval(dst []byte, a *service.ApprovalView) []byte {
	if a.Tampered {
		return appendTampered(dst, "id", a.ID.String())
	}
	status := a.Status
	if x.caller.Role == ledger.RoleAgent {
		status = a.Now()
	}
	return x.appendApprovalAs(dst, a, status)
}

// appendApprovalAs encodes an approval with the given status. Reviewers see what was decided; agents
// see what they may do now.
func (x *exchange) appendApprovalAs(dst []byte, a *service.ApprovalView, status ledger.ApprovalStatus) []byte {
	w := canon.BeginObject(dst)
	w.String("id", a.ID.String())
	w.String("chain_id", a.Chain.String())
	w.String("event_id", a.Event.String())
	w.Int("sequence", a.Sequence)
	w.String("agent_name", a.AgentName)
	w.String("action_type", a.ActionType)
	w.String("action_name", a.ActionName)
	if amount := a.Reserved.Facts.Amount; amount != nil {
		w.Number("amount_usd", amount.Float())
	} else {
		w.Null("amount_usd")
	}
	w.Raw("payload", a.Payload)
	w.String("payload_sha256", a.PayloadSHA256)
	w.Raw("redactions", a.Redactions)
	if a.RedactionsSHA256 == nil {
		w.Null("redactions_sha256")
	} else {
		w.StringOrNull("redactions_sha256", *a.RedactionsSHA256)
	}
	w.Strings("unbound", a.Unbound)
	w.String("reason", a.Reason)
	w.StringOrNull("policy_name", a.PolicyName)
	w.String("policy_version", a.PolicyVersion)
	w.Value(ledger.AppendMatched(w.Name("matched_rules"), a.Matched))
	w.Strings("approvers", a.Approvers)
	w.Bool("two_person", a.TwoPerson)
	w.Int("votes", int64(a.Counting()))
	w.String("status", string(status))
	w.String("requested_at", a.RequestedAt.String())
	w.String("escalates_at", a.EscalatesAt.String())
	w.String("expires_at", a.ExpiresAt.String())
	appendTime(&w, "escalated_at", a.EscalatedAt)
	appendTime(&w, "decided_at", a.DecidedAt)
	w.StringOrNull("comment", a.Comment)
	w.StringOrNull("decision_notes", a.Comment) // an alias that other clients read
	writeDenial(&w, a.DeniedBy)
	if a.Status.Open() {
		w.Null("decision")
	} else {
		w.Value(appendRelease(w.Name("decision"), a))
	}
	if x.caller.Role.Includes(ledger.RoleMember) {
		writeReviewer(&w, a.Reviewer)
		w.Strings("fallback_approvers", a.Fallback)
		appendTime(&w, "last_polled_at", a.Client.LastPolledAt)
		w.Bool("waiting", a.Client.Waiting)
		w.Value(appendVoters(w.Name("voters"), a.Voters))
	}
	return w.End()
}

// appendVoters lists who has approved where two people must, and whose vote no longer counts.
func appendVoters(dst []byte, voters []service.Voter) []byte {
	dst = append(dst, '[')
	for i := range voters {
		if i > 0 {
			dst = append(dst, ',')
		}
		v := &voters[i]
		w := canon.BeginObject(dst)
		w.String("at", v.At.String())
		w.StringOrNull("comment", v.Comment)
		w.Bool("counts", v.Discounted == "")
		w.StringOrNull("discounted", v.Discounted)
		writeReviewer(&w, &v.Reviewer)
		dst = w.End()
	}
	return append(dst, ']')
}

// writeDenial writes the rule that denied an action while it waited for approval.
func writeDenial(w *canon.ObjectWriter, d *ledger.PolicyDenial) {
	if d == nil {
		w.Null("denied_by")
		return
	}
	inner := canon.BeginObject(w.Name("denied_by"))
	inner.StringOrNull("policy_name", d.PolicyName)
	inner.String("policy_version", d.PolicyVersion)
	inner.String("reason", d.Reason)
	inner.StringOrNull("remediation", d.Remediation)
	w.Value(inner.End())
}

func writeReviewer(w *canon.ObjectWriter, r *ledger.Reviewer) {
	if r == nil {
		w.Null("reviewer")
		return
	}
	inner := canon.BeginObject(w.Name("reviewer"))
	inner.String("key_id", r.Key.String())
	inner.String("name", r.Name)
	w.Value(inner.End())
}

// appendRelease encodes the decision for a client that waited: what it may do now.
func appendRelease(dst []byte, a *service.ApprovalView) []byte {
	d := releaseOf(a)
	status := ledger.EventDenied
	if d.Outcome == ledger.Allow {
		status = ledger.EventAllowed
	}
	w := canon.BeginObject(dst)
	writeVerdict(&w, &d)
	w.String("event_id", a.Event.String())
	w.String("chain_id", a.Chain.String())
	w.Int("sequence", a.Sequence)
	w.String("approval_id", a.ID.String())
	w.String("policy_version", d.PolicyVersion)
	w.String("status", string(status))
	return w.End()
}

// releaseOf returns the decision that follows from a decided approval. Whatever a person decided, it
// is a denial while the kill switch is active or if the rules now deny the action.
func releaseOf(a *service.ApprovalView) ledger.Decision {
	if a.Overruled != nil {
		return *a.Overruled
	}
	d := a.Release(a.Status)
	return d.Halted(&ledger.KillSwitch{Active: a.Killed, Reason: a.KillReason})
}

func (x *exchange) appendApprovalStatus(dst []byte, status string, approvals []*service.ApprovalView) []byte {
	w := canon.BeginObject(dst)
	w.String("approval_status", status)
	list := append(w.Name("approvals"), '[')
	for i, approval := range approvals {
		if i > 0 {
			list = append(list, ',')
		}
		list = x.appendApprovalAs(list, approval, service.Polled(approval))
	}
	w.Value(append(list, ']'))
	return w.End()
}
