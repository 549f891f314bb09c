package ledger

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"countersign/internal/canon"
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

// Encode writes the approval's canonical bytes and their authenticator.
func (a *Approval) Encode(keys Keys) (body, mac []byte) {
	w := canon.BeginObject(make([]byte, 0, 1024))
	w.String("action_name", a.ActionName)
	w.String("action_type", a.ActionType)
	w.String("agent_name", a.AgentName)
	writeExact(&w, "amount_usd", a.Reserved.Facts.Amount)
	w.Strings("approvers", a.Approvers)
	if len(a.Reserved.Uses) > 0 {
		w.Value(appendUses(w.Name("budgets"), a.Reserved.Uses))
	}
	w.Strings("categories", a.Reserved.Facts.Categories)
	w.String("chain_id", a.Chain.String())
	w.StringOrNull("comment", a.Comment)
	writeTime(&w, "decided_at", a.DecidedAt)
	writeDenial(&w, a.DeniedBy)
	w.Strings("escalate", a.Escalate)
	writeTime(&w, "escalated_at", a.EscalatedAt)
	writeTime(&w, "escalates_at", &a.EscalatesAt)
	writeExact(&w, "estimated_cost_usd", a.Reserved.Cost)
	w.String("event_id", a.Event.String())
	writeTime(&w, "expires_at", &a.ExpiresAt)
	w.Strings("external_domains", a.Reserved.Facts.ExternalDomains)
	w.Strings("fallback", a.Fallback)
	w.String("id", a.ID.String())
	w.Value(AppendMatched(w.Name("matched_rules"), a.Matched))
	w.String("opened_by", a.OpenedBy.String())
	w.String("organization_id", a.Org.String())
	w.String("payload_sha256", a.PayloadSHA256)
	w.StringOrNull("policy_name", a.PolicyName)
	w.String("policy_version", a.PolicyVersion)
	w.String("reason", a.Reason)
	w.Int("records_modified", a.Reserved.Facts.RecordsModified)
	if a.RedactionsSHA256 != nil {
		w.StringOrNull("redactions_sha256", *a.RedactionsSHA256)
	}
	writeTime(&w, "requested_at", &a.RequestedAt)
	w.String("requested_by", a.RequestedBy.String())
	writeReviewer(&w, a.Reviewer)
	w.Int("sequence", a.Sequence)
	w.StringOrNull("signature", hex.EncodeToString(a.Signature))
	if a.SigningKey == (SigningKeyID{}) {
		w.Null("signing_key_id")
	} else {
		w.String("signing_key_id", a.SigningKey.String())
	}
	w.String("status", string(a.Status))
	w.Int("tokens", a.Reserved.Tokens)
	w.Bool("two_person", a.TwoPerson)
	w.Value(appendVotes(w.Name("votes"), a.Votes))
	body = w.End()
	return body, authenticate(keys, a.Org, PurposeApproval, body)
}

func writeReviewer(w *canon.ObjectWriter, r *Reviewer) {
	if r == nil {
		w.Null("reviewer")
		return
	}
	inner := canon.BeginObject(w.Name("reviewer"))
	inner.String("key_id", r.Key.String())
	inner.String("name", r.Name)
	w.Value(inner.End())
}

// writeDenial writes what only approvals have that a rule denied.
func writeDenial(w *canon.ObjectWriter, d *PolicyDenial) {
	if d == nil {
		return
	}
	inner := canon.BeginObject(w.Name("denied_by"))
	inner.StringOrNull("policy_name", d.PolicyName)
	inner.String("policy_version", d.PolicyVersion)
	inner.String("reason", d.Reason)
	inner.StringOrNull("remediation", d.Remediation)
	w.Value(inner.End())
}

func readDenial(f *Fields) *PolicyDenial {
	nested := f.Nested("denied_by")
	if nested == nil {
		return nil
	}
	denial := &PolicyDenial{
		PolicyName: nested.Text("policy_name", maxName), PolicyVersion: nested.Text("policy_version", maxName),
		Reason: nested.Text("reason", maxStored), Remediation: nested.Text("remediation", maxStored),
	}
	f.Join(nested)
	return denial
}

func appendVotes(dst []byte, votes []Vote) []byte {
	dst = append(dst, '[')
	for i := range votes {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		writeTime(&w, "at", &votes[i].At)
		w.StringOrNull("comment", votes[i].Comment)
		writeReviewer(&w, &votes[i].Reviewer)
		dst = w.End()
	}
	return append(dst, ']')
}

var errUnreadableApproval = errors.New("stored approval cannot be read")

