package service_test

import (
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// A member may decide an approval. An agent, the key that requested it and another organization
// may not.
func TestWhoMayDecide(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		stranger := newTenant(t, g.Service, "other")
		chain := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.admin, chainNamed(t, "own"), "")).ID
		recorded := must[*service.Recorded](t)(g.RecordEvent(t.Context(), g.who.admin, chain, payment(t, gatedAmount, "")))
		id := recorded.Event.Approval
		for name, c := range map[string]struct {
			caller *service.Caller
			want   fault.Code
		}{
			"the key that recorded it":     {g.who.admin, fault.CodeForbidden},
			"an agent":                     {g.who.agent, fault.CodeForbidden},
			"another organization's admin": {stranger.admin, fault.CodeNotFound},
		} {
			for _, approve := range []bool{true, false} {
				checkCode(t, name, g.decide(c.caller, id, approve), c.want)
			}
		}
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		checkCode(t, "a member", g.decide(g.who.member, id, true), "")
		if got := g.view(id).Reviewer; got == nil || got.Key != g.who.member.Key || got.Name != "test" {
			t.Errorf("the reviewer is %+v", got)
		}
		_, err := g.Approval(t.Context(), stranger.admin, id, 0)
		checkCode(t, "another organization reads", err, fault.CodeNotFound)
		_, err = g.Approval(t.Context(), g.who.admin, ledger.ApprovalID(chain), 0)
		checkCode(t, "an approval that there is not", err, fault.CodeNotFound)
	})
}

// When a rule names its approvers, nobody else may decide, not even an admin.
func TestARuleNamesItsApprovers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ann, bob := g.reviewer("ann"), g.reviewer("bob")
		g.put(`rules: [{name: deploys, when: "action.action_name == 'deploy'", decision: require_approval, reason: ask ann, approvers: [ann, ann@example.com]}]`)
		chain := g.open("deploy")
		recorded := g.record(chain, step(t, "deploy", ""))
		id := recorded.Event.Approval
		if view := g.view(id); view.PolicyName != "deploys" || view.Reason != "ask ann" || len(view.Approvers) != 2 {
			t.Errorf("asked by %q because %q of %v", view.PolicyName, view.Reason, view.Approvers)
		}
		checkCode(t, "someone else", g.decide(bob, id, true), fault.CodeForbidden)
		checkCode(t, "an admin", g.decide(g.who.admin, id, false), fault.CodeForbidden)
		checkCode(t, "ann", g.decide(ann, id, true), "")
		checkStatus(t, g.view(id), ledger.ApprovalApproved)
		checkIntact(t, g.Service, "acme", 0)
	})
}

