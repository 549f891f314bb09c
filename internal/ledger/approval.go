package ledger

import (
	"cmp"
	"slices"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// ApprovalStatus is the status of an approval. The first two wait for a person.
type ApprovalStatus string

// The statuses of an approval.
const (
	ApprovalPending   ApprovalStatus = "pending"
	ApprovalEscalated ApprovalStatus = "escalated"
	ApprovalApproved  ApprovalStatus = "approved"
	ApprovalDenied    ApprovalStatus = "denied"
	ApprovalTimedOut  ApprovalStatus = "timed_out"
	ApprovalCancelled ApprovalStatus = "cancelled"
)

// ApprovalStatuses lists all statuses.
var ApprovalStatuses = []ApprovalStatus{ApprovalPending, ApprovalEscalated, ApprovalApproved, ApprovalDenied, ApprovalTimedOut, ApprovalCancelled}

// Open reports whether a person can still decide.
func (s ApprovalStatus) Open() bool { return s == ApprovalPending || s == ApprovalEscalated }

// Approval asks a person about one event with exactly one payload. It is stored with an
// authenticator, so that only the service can turn a no into a yes.
type Approval struct {
	ID            ApprovalID
	Org           OrgID
	Chain         ChainID
	Event         EventID
	Sequence      int64 // sequence of the event
	RequestedBy   KeyID // the key that recorded the action; it must not decide
	OpenedBy      KeyID // the key that opened the chain; its agent may see the approval
	AgentName     string
	ActionType    string
	ActionName    string
	PayloadSHA256 string
	// RedactionsSHA256 is "" if nothing was removed from the payload, and nil in approvals that
	// predate it.
	RedactionsSHA256 *string
	Reason           string
	PolicyName       string
	PolicyVersion    string
	Matched          []MatchedRule
	Approvers        []string // names of the keys that may decide; empty: any member
	TwoPerson        bool
	Escalate         []string // e-mail addresses to notify at half the time
	Fallback         []string // those of them that the organization named; they may decide after escalation
	Reserved         Reservation
	RequestedAt      Time
	EscalatesAt      Time
	ExpiresAt        Time

	Status      ApprovalStatus
	EscalatedAt *Time
	DecidedAt   *Time
	Votes       []Vote
	Reviewer    *Reviewer // who decided; nil if no person did
	Comment     string
	// DeniedBy is the rule that came into force while the approval waited and denies the action. It
	// is nil if a person or the timeout decided.
	DeniedBy *PolicyDenial

	// SigningKey is the key of the registry that signed the decision record. It is zero while there
	// is no signature.
	SigningKey SigningKeyID
	Signature  []byte
}

// Reservation is what a waiting action reserves of its chain's budgets until it is decided.
type Reservation struct {
	Facts  Facts
	Cost   *Money
	Tokens int64
	Uses   []BudgetUse // uses of budgets above the chain
}

func (r *Reservation) exposure() Money {
	if r.Facts.Amount == nil || !r.Facts.has(CategoryFinancial) {
		return Money{}
	}
	return *r.Facts.Amount
}

// Reviewer is who decided: an API key by its id and its name at that time.
type Reviewer struct {
	Key  KeyID
	Name string
}

// Vote is one person's yes if two are needed.
type Vote struct {
	Reviewer Reviewer
	Comment  string
	At       Time
}

// Verdict is a person's decision on an approval.
type Verdict struct {
	Approve       bool
	Comment       string
	PayloadSHA256 string // what the reviewer saw; "" if not stated
}

// ParseVerdict reads the body of a request that decides an approval. The zero Value means no body.
func ParseVerdict(v canon.Value, approve bool) (*Verdict, error) {
	verdict := &Verdict{Approve: approve}
	if v.IsNull() {
		return verdict, nil
	}
	f := canon.NewFields(v)
	verdict.Comment = withoutSecrets(f.Text("comment", maxText))
	verdict.PayloadSHA256 = f.Text("payload_sha256", maxName)
	return verdict, f.Err()
}

// ParseCancellation reads the body of a request that cancels an approval. The zero Value means no
// body.
func ParseCancellation(v canon.Value) (comment string, err error) {
	if v.IsNull() {
		return "", nil
	}
	f := canon.NewFields(v)
	comment = withoutSecrets(f.Text("comment", maxText))
	return comment, f.Err()
}

// At returns the status of the approval at a time. If its time has passed, it is timed out, even if
// that was not recorded yet.
func (a *Approval) At(now Time) ApprovalStatus {
	if a.Status.Open() && now >= a.ExpiresAt {
		return ApprovalTimedOut
	}
	return a.Status
}

// Decide applies a person's verdict and reports whether anything changed. Repeating a verdict
// changes nothing, and the first yes of two leaves the approval open. A no is final whatever has
// changed since the request. A yes is checked against the settlement: if the rules in force deny
// the action, the approval ends as denied and DeniedBy is set.
func (a *Approval) Decide(verdict *Verdict, reviewer Reviewer, s *Settlement, now Time) (changed bool, err error) {
	if err := a.mayDecide(reviewer); err != nil {
		return false, err
	}
	if verdict.PayloadSHA256 != "" && verdict.PayloadSHA256 != a.PayloadSHA256 {
		return false, fault.Errorf(fault.CodePayloadMismatch, "the action waiting here has another payload than the one you saw: read the approval again before you decide")
	}
	if status := a.At(now); !status.Open() {
		return false, a.settled(status, verdict)
	}
	if !verdict.Approve {
		a.settle(ApprovalDenied, &reviewer, verdict.Comment, now)
		return true, nil
	}
	return a.approve(verdict.Comment, reviewer, s, now)
}

// settled answers a verdict on a decided approval: nil if it is the same verdict, otherwise an
// error with the decision.
func (a *Approval) settled(status ApprovalStatus, verdict *Verdict) error {
	wanted := ApprovalDenied
	if verdict.Approve {
		wanted = ApprovalApproved
	}
	switch {
	case status == wanted:
		return nil
	case a.DeniedBy != nil:
		return a.DeniedBy.PolicyChanged()
	case status == ApprovalTimedOut:
		return fault.Errorf(fault.CodeApprovalExpired, "the approval expired at %s: the action has to be recorded again", a.ExpiresAt)
	default:
		return fault.Errorf(fault.CodeApprovalDecided, "the approval is %s already, and the first decision stands", status)
	}
}

func (a *Approval) mayDecide(reviewer Reviewer) error {
	if reviewer.Key == a.RequestedBy {
		return fault.Errorf(fault.CodeForbidden, "the key that recorded an action cannot decide it: use another key of role member or admin, and give each agent a key of its own")
	}
	if !a.Admits(reviewer.Name) {
		return fault.Errorf(fault.CodeForbidden, "the policy %q names who may decide this: %s; the key %q is not among them", a.PolicyName, a.Deciders(), reviewer.Name)
	}
	return nil
}

// Admits reports whether the policy lets a key with this name decide: a named approver, anyone if
// none is named, and after escalation the organization's fallback approvers.
func (a *Approval) Admits(name string) bool {
	return len(a.Approvers) == 0 || slices.Contains(a.Approvers, name) ||
		(a.EscalatedAt != nil && slices.Contains(a.Fallback, name))
}

// Deciders describes who may decide, now or after escalation.
func (a *Approval) Deciders() string {
	if len(a.Approvers) == 0 {
		return "any member or admin"
	}
	text := strings.Join(a.Approvers, ", ")
	if len(a.Fallback) == 0 || a.Status != ApprovalPending && a.EscalatedAt == nil {
		return text
	}
	fallback := strings.Join(a.Fallback, ", ")
	if a.EscalatedAt != nil {
		return text + ", and since it escalated also " + fallback
	}
	return text + ", and once it has escalated also " + fallback
}

// Advance escalates the approval at half its time and times it out at the end. It reports whether
// anything changed.
func (a *Approval) Advance(now Time) bool {
	if a.Status.Open() && now >= a.ExpiresAt {
		a.settle(ApprovalTimedOut, nil, "", now)
		return true
	}
	return a.escalate(now)
}

// escalate escalates a pending approval at half its time. It reports false if the approval is not
// pending or not due.
func (a *Approval) escalate(now Time) bool {
	if a.Status != ApprovalPending || now < a.EscalatesAt || now >= a.ExpiresAt {
		return false
	}
	a.Status, a.EscalatedAt = ApprovalEscalated, &now
	return true
}

// NextStep returns when time changes the approval next, or 0 for never.
func (a *Approval) NextStep() Time {
	switch {
	case a.Status == ApprovalPending:
		return a.EscalatesAt
	case a.Status.Open():
		return a.ExpiresAt
	}
	return 0
}

// GiveUp ends an approval that its client no longer waits for. It reports whether anything changed.
// It is idempotent.
func (a *Approval) GiveUp(comment string, now Time) (changed bool, err error) {
	switch status := a.At(now); {
	case status == ApprovalCancelled:
		return false, nil
	case status == ApprovalTimedOut:
		return false, fault.Errorf(fault.CodeApprovalExpired, "the approval expired at %s: there is nothing left to cancel", a.ExpiresAt)
	case !status.Open():
		return false, fault.Errorf(fault.CodeApprovalDecided, "the approval is %s already, and the first decision stands", status)
	}
	a.settle(ApprovalCancelled, nil, cmp.Or(comment, gaveUp), now)
	return true, nil
}

// gaveUp replaces a missing comment.
const gaveUp = "the client gave up waiting"

// Cancel ends an approval whose chain was completed first.
func (a *Approval) Cancel(now Time) {
	if !a.Advance(now) || a.Status.Open() {
		a.settle(ApprovalCancelled, nil, "", now)
	}
}

func (a *Approval) settle(status ApprovalStatus, reviewer *Reviewer, comment string, now Time) {
	now = Later(now, a.RequestedAt)
	a.Status, a.Reviewer, a.Comment, a.DecidedAt = status, reviewer, comment, &now
}

// Release returns the decision that a finished approval amounts to, not considering later changes.
func (a *Approval) Release(status ApprovalStatus) Decision {
	d := Decision{
		Outcome: Deny, Source: SourceHuman, PolicyName: a.PolicyName, PolicyVersion: a.PolicyVersion,
		Mode: Enforce, EstimatedCost: a.Reserved.Cost, Matched: a.Matched,
	}
	switch status {
	case ApprovalApproved:
		d.Outcome, d.Reason = Allow, commented("a reviewer approved the action", a.Comment)
	case ApprovalDenied:
		if by := a.DeniedBy; by != nil {
			d.Source, d.PolicyName, d.PolicyVersion = SourceBackend, by.PolicyName, by.PolicyVersion
			d.Reason, d.Remediation = bounded("the rules have changed while the action waited for approval, and deny it: "+by.Reason), by.Remediation
			d.matchedFirst(MatchedRule{Name: by.PolicyName, Outcome: Deny, Reason: bounded(by.Reason)})
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

func commented(what, comment string) string {
	if comment == "" {
		return what
	}
	return what + ": " + comment
}

// DecidedBy says who ended the approval: a person, or a rule that came into force while it waited.
// It is "" if neither did.
func (a *Approval) DecidedBy() Source {
	switch {
	case a.DeniedBy != nil:
		return SourceBackend
	case a.Reviewer != nil:
		return SourceHuman
	}
	return ""
}