// DecodeApproval reads what Encode wrote and refuses anything else.
func DecodeApproval(body, mac []byte, keys Keys, org OrgID) (*Approval, error) {
	if !authentic(keys, org, PurposeApproval, mac, body) {
		return nil, ErrStateTampered
	}
	v, err := canon.Parse(body)
	if err != nil {
		return nil, errUnreadableApproval
	}
	f := NewFields(v)
	r := idReader{fields: f}
	a := &Approval{
		ID: ApprovalID{r.id("id")}, Org: OrgID{r.id("organization_id")}, Chain: ChainID{r.id("chain_id")}, Event: EventID{r.id("event_id")},
		Sequence:      f.Int("sequence", 1, maxCount),
		RequestedBy:   KeyID{r.id("requested_by")},
		AgentName:     f.Text("agent_name", maxName),
		ActionType:    f.Text("action_type", maxName),
		ActionName:    f.Text("action_name", maxName),
		OpenedBy:      KeyID{r.id("opened_by")},
		PayloadSHA256: f.Text("payload_sha256", maxName), RedactionsSHA256: readRedactionsHash(f),
		Reason:        f.Text("reason", maxStored),
		PolicyName:    f.Text("policy_name", maxName),
		PolicyVersion: f.Text("policy_version", maxName),
		Approvers:     f.Texts("approvers", maxListed, maxStored),
		TwoPerson:     f.Bool("two_person"),
		Escalate:      f.Texts("escalate", maxListed, maxStored),
		Fallback:      f.Texts("fallback", maxListed, maxStored),
		Matched:       readMatched(f),
		Reserved: Reservation{
			Facts: Facts{
				Categories:      f.Texts("categories", maxListed, maxName),
				Amount:          r.money("amount_usd"),
				ExternalDomains: f.Texts("external_domains", maxCount, maxDomain),
				RecordsModified: f.Int("records_modified", 0, maxCount),
			},
			Cost:   r.money("estimated_cost_usd"),
			Tokens: f.Int("tokens", 0, maxCount),
		},
		Status:      ApprovalStatus(f.Text("status", maxName)),
		EscalatedAt: f.Time("escalated_at"),
		DecidedAt:   f.Time("decided_at"),
		Comment:     f.Text("comment", maxStored),
		Reviewer:    r.reviewer(f),
		DeniedBy:    readDenial(f),
	}
	uses, ok := readUses(f)
	if a.Reserved.Uses = uses; !ok {
		return nil, errUnreadableApproval
	}
	a.RequestedAt, a.EscalatesAt, a.ExpiresAt = r.time("requested_at"), r.time("escalates_at"), r.time("expires_at")
	if text := f.Text("signing_key_id", maxName); text != "" {
		a.SigningKey = SigningKeyID{r.id("signing_key_id")}
	}
	if a.Signature, err = hex.DecodeString(f.Text("signature", maxName)); err != nil {
		return nil, errUnreadableApproval
	}
	votes, _ := f.get("votes")
	for _, item := range votes.Items() {
		vote := NewFields(item)
		inner := idReader{fields: vote}
		reviewer := inner.reviewer(vote)
		if reviewer == nil {
			return nil, errUnreadableApproval
		}
		a.Votes = append(a.Votes, Vote{Reviewer: *reviewer, Comment: vote.Text("comment", maxStored), At: inner.time("at")})
		r.failed = r.failed || inner.failed || vote.Err() != nil
	}
	if r.failed || f.Err() != nil || a.Org != org {
		return nil, errUnreadableApproval
	}
	return a, nil
}

// idReader reads members that must be there and well formed, for records that
// only this service writes.
type idReader struct {
	fields *Fields
	failed bool
}

func (r *idReader) id(name string) (id [16]byte) {
	parsed, err := ParseID(r.fields.Text(name, maxName))
	r.failed = r.failed || err != nil
	return parsed
}

func (r *idReader) time(name string) Time {
	t := r.fields.Time(name)
	if t == nil {
		r.failed = true
		return 0
	}
	return *t
}

func (r *idReader) money(name string) *Money {
	text := r.fields.Text(name, maxStored)
	if text == "" {
		return nil
	}
	m, err := parseExact(text)
	r.failed = r.failed || err != nil
	return &m
}

func (r *idReader) reviewer(f *Fields) *Reviewer {
	nested := f.Nested("reviewer")
	if nested == nil {
		return nil
	}
	inner := idReader{fields: nested}
	reviewer := &Reviewer{Key: KeyID{inner.id("key_id")}, Name: nested.Text("name", maxName)}
	f.Join(nested)
	r.failed = r.failed || inner.failed
	return reviewer
}

