package ledger

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"countersign/internal/fault"
)

// gatedChain returns a chain whose only action waits for a person.
func gatedChain(t *testing.T, facts Facts) (*page, *Approval) {
	t.Helper()
	p := newBook(t).open("")
	recording := plainly(p.chain, &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "pay", Payload: []byte("{}"), Facts: facts}, firstMoment, [10]byte{1})
	recording.By = asker
	recorded := p.state.Record(recording)
	if recorded.Approval == nil {
		t.Fatalf("nobody is asked: %+v", recorded.Event.Decision)
	}
	p.entries = append(p.entries, recorded.Stored)
	return p, recorded.Approval
}

// An action that waits for approval reserves its amount and tokens. Approving it spends them, and
// any other end releases them.
func TestAskingHoldsAndSettlingGivesBack(t *testing.T) {
	t.Parallel()
	facts := payment(7000)
	facts.InputTokens = 40
	for status, spent := range map[ApprovalStatus]bool{ApprovalApproved: true, ApprovalDenied: false, ApprovalTimedOut: false, ApprovalCancelled: false} {
		p, approval := gatedChain(t, facts)
		s := p.state
		if s.Pending.Exposure.Cmp(MoneyOf(7000)) != 0 || s.Pending.Tokens != 40 || s.Waiting != 1 || s.Approvals != 1 || s.Tokens != 0 {
			t.Errorf("what waits holds %+v", s.Pending)
		}
		if approval.RequestedBy != asker || approval.OpenedBy != p.chain.OpenedBy || approval.ExpiresAt-approval.RequestedAt != 2*(approval.EscalatesAt-approval.RequestedAt) {
			t.Errorf("it is asked as %+v", approval)
		}
		approval.settle(status, nil, "", firstMoment+5)
		addendum := s.Settle(approval, firstMoment+5)
		entry := must(DecodeEntry(addendum.Body))
		if entry.ApprovalStatus != status || entry.ApprovalHash != approval.Hash() || entry.Position != 2 || s.Entries != 2 || s.LastAt != firstMoment+600 && s.LastAt < firstMoment+5 {
			t.Errorf("%s: the entry is %+v", status, entry)
		}
		wantSpent, wantTokens := Money{}, int64(0)
		if spent {
			wantSpent, wantTokens = MoneyOf(7000), 40
		}
		if s.Metrics.FinancialExposure.Cmp(wantSpent) != 0 || s.Tokens != wantTokens || s.Pending.Exposure.Cmp(Money{}) != 0 || s.Pending.Tokens != 0 || s.Waiting != 0 {
			t.Errorf("%s: spent %s and %d tokens, held %+v", status, s.Metrics.FinancialExposure, s.Tokens, s.Pending)
		}
		replay := NewReplay(p.chain.ID)
		if err := replay.Event(p.entries[0].(*StoredEvent)); err != nil {
			t.Fatal(err)
		}
		if err := replay.Addendum(addendum); err != nil {
			t.Fatal(err)
		}
		if err := replay.Matches(s.Digest, 1); err != nil {
			t.Error(err)
		}
		checkReplayedApproval(t, replay, approval)
	}
}

// checkReplayedApproval requires the approval as it ended, and no other.
func checkReplayedApproval(t *testing.T, replay *Replay, approval *Approval) {
	t.Helper()
	for name, change := range map[string]func(*Approval){
		"reopened": func(a *Approval) { a.Status = ApprovalPending }, "commented": func(a *Approval) { a.Comment = "x" },
		"of another event": func(a *Approval) { a.Sequence = 2 }, "another": func(a *Approval) { a.ID = ApprovalID{NewRandomID([16]byte{9})} },
	} {
		other := *approval
		change(&other)
		again := *replay
		again.asked = map[ApprovalID]int64{approval.ID: 1}
		if again.Approvals([]*Approval{&other}) == nil {
			t.Errorf("an approval that was %s passes", name)
		}
	}
	if err := replay.Approvals([]*Approval{approval}); err != nil {
		t.Error(err)
	}
	replay.asked[approval.ID] = 1
	if replay.Approvals(nil) == nil {
		t.Error("a missing approval passes")
	}
}

// An approval that ends twice was rolled back in between.
func TestReplayRefusesASecondEnd(t *testing.T) {
	t.Parallel()
	p, approval := gatedChain(t, payment(7000))
	replay := NewReplay(p.chain.ID)
	if err := replay.Event(p.entries[0].(*StoredEvent)); err != nil {
		t.Fatal(err)
	}
	for i, status := range []ApprovalStatus{ApprovalApproved, ApprovalCancelled} {
		approval.settle(status, nil, "", firstMoment)
		if err := replay.Addendum(p.state.Settle(approval, firstMoment)); (err != nil) != (i == 1) {
			t.Errorf("end %d: %v", i+1, err)
		}
	}
}

// What a client allowed is recorded as having happened: it never waits and is never denied,
// whatever rules are enforced or in shadow.
func TestReportsNeverWait(t *testing.T) {
	t.Parallel()
	outcomes := []Outcome{Allow, AllowWithFlag, RequireApproval, Deny}
	for _, acting := range outcomes {
		for _, tried := range outcomes {
			for _, kind := range []string{"tool_call", ActionTypeGap} {
				q := question()
				q.Action.Source, q.Action.ActionType = SourceOffline, kind
				rules := fixedRules{{Name: "acting", Outcome: acting}, {Name: "tried", Outcome: tried, Shadow: true}}
				d := Decide(&Policy{Version: "v1", Rules: rules}, q)
				want := AllowWithFlag
				if acting == Allow && kind != ActionTypeGap {
					want = Allow
				}
				if d.Outcome != want || d.Violated() != (kind != ActionTypeGap && acting.StricterThan(Allow)) {
					t.Errorf("%s: acting %s, tried %s: %s, violated %v", kind, acting, tried, d.Outcome, d.Violated())
				}
				if d.Violated() && d.Shadow != acting {
					t.Errorf("acting %s, tried %s: the violation is said to be of %s", acting, tried, d.Shadow)
				}
			}
		}
	}
}

