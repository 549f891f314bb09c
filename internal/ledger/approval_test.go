package ledger

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"countersign/internal/fault"
)

const (
	halfTime = firstMoment + 1000
	endTime  = firstMoment + 2000
)

var (
	asker = KeyID{NewTimedID(1, [10]byte{1})}
	ann   = Reviewer{KeyID{NewTimedID(2, [10]byte{2})}, "ann"}
	bob   = Reviewer{KeyID{NewTimedID(3, [10]byte{3})}, "bob"}
)

// waiting returns an approval that nobody has decided.
func waiting() *Approval {
	return &Approval{
		ID: ApprovalID{NewRandomID([16]byte{1})}, Org: OrgID{must(ParseID(sampleID))}, Sequence: 1, RequestedBy: asker, PayloadSHA256: "seen",
		RequestedAt: firstMoment, EscalatesAt: halfTime, ExpiresAt: endTime, Status: ApprovalPending,
	}
}

// A verdict counts if the approval is open, the person may decide, and the payload is the one they
// saw. A decided approval does not change.
func TestDecideApproval(t *testing.T) {
	t.Parallel()
	yes, no := &Verdict{Approve: true}, &Verdict{}
	settledAs := func(status ApprovalStatus) func(*Approval) {
		return func(a *Approval) { a.settle(status, nil, "", firstMoment) }
	}
	for _, c := range []struct {
		name     string
		arrange  func(*Approval)
		verdict  *Verdict
		reviewer Reviewer
		killed   bool
		now      Time
		code     fault.Code
		changed  bool
		want     ApprovalStatus
	}{
		{"yes", nil, yes, ann, false, firstMoment, "", true, ApprovalApproved},
		{"no", nil, no, ann, false, firstMoment, "", true, ApprovalDenied},
		{"yes at the last moment", nil, yes, ann, false, endTime - 1, "", true, ApprovalApproved},
		{"yes at the end", nil, yes, ann, false, endTime, fault.CodeApprovalExpired, false, ApprovalPending},
		{"no after the end", nil, no, ann, false, endTime + 9, fault.CodeApprovalExpired, false, ApprovalPending},
		{"yes when escalated", func(a *Approval) { a.Advance(halfTime) }, yes, ann, false, halfTime, "", true, ApprovalApproved},
		{"yes under the kill switch", nil, yes, ann, true, firstMoment, fault.CodeKillSwitchActive, false, ApprovalPending},
		{"no under the kill switch", nil, no, ann, true, firstMoment, "", true, ApprovalDenied},
		{"yes to what is approved", settledAs(ApprovalApproved), yes, bob, false, firstMoment, "", false, ApprovalApproved},
		{"no to what is approved", settledAs(ApprovalApproved), no, bob, false, firstMoment, fault.CodeApprovalDecided, false, ApprovalApproved},
		{"yes to what is denied", settledAs(ApprovalDenied), yes, bob, false, firstMoment, fault.CodeApprovalDecided, false, ApprovalDenied},
		{"no to what is denied", settledAs(ApprovalDenied), no, bob, false, endTime, "", false, ApprovalDenied},
		{"yes to what is cancelled", settledAs(ApprovalCancelled), yes, bob, false, firstMoment, fault.CodeApprovalDecided, false, ApprovalCancelled},
		{"yes to what has timed out", settledAs(ApprovalTimedOut), yes, bob, false, endTime, fault.CodeApprovalExpired, false, ApprovalTimedOut},
		{"yes by the asker", nil, yes, Reviewer{asker, "ann"}, false, firstMoment, fault.CodeForbidden, false, ApprovalPending},
		{"no by the asker", nil, no, Reviewer{asker, "ann"}, false, firstMoment, fault.CodeForbidden, false, ApprovalPending},
		{"yes by one who is named", func(a *Approval) { a.Approvers = []string{"ann"} }, yes, ann, false, firstMoment, "", true, ApprovalApproved},
		{"yes by one who is not named", func(a *Approval) { a.Approvers = []string{"ann"} }, yes, bob, false, firstMoment, fault.CodeForbidden, false, ApprovalPending},
		{"yes to the payload seen", nil, &Verdict{Approve: true, PayloadSHA256: "seen"}, ann, false, firstMoment, "", true, ApprovalApproved},
		{"yes to another payload", nil, &Verdict{Approve: true, PayloadSHA256: "other"}, ann, false, firstMoment, fault.CodePayloadMismatch, false, ApprovalPending},
		{"one yes of two", func(a *Approval) { a.TwoPerson = true }, yes, ann, false, firstMoment, "", true, ApprovalPending},
		{"the same yes of two", votedBy(ann), yes, ann, false, firstMoment, "", false, ApprovalPending},
		{"the second yes of two", votedBy(ann), yes, bob, false, firstMoment, "", true, ApprovalApproved},
		{"a no after one yes of two", votedBy(ann), no, ann, false, firstMoment, "", true, ApprovalDenied},
		{"a second yes under the kill switch", votedBy(ann), yes, bob, true, firstMoment, fault.CodeKillSwitchActive, false, ApprovalPending},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := waiting()
			if c.arrange != nil {
				c.arrange(a)
			}
			before := a.DecisionRecord()
			changed, err := a.Decide(c.verdict, c.reviewer, &Settlement{Killed: c.killed, Key: everyKey(a), Now: c.now}, c.now)
			if (c.code == "") != (err == nil) || c.code != "" && !isCode(c.code)(err) {
				t.Errorf("answered %v, want code %q", err, c.code)
			}
			if changed != c.changed || a.Status != c.want || changed == bytes.Equal(before, a.DecisionRecord()) {
				t.Errorf("it is %s, changed %v", a.Status, changed)
			}
			if !a.Status.Open() && changed && (a.DecidedAt == nil || a.Reviewer.Key != c.reviewer.Key) {
				t.Errorf("decided at %v by %v", a.DecidedAt, a.Reviewer)
			}
		})
	}
}

