package ledger

import (
	"cmp"
	"slices"
	"strings"

	"countersign/internal/fault"
)

// Settlement is what a yes is held against at the moment at which it is given: the
// rules and the settings in force, and the keys of those who said yes before. It can
// only make stricter what was asked for when the approval began.
type Settlement struct {
	Killed    bool
	TwoPerson bool
	// Approvers are those whom the rules in force name, Fallback those of the
	// organization's settings. None: anyone, and nobody.
	Approvers []string
	Fallback  []string
	// Denied says that the rules in force deny the action; nil where they do not.
	Denied *PolicyDenial
	// Key finds the API key of somebody who voted, as it is now; nil for one that is
	// not there, or not as the service wrote it.
	Key func(KeyID) *KeyRecord
	Now Time
}

// PolicyDenial says by which rule an action was denied that waited for approval when
// the rule came into force.
type PolicyDenial struct {
	PolicyName    string
	PolicyVersion string
	Reason        string
	Remediation   string
}

// maxVotes bounds how many votes an approval keeps. Only two count: the others are of
// keys that have ended since.
const maxVotes = 20

// Settlement asks the rules in force about an action that waits for approval. The
// question is about the action as it was recorded. A pause of the chain does not play a
// part: it holds up what is approved for as long as it lasts, and can be lifted.
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

// approve takes a person's yes. It reports whether anything changed.
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
		a.TwoPerson = true // from the first yes on, also if the setting is taken back
	}
	if !a.TwoPerson {
		a.settle(ApprovalApproved, &reviewer, comment, now)
		return true, nil
	}
	if !slices.ContainsFunc(a.Votes, func(v Vote) bool { return v.Reviewer.Key == reviewer.Key }) {
		a.vote(Vote{Reviewer: reviewer, Comment: comment, At: now}, s)
		changed = true
	}
	counting := slices.DeleteFunc(slices.Clone(a.Votes), func(v Vote) bool { return a.Discounts(&v, s) != "" })
	if len(counting) < 2 {
		return changed, nil
	}
	a.Votes = counting // what is signed names those whose yes counted
	a.settle(ApprovalApproved, &reviewer, comment, now)
	return true, nil
}

// vote enters a yes. Where there are too many, one that does not count makes room: of
// those that count there is at most one.
func (a *Approval) vote(v Vote, s *Settlement) {
	if len(a.Votes) >= maxVotes {
		at := max(slices.IndexFunc(a.Votes, func(v Vote) bool { return a.Discounts(&v, s) != "" }), 0)
		a.Votes = slices.Delete(slices.Clone(a.Votes), at, at+1)
	}
	a.Votes = append(a.Votes, v)
}

// Discounts says why an earlier yes does not count now, "" where it does.
func (a *Approval) Discounts(v *Vote, s *Settlement) string {
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

// admitsNow reports whether a key of this name may approve both by what was asked for
// and by the rules in force. A fallback approver must be one still.
func (a *Approval) admitsNow(name string, s *Settlement) bool {
	fallback := a.EscalatedAt != nil && slices.Contains(a.Fallback, name) && slices.Contains(s.Fallback, name)
	admits := func(approvers []string) bool {
		return len(approvers) == 0 || fallback || slices.Contains(approvers, name)
	}
	return admits(a.Approvers) && admits(s.Approvers)
}

// PolicyChanged is the answer to a yes that the rules in force have overruled.
func (d *PolicyDenial) PolicyChanged() *fault.Error {
	return fault.Errorf(fault.CodePolicyChanged, "the rules have changed since this was asked, and the rule %q denies the action now. The approval has ended as denied: if the action is to happen, have an admin change the rule and record the action again", d.PolicyName)
}