// Under the two-person rule two different people must approve, one denial is enough, and an
// approval that was requested under the rule stays under it.
func TestTwoPersonRule(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"two_person_approval":true}`)
		ann, bob := g.reviewer("ann"), g.reviewer("bob")
		chain := g.open("two")
		acts := len(g.acts())
		id := g.ask(chain)
		for range 2 { // the second yes of one person is none
			checkCode(t, "ann's yes", g.decide(ann, id, true), "")
			if view := g.view(id); view.Status != ledger.ApprovalPending || len(view.Votes) != 1 || view.Reviewer != nil {
				t.Errorf("after one person's yes it is %s with %d votes", view.Status, len(view.Votes))
			}
		}
		checkMoney(t, "held meanwhile", g.chainState(chain).Pending.Exposure, gatedAmount)
		g.clock.Set(time.UnixMilli(int64(g.view(id).EscalatesAt)))
		g.passTime()
		checkStatus(t, g.view(id), ledger.ApprovalEscalated)
		checkCode(t, "bob's yes", g.decide(bob, id, true), "")
		if view := g.view(id); view.Status != ledger.ApprovalApproved || len(view.Votes) != 2 || view.Reviewer.Name != "bob" {
			t.Errorf("after two it is %s with %d votes", view.Status, len(view.Votes))
		}
		g.checkActs(t, acts, []wantedAct{{"approval.approve", "ann", id.String()}, {"approval.approve", "bob", id.String()}})

		denied := g.ask(chain)
		checkCode(t, "a yes", g.decide(ann, denied, true), "")
		checkCode(t, "one no is enough", g.decide(bob, denied, false), "")
		checkStatus(t, g.view(denied), ledger.ApprovalDenied)

		// What was asked under the rule stays under it.
		waiting := g.ask(chain)
		g.settings(`{"two_person_approval":false}`)
		checkCode(t, "a yes after the rule was lifted", g.decide(ann, waiting, true), "")
		if g.view(waiting).Status.Open() != true {
			t.Error("one yes releases what was asked of two")
		}
		checkCode(t, "one yes without the rule", g.decide(ann, g.ask(chain), true), "")
		g.complete(chain)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// An agent sees only the approvals of its own chains, and a chain lists open ones first.
func TestAgentsSeeTheirOwnApprovals(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		colleague := servicetest.Authenticate(t, g.Service, newKey(t, g.Service, "acme", ledger.RoleAgent))
		chain := g.open("own")
		decided, waiting := g.ask(chain), g.ask(chain)
		g.approve(decided)
		g.clock.Advance(time.Millisecond)
		newest := g.ask(chain)
		for name, c := range map[string]struct {
			caller *service.Caller
			code   fault.Code
			listed int
		}{
			"its agent": {g.who.agent, "", 3}, "another agent": {colleague, fault.CodeNotFound, 0}, "a member": {g.who.member, "", 3},
		} {
			_, err := g.Approval(t.Context(), c.caller, decided, 0)
			checkCode(t, name+" reads", err, c.code)
			_, err = g.ChainApprovals(t.Context(), c.caller, chain)
			checkCode(t, name+" polls", err, c.code)
			list := must[[]*service.ApprovalView](t)(g.Approvals(t.Context(), c.caller, service.ApprovalFilter{Limit: 10}))
			if len(list) != c.listed {
				t.Errorf("%s lists %d, want %d", name, len(list), c.listed)
			}
		}
		polled := must[*service.ChainApprovals](t)(g.ChainApprovals(t.Context(), g.who.agent, chain))
		var order []ledger.ApprovalID
		for _, view := range polled.Shown {
			order = append(order, view.ID)
		}
		if len(order) != 3 || order[2] != decided || order[1] != newest || order[0] != waiting {
			t.Errorf("a client that polls per chain gets %v, want the undecided first: %v", order, []ledger.ApprovalID{waiting, newest, decided})
		}
		open := must[[]*service.ApprovalView](t)(g.Approvals(t.Context(), g.who.member, service.ApprovalFilter{Status: ledger.ApprovalPending, Limit: 10}))
		if len(open) != 2 || open[0].ID != newest {
			t.Errorf("%d are pending", len(open))
		}
	})
}

// A client that polls per chain proceeds only on approved: neither a later approval nor the end of
// the list hides a denial.
func TestChainStandsByItsStrictestApproval(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		stands := func(chain ledger.ChainID, want ledger.ApprovalStatus) {
			t.Helper()
			if got := must[*service.ChainApprovals](t)(g.ChainApprovals(t.Context(), g.who.agent, chain)); got.Standing != want {
				t.Errorf("the chain stands at %q, want %q", got.Standing, want)
			}
		}
		chain := g.open("strict")
		stands(chain, "")
		g.approve(g.ask(chain))
		stands(chain, ledger.ApprovalApproved)
		first, second := g.ask(chain), g.ask(chain)
		stands(chain, ledger.ApprovalPending)
		done(t, g.decide(g.who.member, first, false))
		stands(chain, ledger.ApprovalPending)
		g.approve(second)
		stands(chain, ledger.ApprovalDenied)

		late := g.open("late")
		lapsed := g.ask(late)
		g.clock.Set(time.UnixMilli(int64(g.view(lapsed).ExpiresAt)))
		stands(late, ledger.ApprovalTimedOut)
		g.passTime()
		stands(late, ledger.ApprovalTimedOut)
		g.approve(g.ask(late))
		stands(late, ledger.ApprovalTimedOut)

		left := g.open("left")
		g.approve(g.ask(left))
		g.ask(left)
		g.complete(left)
		stands(left, ledger.ApprovalDenied) // a plain no: it was cancelled
	})
}

// A denied approval determines the standing of its chain even if it is too old to be listed.
func TestChainStandsByWhatIsNotShown(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	chain := g.open("long")
	done(t, g.decide(g.who.member, g.ask(chain), false))
	for range 200 {
		g.clock.Advance(time.Millisecond)
		g.approve(g.ask(chain))
	}
	got := must[*service.ChainApprovals](t)(g.ChainApprovals(t.Context(), g.who.agent, chain))
	if got.Standing != ledger.ApprovalDenied || len(got.Shown) != 200 || got.Shown[0].Status != ledger.ApprovalApproved {
		t.Errorf("the chain stands at %q, %d shown from %s", got.Standing, len(got.Shown), got.Shown[0].Status)
	}
}

// The same action sent again has the same approval, whatever its outcome.
//
//countersign:race
func TestGatedActionRepeated(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("repeat")
		first := g.record(chain, payment(t, gatedAmount, "once"))
		for _, s := range []*service.Service{g.Service, g.replica()} {
			again := must[*service.Recorded](t)(s.RecordEvent(t.Context(), g.who.agent, chain, payment(t, gatedAmount, "once")))
			if again.Event.Approval != first.Event.Approval || again.Event.ID != first.Event.ID || again.Event.Status != ledger.EventAwaiting {
				t.Errorf("sent again it is event %s with approval %s", again.Event.ID, again.Event.Approval)
			}
			_, err := s.RecordEvent(t.Context(), g.who.agent, chain, payment(t, gatedAmount+1, "once"))
			checkCode(t, "another amount under the same key", err, fault.CodeIdempotencyConflict)
		}
		g.approve(first.Event.Approval)
		if again := g.record(chain, payment(t, gatedAmount, "once")); again.Event.Approval != first.Event.Approval {
			t.Error("after the decision it asks anew")
		}
		if state := g.chainState(chain); state.Approvals != 1 || state.Actions != 1 {
			t.Errorf("%d actions asked %d times", state.Actions, state.Approvals)
		}
	})
}