func votedBy(r Reviewer) func(*Approval) {
	return func(a *Approval) {
		a.TwoPerson = true
		_, _ = a.Decide(&Verdict{Approve: true}, r, &Settlement{Key: everyKey(a), Now: firstMoment}, firstMoment)
	}
}

// An approval escalates after half its time and times out at its end, and cancelling it later does
// not hide the timeout.
func TestAdvanceAndCancel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		now  Time
		step func(*Approval, Time) bool
		want ApprovalStatus
	}{
		{"before half the time", halfTime - 1, (*Approval).Advance, ApprovalPending},
		{"at half the time", halfTime, (*Approval).Advance, ApprovalEscalated},
		{"just before the end", endTime - 1, (*Approval).Advance, ApprovalEscalated},
		{"at the end", endTime, (*Approval).Advance, ApprovalTimedOut},
		{"cancelled before the end", endTime - 1, cancelled, ApprovalCancelled},
		{"cancelled at the end", endTime, cancelled, ApprovalTimedOut},
	} {
		a := waiting()
		moved := c.step(a, c.now)
		if a.Status != c.want || moved != (c.want != ApprovalPending) || a.Reviewer != nil {
			t.Errorf("%s it is %s, moved %v", c.name, a.Status, moved)
		}
		if again := a.Advance(c.now); again {
			t.Errorf("%s it moves a second time", c.name)
		}
		if at := waiting().At(c.now); at != ApprovalPending && at != ApprovalTimedOut || (at == ApprovalTimedOut) != (c.now >= endTime) {
			t.Errorf("%s it stands as %s", c.name, at)
		}
	}
	back := waiting()
	back.settle(ApprovalDenied, &ann, "", firstMoment-5000)
	if *back.DecidedAt != firstMoment {
		t.Errorf("a clock that jumps back decides at %s, before it was asked", back.DecidedAt)
	}
}

func cancelled(a *Approval, now Time) bool {
	a.Cancel(now)
	return true
}

