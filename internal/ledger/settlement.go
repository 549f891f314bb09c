package ledger

import (
	"cmp"
	"slices"
	"strings"

	"countersign/internal/fault"
)

// Settlement is what a yes is checked against when it is given: the rules and settings in force,
// and the keys of those who voted before. It can only be stricter than what was requested when the
// approval started.
type Settlement struct {
	Killed    bool
	TwoPerson bool
	// Approvers are those named by the rules in force, empty for anyone. Fallback are those of the
	// organization's settings, empty for nobody.
	Approvers []string
	Fallback  []string
	// Denied is set if the rules in force deny the action.
	Denied *PolicyDenial
	// Key returns the current API key of a voter, or nil if it does not exist or was tampered with.
	Key func(KeyID) *KeyRecord
	Now Time
}

// PolicyDenial names the rule that came into force while an action waited for approval, and denies
// it.
type PolicyDenial struct {
	PolicyName    string
	PolicyVersion string
	Reason        string
	Remediation   string
}

// maxVotes bounds the stored votes of an approval. Only two count; the others belong to keys that
// are no longer valid.
const maxVotes = 20

// Settlement evaluates the rules in force for an action that waits for approval. q is about the
// action as it was recorded. A pause of the chain is ignored: it delays what is approved, and can
// be lifted.
func (e *RecordedEvent) Settlement(policy *Policy, q *Question, approval *Approval) *Settlement {
	settings := &q.Org.Settings
	s := &Settlement{
		Killed: q.Org.Controls.KillSwitch.Active, TwoPerson: settings.TwoPersonApproval, Fallback: settings.FallbackApprovers, Now: q.Now,
	}
	if s.Killed {
		return s
	}
	asked := q.without(e, approval)
	asked.resumed = true
	d := Decide(policy, asked)
	s.Approvers = d.Approvers
	if d.Outcome == Deny {
		s.Denied = &PolicyDenial{PolicyName: d.PolicyName, PolicyVersion: d.PolicyVersion, Reason: d.Reason, Remediation: d.Remediation}
	}
	return s
}

// approve applies a person's yes and reports whether anything changed.
func (a *Approval) approve(comment string, reviewer Reviewer, s *Settlement, now Time) (changed bool, err error) {
	switch {
	case s.Killed:
		return false, fault.Errorf(fault.CodeKillSwitchActive, "the kill switch is active: nothing can be approved until an admin deactivates it")
	case s.Denied != nil:
		a.settle(ApprovalDenied, nil, "", now)
		a.DeniedBy = s.Denied
		return true, nil
	case !a.admitsNow(reviewer.Name, s):
		return false, fault.Errorf(fault.CodeForbidden, "the rules have changed since this was asked, and the key %q may not approve it any more: ask somebody who is named both then and now, or deny it and have the action recorded again (named now: %s)",
			reviewer.Name, bounded(cmp.Or(strings.Join(s.Approvers, ", "), "as it was asked, without the former fallback approvers")))
	}
	if s.TwoPerson {
		a.TwoPerson = true // from the first yes on, even if the setting is reverted
	}
	if !a.TwoPerson {
		a.settle(ApprovalApproved, &reviewer, comment, now)
		return true, nil
	}
	if !slices.ContainsFunc(a.Votes, func(v Vote) bool { return v.Reviewer.Key == reviewer.Key }) {
		a.vote(Vote{Reviewer: reviewer, Comment: comment, At: now}, s)
		changed = true
	}
	counting := slices.DeleteFunc(slices.Clone(a.Votes), func(v Vote) bool { return a.DiscountReason(&v, s) != "" })
	if len(counting) < 2 {
		return changed, nil
	}
	a.Votes = counting // the signed record names those whose votes counted
	a.settle(ApprovalApproved, &reviewer, comment, now)
	return true, nil
}

// vote adds a yes. If there are too many, it replaces one that does not count: at most one of them
// counts.
func (a *Approval) vote(v Vote, s *Settlement) {
	if len(a.Votes) >= maxVotes {
		at := max(slices.IndexFunc(a.Votes, func(v Vote) bool { return a.DiscountReason(&v, s) != "" }), 0)
		a.Votes = slices.Delete(slices.Clone(a.Votes), at, at+1)
	}
	a.Votes = append(a.Votes, v)
}

// Lacks reports whether an approval has lost a yes of one of these keys. An open approval loses none,
// except by a later one if there are too many.
func (a *Approval) Lacks(voters []KeyID) bool {
	if !a.Status.Open() || len(a.Votes) >= maxVotes {
		return false
	}
	return slices.ContainsFunc(voters, func(voter KeyID) bool {
		return !slices.ContainsFunc(a.Votes, func(v Vote) bool { return v.Reviewer.Key == voter })
	})
}

// DiscountReason says why an earlier yes does not count now, or returns "".
func (a *Approval) DiscountReason(v *Vote, s *Settlement) string {
	switch key := s.Key(v.Reviewer.Key); {
	case key == nil || key.Org != a.Org || key.Name != v.Reviewer.Name:
		return "the key is gone, or was changed outside the service"
	case key.RevokedAt != nil:
		return "the key was revoked"
	case !key.Active(s.Now):
		return "the key has expired"
	case !key.Role.Includes(RoleMember):
		return "a key of this role does not decide"
	case !a.admitsNow(v.Reviewer.Name, s):
		return "the rules in force do not name this key among the approvers"
	}
	return ""
}

// admitsNow reports whether a key with this name may approve according to both the original request
// and the rules in force. A fallback approver must still be one.
func (a *Approval) admitsNow(name string, s *Settlement) bool {
	fallback := a.EscalatedAt != nil && slices.Contains(a.Fallback, name) && slices.Contains(s.Fallback, name)
	admits := func(approvers []string) bool {
		return len(approvers) == 0 || fallback || slices.Contains(approvers, name)
	}
	return admits(a.Approvers) && admits(s.Approvers)
}

// PolicyChanged returns the error for a yes that the rules in force have overruled.
func (d *PolicyDenial) PolicyChanged() *fault.Error {
	return fault.Errorf(fault.CodePolicyChanged, "the rules have changed since this was asked, and the rule %q denies the action now. The approval has ended as denied: if the action is to happen, have an admin change the rule and record the action again", d.PolicyName)
}
