package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"countersign/internal/fault"
)

var carol = Reviewer{KeyID{NewTimedID(4, [10]byte{4})}, "carol"}

// everyKey returns the keys of all reviewers, valid and with the role member.
func everyKey(a *Approval) func(KeyID) *KeyRecord {
	return func(id KeyID) *KeyRecord {
		for _, r := range []Reviewer{ann, bob, carol} {
			if r.Key == id {
				return &KeyRecord{ID: id, Org: a.Org, Name: r.Name, Role: RoleMember}
			}
		}
		return nil
	}
}

// A yes is checked against what is in force when it is given. Anything looser than the original
// request has no effect.
func TestSettlement(t *testing.T) {
	t.Parallel()
	denied := &PolicyDenial{PolicyName: "new", PolicyVersion: "v2", Reason: "no more"}
	two := func(a *Approval) { a.TwoPerson = true }
	named := func(names ...string) func(*Approval) { return func(a *Approval) { a.Approvers = names } }
	escalated := func(a *Approval) {
		a.Approvers, a.Fallback = []string{"bob"}, []string{"ann"}
		a.Advance(halfTime)
	}
	key := func(change func(*KeyRecord)) func(*Settlement) {
		return func(s *Settlement) {
			find := s.Key
			s.Key = func(id KeyID) *KeyRecord {
				k := find(id)
				if id == ann.Key {
					change(k)
				}
				return k
			}
		}
	}
	past := firstMoment - 1
	for _, c := range []struct {
		name   string
		asked  func(*Approval)
		since  func(*Settlement)
		voters []Reviewer // who voted before the change
		then   Reviewer
		code   fault.Code
		status ApprovalStatus
		votes  int // votes that are kept
	}{
		{"nothing changed", nil, nil, nil, ann, "", ApprovalApproved, 0},
		{"two are needed now", nil, func(s *Settlement) { s.TwoPerson = true }, nil, ann, "", ApprovalPending, 1},
		{"one is enough now", two, nil, nil, ann, "", ApprovalPending, 1},
		{"a rule denies now", nil, func(s *Settlement) { s.Denied = denied }, nil, ann, "", ApprovalDenied, 0},
		{"a rule denies after the first of two", two, func(s *Settlement) { s.Denied = denied }, []Reviewer{ann}, bob, "", ApprovalDenied, 1},
		{"a rule denies under the kill switch", nil, func(s *Settlement) { s.Denied, s.Killed = denied, true }, nil, ann, fault.CodeKillSwitchActive, ApprovalPending, 0},
		{"others are named now", nil, func(s *Settlement) { s.Approvers = []string{"bob"} }, nil, ann, fault.CodeForbidden, ApprovalPending, 0},
		{"fewer are named now", named("ann", "bob"), func(s *Settlement) { s.Approvers = []string{"bob"} }, nil, bob, "", ApprovalApproved, 0},
		{"others were named", named("bob"), func(s *Settlement) { s.Approvers = []string{"ann"} }, nil, ann, fault.CodeForbidden, ApprovalPending, 0},
		{"nobody is named now", named("bob"), nil, nil, ann, fault.CodeForbidden, ApprovalPending, 0},
		{"a fallback approver", escalated, func(s *Settlement) { s.Fallback = []string{"ann"} }, nil, ann, "", ApprovalApproved, 0},
		{"a fallback approver beside other approvers", escalated, func(s *Settlement) {
			s.Fallback, s.Approvers = []string{"ann"}, []string{"chief"}
		}, nil, ann, "", ApprovalApproved, 0},
		{"a former fallback approver", escalated, nil, nil, ann, fault.CodeForbidden, ApprovalEscalated, 0},
		{"a later fallback approver", escalated, func(s *Settlement) { s.Fallback = []string{"carol"} }, nil, carol, fault.CodeForbidden, ApprovalEscalated, 0},

		{"the second of two", two, nil, []Reviewer{ann}, bob, "", ApprovalApproved, 2},
		{"the first was revoked", two, key(func(k *KeyRecord) { k.RevokedAt = &past }), []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"the first has expired", two, key(func(k *KeyRecord) { k.ExpiresAt = &past }), []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"the first is an agent's", two, key(func(k *KeyRecord) { k.Role = RoleAgent }), []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"the first has another name", two, key(func(k *KeyRecord) { k.Name = "eve" }), []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"the first is another organization's", two, key(func(k *KeyRecord) { k.Org = OrgID{} }), []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"the first is gone", two, func(s *Settlement) {
			find := s.Key
			s.Key = func(id KeyID) *KeyRecord {
				if id == ann.Key {
					return nil
				}
				return find(id)
			}
		}, []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"the first is not named any more", two, func(s *Settlement) { s.Approvers = []string{"bob", "carol"} }, []Reviewer{ann}, bob, "", ApprovalPending, 2},
		{"a third for the first who was revoked", two, key(func(k *KeyRecord) { k.RevokedAt = &past }), []Reviewer{ann, bob}, carol, "", ApprovalApproved, 2},
		{"the second once more", two, key(func(k *KeyRecord) { k.RevokedAt = &past }), []Reviewer{ann, bob}, bob, "", ApprovalPending, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := waiting()
			if c.asked != nil {
				c.asked(a)
			}
			for _, r := range c.voters {
				a.Votes = append(a.Votes, Vote{Reviewer: r, At: firstMoment})
			}
			s := &Settlement{Key: everyKey(a), Now: firstMoment}
			if c.since != nil {
				c.since(s)
			}
			_, err := a.Decide(&Verdict{Approve: true}, c.then, s, firstMoment)
			if (c.code == "") != (err == nil) || c.code != "" && !isCode(c.code)(err) {
				t.Errorf("answered %v, want code %q", err, c.code)
			}
			if a.Status != c.status || len(a.Votes) != c.votes {
				t.Errorf("it is %s with %d votes, want %s with %d", a.Status, len(a.Votes), c.status, c.votes)
			}
			if overruled := a.Status == ApprovalDenied; overruled != (a.DeniedBy != nil) || overruled && a.Reviewer != nil {
				t.Errorf("denied by %v and %v", a.DeniedBy, a.Reviewer)
			}
			// A no is final whatever was changed.
			if !a.Status.Open() || c.then == carol && c.code != "" {
				return
			}
			if changed, err := a.Decide(&Verdict{}, bob, nil, firstMoment); !changed || err != nil || a.Status != ApprovalDenied {
				t.Errorf("a no leaves it %s: %v", a.Status, err)
			}
		})
	}
}