func anyApproval() *rapid.Generator[*Approval] {
	return rapid.Custom(func(t *rapid.T) *Approval {
		key := func(name string) KeyID { return KeyID{anyUUID().Draw(t, name)} }
		a := &Approval{
			ID: ApprovalID{anyUUID().Draw(t, "id")}, Org: OrgID{anyUUID().Draw(t, "org")}, Chain: ChainID{anyUUID().Draw(t, "chain")},
			Event: EventID{anyUUID().Draw(t, "event")}, Sequence: rapid.Int64Range(1, maxCount).Draw(t, "sequence"),
			RequestedBy: key("by"), OpenedBy: key("opener"), AgentName: anyText(maxName).Draw(t, "agent"),
			ActionType: anyText(maxName).Draw(t, "type"), ActionName: anyText(maxName).Draw(t, "action"),
			PayloadSHA256: PayloadHash(nil), RedactionsSHA256: maybe(anyText(maxName)).Draw(t, "redactions"), Reason: anyText(maxText).Draw(t, "reason"), PolicyName: anyText(maxName).Draw(t, "policy"),
			PolicyVersion: anyText(maxName).Draw(t, "version"), Approvers: anyTexts().Draw(t, "approvers"), TwoPerson: rapid.Bool().Draw(t, "two"),
			Escalate: anyTexts().Draw(t, "escalate"),
			Reserved: Reservation{
				Facts: Facts{
					Categories: anyTexts().Draw(t, "categories"), Amount: maybe(anyAmount()).Draw(t, "amount"),
					ExternalDomains: anyTexts().Draw(t, "domains"), RecordsModified: anyCount().Draw(t, "records"),
				},
				Cost: maybe(anyAmount()).Draw(t, "cost"), Tokens: anyCount().Draw(t, "tokens"),
			},
			RequestedAt: anyTime().Draw(t, "requested"), EscalatesAt: anyTime().Draw(t, "escalates"), ExpiresAt: anyTime().Draw(t, "expires"),
			Status: rapid.SampledFrom(ApprovalStatuses).Draw(t, "status"), EscalatedAt: maybe(anyTime()).Draw(t, "escalated"),
			DecidedAt: maybe(anyTime()).Draw(t, "decided"), Comment: anyText(maxText).Draw(t, "comment"),
		}
		if rapid.Bool().Draw(t, "reviewed") {
			a.Reviewer = &Reviewer{key("reviewer"), anyText(maxName).Draw(t, "name")}
		}
		if rapid.Bool().Draw(t, "overruled") {
			a.DeniedBy = &PolicyDenial{
				PolicyName: anyText(maxName).Draw(t, "denying policy"), PolicyVersion: anyText(maxName).Draw(t, "denying version"),
				Reason: anyText(maxText).Draw(t, "denying reason"), Remediation: anyText(maxText).Draw(t, "remediation"),
			}
		}
		for range rapid.IntRange(0, 2).Draw(t, "votes") {
			a.Votes = append(a.Votes, Vote{Reviewer{key("voter"), anyText(maxName).Draw(t, "voter's name")}, anyText(maxText).Draw(t, "vote"), anyTime().Draw(t, "at")})
		}
		return a
	})
}

// A stored approval is read back byte for byte, only for its own organization, and any change to it
// is refused.
func TestApprovalsAreReadBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := anyApproval().Draw(t, "approval")
		body, mac := a.Encode(keyRing)
		read, err := DecodeApproval(body, mac, keyRing, a.Org)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := read.Encode(keyRing); !bytes.Equal(again, body) {
			t.Fatalf("read back it is\n%s\nand was\n%s", again, body)
		}
		if read.Hash() != a.Hash() {
			t.Fatal("read back its decision has another hash")
		}
		if _, err := DecodeApproval(body, mac, keyRing, OrgID{NewRandomID([16]byte{7})}); err == nil {
			t.Fatal("another organization reads it")
		}
		body[rapid.IntRange(0, len(body)-1).Draw(t, "place")] ^= 1
		if _, err := DecodeApproval(body, mac, keyRing, a.Org); err == nil {
			t.Fatal("a changed approval is read")
		}
	})
}

// A refused reviewer learns which rule refuses, and whom to ask.
func TestRefusedReviewerIsToldWhoDecides(t *testing.T) {
	t.Parallel()
	q := question()
	q.Action.Facts = payment(9000)
	d := Decide(&Policy{Rules: fixedRules{{Name: "own", Outcome: RequireApproval}, {Name: "the treasury", Outcome: RequireApproval, Approvers: []string{"ann", "chief"}}}}, q)
	a := &Approval{PolicyName: d.PolicyName, Approvers: d.Approvers}
	want := `the policy "the treasury" names who may decide this: ann, chief; the key "bob" is not among them`
	if err := a.mayDecide(Reviewer{Key: KeyID{NewRandomID([16]byte{1})}, Name: "bob"}); err == nil || err.Error() != want {
		t.Errorf("refused with %v, want %s", err, want)
	}
}