// While the kill switch is active every event is denied, whatever was decided before.
func TestHaltedEvents(t *testing.T) {
	t.Parallel()
	active, idle := &KillSwitch{Active: true, Reason: "stop"}, &KillSwitch{Reason: "stop"}
	for outcome, status := range map[Outcome]EventStatus{Allow: EventAllowed, AllowWithFlag: EventFlagged, RequireApproval: EventAwaiting, Deny: EventDenied} {
		recorded := RecordedEvent{Event: Event{Decision: Decision{Outcome: outcome, PolicyName: "own"}, Status: status, Sequence: 1}}
		again := func(k *KillSwitch) *Event {
			q := question()
			q.Org.Controls.KillSwitch = *k
			return recorded.AnswerRepeated(BuiltinPolicy, q, nil)
		}
		event := again(idle)
		if event.Status != status || event.Decision.Outcome != outcome {
			t.Errorf("without the kill switch %s became %s", status, event.Status)
		}
		event = again(active)
		if event.Status != EventDenied || event.Decision.Outcome != Deny {
			t.Errorf("under the kill switch %s is %s", status, event.Status)
		}
		if d := &event.Decision; !d.KillSwitchActive || d.PauseReason != "stop" || (d.PolicyName == "own") != (outcome == Deny) {
			t.Errorf("under the kill switch %s says %+v", status, event.Decision)
		}
	}
}

// A denial by the kill switch reads the same whether the action is new or was decided before, in a
// trial run or by a person: it names the switch among the rules and is never in shadow. The rules
// that matched before are still listed, and the record is not changed.
func TestHaltedEventsReadAsNewOnes(t *testing.T) {
	t.Parallel()
	k := &KillSwitch{Active: true, Reason: "stop"}
	q := question()
	q.Org.Controls.KillSwitch = *k
	fresh := Decide(BuiltinPolicy, q)
	own := MatchedRule{Name: "own", Outcome: RequireApproval, Reason: "ask"}
	for name, before := range map[string]Decision{
		"allowed":        {Outcome: Allow, Source: SourceBackend, Mode: Enforce},
		"on trial":       {Outcome: Allow, Source: SourceBackend, Mode: Shadow, Shadow: RequireApproval, Matched: []MatchedRule{own}},
		"by a person":    {Outcome: Allow, Source: SourceHuman, Mode: Enforce, PolicyName: "own", Matched: []MatchedRule{own}},
		"waiting":        {Outcome: RequireApproval, Source: SourceBackend, Mode: Enforce, PolicyName: "own", Matched: []MatchedRule{own}},
		"by many a rule": {Outcome: Allow, Source: SourceBackend, Mode: Enforce, Matched: slices.Repeat([]MatchedRule{own}, maxMatched)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := slices.Clone(before.Matched)
			want := fresh
			want.PolicyVersion, want.Source = before.PolicyVersion, before.Source
			want.Matched = slices.Concat(fresh.Matched, before.Matched)[:min(len(before.Matched)+1, maxMatched)]
			if diff := cmp.Diff(want, before.Halted(k), cmpopts.IgnoreFields(Decision{}, "EstimatedCost")); diff != "" {
				t.Errorf("(-decided now +halted):\n%s", diff)
			}
			if diff := cmp.Diff(kept, before.Matched); diff != "" {
				t.Errorf("the earlier decision changed (-before +after):\n%s", diff)
			}
		})
	}
}

// Resuming a paused chain restarts its limits and records who did it. A running or sealed chain
// cannot be resumed.
func TestResumeGrantsAnew(t *testing.T) {
	t.Parallel()
	p := newBook(t).open("")
	event := p.record("agent", "step", "{}", "")
	if _, err := p.state.Resume(p.chain.ID, event.ID, "ann", firstMoment); !isCode(fault.CodeNotPaused)(err) {
		t.Errorf("a running chain is resumed: %v", err)
	}
	p.state.Status, p.state.PauseReason, p.state.Tokens = ChainAutoPaused, "too much", 9
	now := p.state.LastAt + 50
	addendum, err := p.state.Resume(p.chain.ID, event.ID, "ann", now)
	if err != nil {
		t.Fatal(err)
	}
	if s := p.state; s.Status != ChainActive || s.PauseReason != "" || s.Granted != (Allowance{Actions: 1, Tokens: 9, At: now}) {
		t.Errorf("resumed it is %s with %+v", s.Status, s.Granted)
	}
	if entry := must(DecodeEntry(addendum.Body)); entry.Kind != EntryResume || entry.Detail != "ann" || entry.Event != event.ID || entry.Sequence != 1 {
		t.Errorf("the entry is %+v", entry)
	}
	p.state.Status = ChainCompleted
	if _, err := p.state.Resume(p.chain.ID, event.ID, "ann", now); !isCode(fault.CodeChainSealed)(err) {
		t.Errorf("a sealed chain is resumed: %v", err)
	}
}