// What a rule has denied stays denied, says so, and gives the same answer when the yes is repeated.
// A no succeeds.
func TestPolicyDenialStands(t *testing.T) {
	t.Parallel()
	a := waiting()
	s := &Settlement{Key: everyKey(a), Denied: &PolicyDenial{PolicyName: "freeze", PolicyVersion: "v7+0", Reason: "nothing is paid in May", Remediation: "Wait for June."}}
	if changed, err := a.Decide(&Verdict{Approve: true}, ann, s, firstMoment); !changed || err != nil {
		t.Fatal(changed, err)
	}
	record := string(a.DecisionRecord())
	if !strings.Contains(record, `"denied_by":{"policy_name":"freeze","policy_version":"v7+0","reason":"nothing is paid in May","remediation":"Wait for June."}`) {
		t.Errorf("the decision record is %s", record)
	}
	for range 2 {
		if _, err := a.Decide(&Verdict{Approve: true}, bob, nil, firstMoment); !isCode(fault.CodePolicyChanged)(err) || !strings.Contains(err.Error(), `"freeze"`) {
			t.Errorf("a repeated yes is answered %v", err)
		}
	}
	if changed, err := a.Decide(&Verdict{}, bob, nil, firstMoment); changed || err != nil {
		t.Errorf("a no is answered %v, changed %v", err, changed)
	}
	d := a.Release(a.Status)
	if want := []MatchedRule{{Name: "freeze", Outcome: Deny, Reason: "nothing is paid in May"}}; !slices.Equal(d.Matched, slices.Concat(want, a.Matched)) {
		t.Errorf("it lists %+v", d.Matched)
	}
	if d.Outcome != Deny || d.Source != SourceBackend || d.PolicyName != "freeze" || d.PolicyVersion != "v7+0" || !strings.Contains(d.Reason, "in May") || d.Remediation != "Wait for June." {
		t.Errorf("it releases %+v", d)
	}
}

// An open approval with one yes lacks those of others. One with so many votes that they replace each
// other lacks none, and neither does one that has ended.
func TestVotesThatAreLacking(t *testing.T) {
	t.Parallel()
	a := waiting()
	one, other := KeyID{NewTimedID(1, [10]byte{})}, KeyID{NewTimedID(2, [10]byte{})}
	a.Votes = []Vote{{Reviewer: Reviewer{Key: one}}}
	if a.Lacks([]KeyID{one}) || a.Lacks(nil) || !a.Lacks([]KeyID{one, other}) {
		t.Error("what it lacks is not the yes of the other key")
	}
	many := *a
	many.Votes = make([]Vote, maxVotes)
	ended := *a
	ended.Cancel(firstMoment)
	if many.Lacks([]KeyID{other}) || ended.Lacks([]KeyID{other}) {
		t.Error("an approval with many votes, or that has ended, lacks one")
	}
}

