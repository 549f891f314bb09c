package ledger

import (
	"cmp"
	"slices"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// ApprovalStatus is where an approval stands. The first two wait for a person.
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

// ApprovalStatuses lists them all.
var ApprovalStatuses = []ApprovalStatus{ApprovalPending, ApprovalEscalated, ApprovalApproved, ApprovalDenied, ApprovalTimedOut, ApprovalCancelled}

// Open reports whether a person can still decide.
func (s ApprovalStatus) Open() bool { return s == ApprovalPending || s == ApprovalEscalated }

// Approval asks a person about one event with exactly one payload. It is stored
// with an authenticator, so that no hand but the service's can turn a no into a
// yes.
type Approval struct {
	ID            ApprovalID
	Org           OrgID
	Chain         ChainID
	Event         EventID
	Sequence      int64 // of the event
	RequestedBy   KeyID // the key that recorded the action, which must not decide it
	OpenedBy      KeyID // the key that opened the chain, whose agent may see it
	AgentName     string
	ActionType    string
	ActionName    string
	PayloadSHA256 string
	// RedactionsSHA256 is "" where nothing was taken out of the payload, and nil in an
	// approval from before this was kept.
	RedactionsSHA256 *string
	Reason           string
	PolicyName       string
	PolicyVersion    string
	Matched          []MatchedRule
	Approvers        []string // names of the keys that may decide; none: any member
	TwoPerson        bool
	Escalate         []string // e-mail addresses that are told at half the time
	Fallback         []string // those of them that the organization named: they may decide once it has escalated
	Reserved         Reservation
	RequestedAt      Time
	EscalatesAt      Time
	ExpiresAt        Time

	Status      ApprovalStatus
	EscalatedAt *Time
	DecidedAt   *Time
	Votes       []Vote
	Reviewer    *Reviewer // who decided, nil where no person did
	Comment     string
	// DeniedBy is the rule that came into force while a person was asked and denies the
	// action; nil where a person or the time decided.
	DeniedBy *PolicyDenial

	// SigningKey names the key of the registry that signed the decision record;
	// zero while there is no signature.
	SigningKey SigningKeyID
	Signature  []byte
}

// Reservation is what a waiting action holds of its chain's budgets, until its
// decision settles it.
type Reservation struct {
	Facts  Facts
	Cost   *Money
	Tokens int64
	Uses   []BudgetUse // of budgets above the chain
}

func (r *Reservation) exposure() Money {
	if r.Facts.Amount == nil || !r.Facts.has(CategoryFinancial) {
		return Money{}
	}
	return *r.Facts.Amount
}

// Reviewer is who decided: an API key by its id and its name at the time.
type Reviewer struct {
	Key  KeyID
	Name string
}

// Vote is one person's yes where two are needed.
type Vote struct {
	Reviewer Reviewer
	Comment  string
	At       Time
}

// Verdict is a person's answer to an approval.
type Verdict struct {
	Approve       bool
	Comment       string
	PayloadSHA256 string // what the reviewer saw; "" where they do not say
}

// ParseVerdict reads the body of a request that decides an approval; the zero
// Value stands for no body.
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

// ParseCancellation reads the body of a request that cancels an approval; the zero
// Value stands for no body.
func ParseCancellation(v canon.Value) (comment string, err error) {
	if v.IsNull() {
		return "", nil
	}
	f := canon.NewFields(v)
	comment = withoutSecrets(f.Text("comment", maxText))
	return comment, f.Err()
}

// At is the approval as it stands at a moment: one whose time has passed is
// timed out, whether or not anyone has recorded that yet.
func (a *Approval) At(now Time) ApprovalStatus {
	if a.Status.Open() && now >= a.ExpiresAt {
		return ApprovalTimedOut
	}
	return a.Status
}

// Decide takes a person's verdict. It reports whether anything changed: the same
// verdict again changes nothing, and the first of two people's yes leaves the
// approval open. A no settles it whatever has changed since it was asked. A yes is held
// against the settlement, and where the rules in force deny the action it ends the
// approval as denied; DeniedBy says so.
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

// settled answers a verdict on what is settled: the same one harmlessly, another
// with what stands.
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
		return fault.Errorf(fault.CodeForbidden, "the key that recorded an action cannot decide it: use another key")
	}
	if !a.Admits(reviewer.Name) {
		return fault.Errorf(fault.CodeForbidden, "the policy %q names who may decide this: %s; the key %q is not among them", a.PolicyName, a.Deciders(), reviewer.Name)
	}
	return nil
}

// Admits reports whether the policy lets a key of this name decide: one that it
// names, any where it names none, and after escalation also those whom the
// organization named as a fallback.
func (a *Approval) Admits(name string) bool {
	return len(a.Approvers) == 0 || slices.Contains(a.Approvers, name) ||
		(a.EscalatedAt != nil && slices.Contains(a.Fallback, name))
}

// Deciders says in words who may decide, now or once it has escalated.
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

// Advance does what the time asks for: escalation at half of it, time-out at the
// end. It reports whether anything changed.
func (a *Approval) Advance(now Time) bool {
	if a.Status.Open() && now >= a.ExpiresAt {
		a.settle(ApprovalTimedOut, nil, "", now)
		return true
	}
	return a.escalate(now)
}

// escalate moves a waiting approval on at half its time; false when it is not
// waiting any more, or not yet due.
func (a *Approval) escalate(now Time) bool {
	if a.Status != ApprovalPending || now < a.EscalatesAt || now >= a.ExpiresAt {
		return false
	}
	a.Status, a.EscalatedAt = ApprovalEscalated, &now
	return true
}

// NextStep is when time moves an approval on, 0 for never.
func (a *Approval) NextStep() Time {
	switch {
	case a.Status == ApprovalPending:
		return a.EscalatesAt
	case a.Status.Open():
		return a.ExpiresAt
	}
	return 0
}

// GiveUp ends an approval that its client does not wait for any more. It reports
// whether anything changed: repeated, it changes nothing.
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

// gaveUp stands in place of a comment where the client left none.
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

func commented(what, comment string) string {
	if comment == "" {
		return what
	}
	return what + ": " + comment
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