// DecisionRecord is the canonical account of a decision: who, what, the hashes of the
// payload and of what was taken out of it, when, under which policy. Its hash stands in the receipt.
func (a *Approval) DecisionRecord() []byte {
	w := canon.BeginObject(make([]byte, 0, 512))
	w.String("action_name", a.ActionName)
	w.String("action_type", a.ActionType)
	w.String("agent_name", a.AgentName)
	w.String("approval_id", a.ID.String())
	w.String("chain_id", a.Chain.String())
	w.StringOrNull("comment", a.Comment)
	writeTime(&w, "decided_at", a.DecidedAt)
	writeDenial(&w, a.DeniedBy)
	w.String("event_id", a.Event.String())
	w.String("organization_id", a.Org.String())
	w.String("payload_sha256", a.PayloadSHA256)
	w.StringOrNull("policy_name", a.PolicyName)
	w.String("policy_version", a.PolicyVersion)
	w.String("reason", a.Reason)
	if a.RedactionsSHA256 != nil {
		w.StringOrNull("redactions_sha256", *a.RedactionsSHA256)
	}
	writeTime(&w, "requested_at", &a.RequestedAt)
	w.String("requested_by", a.RequestedBy.String())
	writeReviewer(&w, a.Reviewer)
	w.String("status", string(a.Status))
	w.Value(appendVotes(w.Name("votes"), a.Votes))
	return w.End()
}

// IsAbout reports whether a stored event has the payload that was asked about, with
// the same values taken out of it.
func (a *Approval) IsAbout(event *StoredEvent) bool {
	return PayloadHash(event.Payload) == a.PayloadSHA256 && RedactionsHash(event.Redactions) == orNone(a.RedactionsSHA256)
}

// Hash is the SHA-256 of the decision record.
func (a *Approval) Hash() [32]byte { return sha256.Sum256(a.DecisionRecord()) }

// Sign signs the decision record of an approval that has ended.
func (a *Approval) Sign(key SigningKeyID, private ed25519.PrivateKey) {
	a.SigningKey, a.Signature = key, ed25519.Sign(private, a.DecisionRecord())
}

// SignedBy reports whether the signature is that of a public key over the
// decision record.
func (a *Approval) SignedBy(public ed25519.PublicKey) bool {
	return len(public) == ed25519.PublicKeySize && ed25519.Verify(public, a.DecisionRecord(), a.Signature)
}

// At is the approval as it stands at a moment: one whose time has passed is
// timed out, whether or not anyone has recorded that yet.
func (a *Approval) At(now Time) ApprovalStatus {
	if a.Status.Open() && now >= a.ExpiresAt {
		return ApprovalTimedOut
	}
	return a.Status
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
	f := NewFields(v)
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
	f := NewFields(v)
	comment = withoutSecrets(f.Text("comment", maxText))
	return comment, f.Err()
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
		return false, Errorf(CodePayloadMismatch, "the action waiting here has another payload than the one you saw: read the approval again before you decide")
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

// Admits reports whether the policy lets a key of this name decide: one that it
// names, any where it names none, and after escalation also those whom the
// organization named as a fallback.
func (a *Approval) Admits(name string) bool {
	return len(a.Approvers) == 0 || slices.Contains(a.Approvers, name) ||
		(a.EscalatedAt != nil && slices.Contains(a.Fallback, name))
}

func (a *Approval) mayDecide(reviewer Reviewer) error {
	if reviewer.Key == a.RequestedBy {
		return Errorf(CodeForbidden, "the key that recorded an action cannot decide it: use another key")
	}
	if !a.Admits(reviewer.Name) {
		return Errorf(CodeForbidden, "the policy %q names who may decide this: %s; the key %q is not among them", a.PolicyName, a.Deciders(), reviewer.Name)
	}
	return nil
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
		return Errorf(CodeApprovalExpired, "the approval expired at %s: the action has to be recorded again", a.ExpiresAt)
	default:
		return Errorf(CodeApprovalDecided, "the approval is %s already, and the first decision stands", status)
	}
}

func (a *Approval) settle(status ApprovalStatus, reviewer *Reviewer, comment string, now Time) {
	now = Later(now, a.RequestedAt)
	a.Status, a.Reviewer, a.Comment, a.DecidedAt = status, reviewer, comment, &now
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

// Advance does what the time asks for: escalation at half of it, time-out at the
// end. It reports whether anything changed.
func (a *Approval) Advance(now Time) bool {
	if a.Status.Open() && now >= a.ExpiresAt {
		a.settle(ApprovalTimedOut, nil, "", now)
		return true
	}
	return a.escalate(now)
}

// GiveUp ends an approval that its client does not wait for any more. It reports
// whether anything changed: repeated, it changes nothing.
func (a *Approval) GiveUp(comment string, now Time) (changed bool, err error) {
	switch status := a.At(now); {
	case status == ApprovalCancelled:
		return false, nil
	case status == ApprovalTimedOut:
		return false, Errorf(CodeApprovalExpired, "the approval expired at %s: there is nothing left to cancel", a.ExpiresAt)
	case !status.Open():
		return false, Errorf(CodeApprovalDecided, "the approval is %s already, and the first decision stands", status)
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