// However many keys vote and end, an approval keeps a bounded number of votes, including the one
// that counts.
func TestVotesAreBounded(t *testing.T) {
	t.Parallel()
	a := waiting()
	a.TwoPerson = true
	valid := map[KeyID]bool{}
	find := func(id KeyID) *KeyRecord {
		if !valid[id] {
			return nil
		}
		return &KeyRecord{ID: id, Org: a.Org, Name: "k", Role: RoleMember}
	}
	first := Reviewer{KeyID{NewTimedID(9, [10]byte{9})}, "k"}
	valid[first.Key] = true
	for i := range 3 * maxVotes {
		r := Reviewer{KeyID{NewTimedID(Time(100+i), [10]byte{})}, "k"}
		if i == maxVotes/2 {
			r = first
		}
		if _, err := a.Decide(&Verdict{Approve: true, Comment: fmt.Sprint(i)}, r, &Settlement{Key: find, Now: firstMoment}, firstMoment); err != nil || !a.Status.Open() {
			t.Fatal(i, a.Status, err)
		}
	}
	if len(a.Votes) != maxVotes || !slices.ContainsFunc(a.Votes, func(v Vote) bool { return v.Reviewer == first }) {
		t.Errorf("%d votes are kept: %v", len(a.Votes), a.Votes)
	}
}

// The rules in force are evaluated for the action while it waits: its own reservation does not
// block it, a pause is ignored, and rules in shadow change nothing.
func TestSettlementAsksTheRulesInForce(t *testing.T) {
	t.Parallel()
	rule := func(m Match) func(*ChainState, *Question, *Policy) {
		return func(_ *ChainState, _ *Question, p *Policy) { p.Rules = fixedRules{m} }
	}
	for _, c := range []struct {
		name      string
		since     func(*ChainState, *Question, *Policy)
		denied    string // the denying rule
		approvers []string
		two       bool
		killed    bool
	}{
		{"nothing changed", func(*ChainState, *Question, *Policy) {}, "", nil, false, false},
		{"a rule that denies", rule(Match{Name: "new", Outcome: Deny}), "new", nil, false, false},
		{"a rule that denies and only reports", rule(Match{Name: "new", Outcome: Deny, Shadow: true}), "", nil, false, false},
		{"a rule that names approvers", rule(Match{Name: "new", Outcome: RequireApproval, Approvers: []string{"ann"}}), "", []string{"ann"}, false, false},
		{"an organization on trial", func(_ *ChainState, q *Question, p *Policy) {
			p.Rules, q.Org.Settings.EvaluationMode = fixedRules{{Name: "new", Outcome: Deny}}, Shadow
		}, "", nil, false, false},
		{"two people", func(_ *ChainState, q *Question, _ *Policy) { q.Org.Settings.TwoPersonApproval = true }, "", nil, true, false},
		{"the kill switch", func(_ *ChainState, q *Question, _ *Policy) { q.Org.Controls.KillSwitch.Active = true }, "", nil, false, true},
		{"a pause", func(s *ChainState, _ *Question, _ *Policy) { s.Status = ChainAutoPaused }, "", nil, false, false},
		{"a limit that was reached", func(s *ChainState, q *Question, _ *Policy) { q.Org.Settings.AutoPause.MaxEvents = 1; s.Actions = 9 }, "", nil, false, false},
		{"the chain's time-out", func(_ *ChainState, q *Question, _ *Policy) { q.Chain.Limits.TimeoutSeconds = 1; q.Now += 2000 }, RuleChainTimeout, nil, false, false},
		{"as many approvals as there can be", func(s *ChainState, _ *Question, _ *Policy) { s.Approvals = maxApprovals }, "", nil, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := question()
			q.Action.Facts = payment(9000)
			recorded := q.State.Record(&Recording{
				Keys: keyRing, Policy: &Policy{}, Org: q.Org, Chain: q.Chain, Action: q.Action, By: asker, Now: q.Now,
				NewApproval: func() ApprovalID { return ApprovalID{NewRandomID([16]byte{1})} },
			})
			policy := &Policy{}
			c.since(q.State, q, policy)
			got := (&RecordedEvent{Event: *recorded.Event}).Settlement(policy, q, recorded.Approval)
			by := ""
			if got.Denied != nil {
				by = got.Denied.PolicyName
			}
			if by != c.denied || !slices.Equal(got.Approvers, c.approvers) || got.TwoPerson != c.two || got.Killed != c.killed {
				t.Errorf("denied by %q, approvers %v, two %v, killed %v", by, got.Approvers, got.TwoPerson, got.Killed)
			}
		})
	}
}
