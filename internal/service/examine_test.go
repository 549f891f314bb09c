package service_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// However long an organization's rules take on an action, they delay neither another
// organization's actions nor the organization's own kill switch, which then stops the
// action.
//
//countersign:race
func TestRulesDelayNobodyElse(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.put(flagDeploys)
		chain := g.open("busy")
		g.record(chain, step(t, "deploy", "")) // the service knows the set from here on
		other := newTenant(t, g.Service, "other")
		others := must[*service.ChainView](t)(g.OpenChain(t.Context(), other.agent, chainNamed(t, "quiet"), ""))

		release, err := g.HoldExamination(t.Context(), g.who.id)
		if err != nil {
			t.Fatal(err)
		}
		recorded := make(chan *service.Recorded, 1)
		action := step(t, "deploy", "")
		go func() {
			defer close(recorded)
			if e, err := g.RecordEvent(context.WithoutCancel(t.Context()), g.who.agent, chain, action); err == nil {
				recorded <- e
			}
		}()
		for g.Examining(g.who.id) < 2 {
			time.Sleep(time.Millisecond)
		}
		e := must[*service.Recorded](t)(g.RecordEvent(t.Context(), other.agent, others.Chain.ID, step(t, "deploy", "")))
		if e.Event.Status != ledger.EventAllowed {
			t.Errorf("the other organization's action is %s", e.Event.Status)
		}
		if _, err := g.ActivateKillSwitch(t.Context(), g.who.admin, "stop"); err != nil {
			t.Fatal(err)
		}
		release()
		if e := <-recorded; e == nil || e.Event.Status != ledger.EventDenied || !e.Event.Decision.KillSwitchActive {
			t.Errorf("an action that was examined while the kill switch was activated is %+v", e)
		}
		if n := g.Examining(g.who.id); n != 0 {
			t.Errorf("%d callers are left behind", n)
		}
	})
}

// A caller that gives up waiting for its organization's rules, and one that has waited
// for long, are told that nothing was recorded.
func TestWaitingForRulesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s service.Service
		org := ledger.OrgID{}
		release, err := s.HoldExamination(t.Context(), org)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := s.HoldExamination(t.Context(), org); err == nil || time.Since(began) != 20*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.HoldExamination(ctx, org); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gives up is told %v", err)
		}
		release()
		if n := s.Examining(org); n != 0 {
			t.Errorf("%d callers are left behind", n)
		}
	})
}

// A set that was put under the bounds of an earlier version stays in force.
func TestSetsFromBeforeStayInForce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		slow := &service.PolicyDocument{Text: []byte(`rules: [{name: slow, when: "action.payload.list.exists(i, i == chain.name)", decision: deny, reason: r}]`), YAML: true}
		_, err := g.PutPolicy(t.Context(), g.who.admin, slow)
		checkCode(t, "a set over the bound", err, ledger.CodeInvalid)
		must[*service.PolicyView](t)(g.PutPolicyAsBefore(t.Context(), g.who.admin, slow))
		if found, err := g.Operator().SlowPolicies(t.Context()); err != nil || len(found) != 1 || found[0].Organization != "acme" || found[0].Rules[0] != "slow" {
			t.Errorf("slow policies: %v %v", found, err)
		}
		chain := g.open("named")
		if e := g.record(chain, request(t, ledger.ParseAction, `{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":{"list":["named"]}}`)); e.Event.Status != ledger.EventDenied || e.Event.Decision.PolicyName != "slow" {
			t.Errorf("under a set from before, an action is %+v", e.Event.Decision)
		}
	})
}
