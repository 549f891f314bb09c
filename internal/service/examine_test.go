package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// However long an organization's rules take for an action, they delay neither other organizations'
// actions nor the organization's own kill switch, which then stops the action.
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
		g.stopBeside(other, others.Chain.ID)
		release()
		g.checkStopped(<-recorded)
		if n := g.Examining(g.who.id); n != 0 {
			t.Errorf("%d callers are left behind", n)
		}
	})
}

// stopBeside expects that another organization is served and the kill switch takes effect while
// something of this organization is blocked.
func (g *governed) stopBeside(other *tenant, chain ledger.ChainID) {
	g.t.Helper()
	e := must[*service.Recorded](g.t)(g.RecordEvent(g.t.Context(), other.agent, chain, step(g.t, "deploy", "")))
	if e.Event.Status != ledger.EventAllowed {
		g.t.Errorf("the other organization's action is %s", e.Event.Status)
	}
	must[*ledger.KillSwitch](g.t)(g.ActivateKillSwitch(g.t.Context(), g.who.admin, "stop"))
}

// checkStopped expects that an action that was blocked meanwhile is stopped.
func (g *governed) checkStopped(e *service.Recorded) {
	g.t.Helper()
	if e == nil || e.Event.Status != ledger.EventDenied || !e.Event.Decision.KillSwitchActive {
		g.t.Errorf("an action that was held up while the kill switch was activated is %+v", e)
	}
}

// A set that this process does not know is compiled outside the transaction: however long that
// takes, it delays neither other organizations' actions nor the organization's own kill switch.
// Only one of an organization's requests compiles, simulates or lists sets at a time.
//
//countersign:race
func TestCompilingDelaysNobodyElse(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.put(flagDeploys)
		chain := g.open("busy")
		other := newTenant(t, g.Service, "other")
		others := must[*service.ChainView](t)(g.OpenChain(t.Context(), other.agent, chainNamed(t, "quiet"), ""))
		g.Service = g.replica() // which knows no set
		release, err := g.HoldCompilation(t.Context(), g.who.id)
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.WithoutCancel(t.Context())
		recorded := make(chan *service.Recorded, 1)
		action := step(t, "deploy", "")
		waiting := map[string]func() error{
			"a record": func() error {
				defer close(recorded)
				e, err := g.RecordEvent(ctx, g.who.agent, chain, action)
				if err == nil {
					recorded <- e
				}
				return err
			},
			"an open": func() error {
				_, err := g.OpenChain(ctx, g.who.agent, chainNamed(t, "another"), "")
				return err
			},
			"a check": func() error {
				_, err := g.CheckPolicy(ctx, g.who.member, &service.PolicyDocument{Text: []byte(flagDeploys)})
				return err
			},
			"a simulation": func() error {
				_, err := g.SimulatePolicy(ctx, g.who.admin, &service.Simulation{Document: service.PolicyDocument{Text: []byte(flagDeploys)}, MaxEvents: 1})
				return err
			},
			"a list": func() error {
				_, _, err := g.Policies(ctx, g.who.member, 0, 10)
				return err
			},
		}
		ended := make(chan error, len(waiting))
		for what, wait := range waiting {
			go func() {
				err := wait()
				if err != nil {
					err = fmt.Errorf("%s: %w", what, err)
				}
				ended <- err
			}()
		}
		for g.Compiling(g.who.id) < 1+len(waiting) {
			time.Sleep(time.Millisecond)
		}
		g.stopBeside(other, others.Chain.ID)
		release()
		g.checkStopped(<-recorded)
		for range waiting {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if n := g.Compiling(g.who.id); n != 0 {
			t.Errorf("%d callers are left behind", n)
		}
	})
}

// An organization has one simulation running at a time, because each holds a connection to the
// store.
//
//countersign:race
func TestOneSimulationAtATime(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		release, err := g.HoldSimulation(t.Context(), g.who.id)
		if err != nil {
			t.Fatal(err)
		}
		simulate := func() error {
			_, err := g.SimulatePolicy(context.WithoutCancel(t.Context()), g.who.admin, &service.Simulation{Document: service.PolicyDocument{Text: []byte(flagDeploys)}, MaxEvents: 1})
			return err
		}
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- simulate() }()
		}
		for g.Simulating(g.who.id) < 3 {
			time.Sleep(time.Millisecond)
		}
		release()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// A caller that gives up waiting for its organization's rules, and one that has waited too long,
// get an error that says that nothing was recorded.
func TestWaitingForRulesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service.Bare()
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

// A set that an earlier version accepted under wider bounds stays in force.
func TestSetsFromBeforeStayInForce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		slow := &service.PolicyDocument{Text: []byte(`rules: [{name: slow, when: "action.payload.list.exists(i, i == chain.name)", decision: deny, reason: r}]`), YAML: true}
		_, err := g.PutPolicy(t.Context(), g.who.admin, slow)
		checkCode(t, "a set over the bound", err, fault.CodeInvalid)
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

// A rule can read the chain's metadata however it spells the name.
func TestMetadataBehindAnIndex(t *testing.T) {
	db := testdb.SQLite(t)
	g := govern(t, db)
	g.put(`{"rules":[{"name":"owned","when":"dyn(chain)[\"meta\"+\"data\"][\"owner\"] == \"kim\"","decision":"allow_with_flag","reason":"r"}]}`)
	chain := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, request(t, ledger.ParseChainRequest, `{"name":"n","metadata":{"owner":"kim"}}`), "")).Chain.ID
	if e := g.record(chain, step(t, "look", "")); e.Event.Status != ledger.EventFlagged {
		t.Errorf("the action is %+v", e.Event.Decision)
	}
}
