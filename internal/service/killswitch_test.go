package service_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

func reported(t testing.TB, keys ...string) []*ledger.Action {
	t.Helper()
	var events []json.RawMessage
	for _, key := range keys {
		events = append(events, json.RawMessage(`{"agent_name":"agent","action_type":"tool_call","action_name":"look","payload":{},`+
			`"decision_source":"local_fast_path","idempotency_key":"`+key+`"}`))
	}
	body, err := json.Marshal(map[string]any{"events": events})
	if err != nil {
		t.Fatal(err)
	}
	return request(t, ledger.ParseReported, string(body))
}

// Under the kill switch every replica denies every action, even one that was allowed before, and
// holds approved ones. Deactivating it restores both.
//
//countersign:race
func TestTheKillSwitchStopsEverything(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replica := g.replica()
		chain := g.open("stopped")
		allowed := g.record(chain, step(t, "look", "allowed"))
		approved, waiting := g.ask(chain), g.ask(chain)
		g.approve(approved)
		gated := g.record(chain, payment(t, gatedAmount, "gated"))
		acts := len(g.acts())

		g.kill("an incident")
		g.kill("another reason") // the first stands
		for name, s := range map[string]*service.Service{"here": g.Service, "elsewhere": replica} {
			record := func(action *ledger.Action) *ledger.Event {
				t.Helper()
				return must[*service.Recorded](t)(s.RecordEvent(t.Context(), g.who.agent, chain, action)).Event
			}
			checkStopped(t, name+", a new action", record(step(t, "look", "")))
			checkStopped(t, name+", a gated action", record(payment(t, gatedAmount, "")))
			checkStopped(t, name+", an allowed action again", record(step(t, "look", "allowed")))
			checkStopped(t, name+", a waiting action again", record(payment(t, gatedAmount, "gated")))
			_, err := s.DecideApproval(t.Context(), g.who.member, waiting, &ledger.Verdict{Approve: true})
			checkCode(t, name+", approve", err, fault.CodeKillSwitchActive)
			view := must[*service.ApprovalView](t)(s.Approval(t.Context(), g.who.agent, approved, forever))
			if view.Status != ledger.ApprovalApproved || !view.Killed || view.KillReason != "an incident" {
				t.Errorf("%s, what was approved before is %s, killed %v for %q", name, view.Status, view.Killed, view.KillReason)
			}
			results := must[*service.Report](t)(s.ReportEvents(t.Context(), g.who.agent, chain, reported(t, name))).Results
			d := &results[0].Event.Decision
			if results[0].Event.Status != ledger.EventFlagged || d.Shadow != ledger.Deny || !d.KillSwitchActive || !d.Violated() {
				t.Errorf("%s, what a client let happen is %s with %+v", name, results[0].Event.Status, d)
			}
		}
		checkCode(t, "deny", g.decide(g.who.member, gated.Event.Approval, false), "")

		g.deactivateKillSwitch()
		g.deactivateKillSwitch()
		again := g.record(chain, step(t, "look", "allowed")).Event
		if again.ID != allowed.Event.ID || again.Status != ledger.EventAllowed || again.Decision.KillSwitchActive {
			t.Errorf("after the stop an allowed action is %s with %+v", again.Status, again.Decision)
		}
		if next := g.record(chain, step(t, "look", "")).Event; next.Status != ledger.EventAllowed {
			t.Errorf("after the stop an action is %s", next.Status)
		}
		if g.view(approved).Killed {
			t.Error("after the stop what was approved is still held")
		}
		g.approve(waiting)
		g.checkActs(t, acts, []wantedAct{
			{"kill_switch.activate", "first admin", ""}, {"approval.deny", "test", gated.Event.Approval.String()},
			{"kill_switch.deactivate", "first admin", ""}, {"approval.approve", "test", waiting.String()},
		})
		if detail := g.acts()[acts].Detail; string(detail) != `{"reason":"an incident","status":{"from":"inactive","to":"active"}}` {
			t.Errorf("the audit log says %s", detail)
		}
		g.complete(chain)
		checkIntact(t, g.Service, "acme", 1)
	})
}

func checkStopped(t testing.TB, what string, e *ledger.Event) {
	t.Helper()
	d := &e.Decision
	if e.Status != ledger.EventDenied || d.Outcome != ledger.Deny || !d.KillSwitchActive || d.PauseReason != "an incident" || d.PolicyName != ledger.RuleKillSwitch {
		t.Errorf("%s is %s with %+v", what, e.Status, d)
	}
}

// The kill switch applies to one organization, and shadow mode does not weaken it.
func TestTheKillSwitchIsNeverInShadow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		other := newTenant(t, g.Service, "other")
		g.settings(`{"evaluation_mode":"shadow"}`)
		chain := g.open("shadow")
		g.kill("an incident")
		checkStopped(t, "an action in shadow mode", g.record(chain, step(t, "look", "")).Event)
		theirs := must[*service.ChainView](t)(g.OpenChain(t.Context(), other.agent, chainNamed(t, "theirs"), "")).ID
		if e := must[*service.Recorded](t)(g.RecordEvent(t.Context(), other.agent, theirs, step(t, "look", ""))).Event; e.Status != ledger.EventAllowed {
			t.Errorf("another organization's action is %s", e.Status)
		}
		for _, caller := range []*service.Caller{g.who.agent, g.who.member} {
			_, err := g.DeactivateKillSwitch(t.Context(), caller)
			checkCode(t, "deactivated by a "+string(caller.Role), err, fault.CodeForbidden)
		}
	})
}

// Whoever ends one activation of the kill switch does not end another one, even if it was made a
// moment before. Ending what has ended changes nothing.
func TestAnActivationIsNotEndedForAnother(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.kill("a drill")
		drill := *must[*ledger.KillSwitch](t)(g.KillSwitch(t.Context(), g.who.admin)).ChangedAt
		must[*ledger.KillSwitch](t)(g.EndActivation(t.Context(), g.who.admin, drill))
		g.clock.Advance(time.Millisecond)
		g.kill("an incident")
		_, err := g.EndActivation(t.Context(), g.who.admin, drill)
		checkCode(t, "ending the drill during the incident", err, fault.CodeKillSwitchActive)
		incident := must[*ledger.KillSwitch](t)(g.KillSwitch(t.Context(), g.who.admin))
		if !incident.Active || incident.Reason != "an incident" {
			t.Errorf("after the drill was ended again, the switch is %+v", incident)
		}
		for range 2 {
			if k := must[*ledger.KillSwitch](t)(g.EndActivation(t.Context(), g.who.admin, *incident.ChangedAt)); k.Active {
				t.Error("the incident was ended, and the switch is active")
			}
		}
	})
}

// Writers load two replicas while the switch is activated and deactivated repeatedly. An action
// that is requested after an activation is never allowed.
//
//countersign:race twice
func TestTheKillSwitchUnderFire(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		var turn atomic.Int64 // odd between the return of activate and the call of deactivate
		var afterStop, beforeStop atomic.Int64
		done := make(chan struct{})
		var writers sync.WaitGroup
		for w := range 8 {
			chain := g.open(fmt.Sprint("writer-", w))
			writers.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					default:
					}
					g.fire(replicas[(w+n)%2], chain, w, n, &turn, &beforeStop, &afterStop)
				}
			})
		}
		for range 5 - 3*racing {
			until(&beforeStop, beforeStop.Load()+40)
			g.kill("an incident")
			g.clock.Advance(time.Second) // an odd second: the switch is active all the while
			turn.Add(1)
			until(&afterStop, afterStop.Load()+40)
			turn.Add(1)
			g.clock.Advance(time.Second)
			g.deactivateKillSwitch()
		}
		close(done)
		writers.Wait()
		g.checkRecordedStops(t)
		checkIntact(t, replicas[1], "acme", 0)
	})
}

func until(counter *atomic.Int64, reached int64) {
	for counter.Load() < reached {
		runtime.Gosched()
	}
}

// fire sends one request: for a new action, for one that was allowed before, or with a report of
// an action that a client allowed.
func (g *governed) fire(s *service.Service, chain ledger.ChainID, writer, n int, turn, before, after *atomic.Int64) {
	ctx := context.Background()
	began := turn.Load()
	var event *ledger.Event
	switch n % 4 {
	case 3:
		report, err := s.ReportEvents(ctx, g.who.agent, chain, reported(g.t, fmt.Sprint(writer, "-reported-", n)))
		if err != nil {
			g.t.Error(err)
			return
		}
		event = report.Results[0].Event
	default:
		key := ""
		if n%4 == 2 {
			key = "first"
		}
		recorded, err := s.RecordEvent(ctx, g.who.agent, chain, step(g.t, "look", key))
		if err != nil {
			g.t.Error(err)
			return
		}
		event = recorded.Event
	}
	switch {
	case began%2 == 0:
		before.Add(1)
	case turn.Load() == began: // active all the while
		checkHeld(g.t, event)
		after.Add(1)
	}
}

// checkHeld expects that an event recorded while the switch was active is not allowed.
func checkHeld(t testing.TB, e *ledger.Event) {
	t.Helper()
	held := e.Status == ledger.EventDenied
	if e.Decision.Source == ledger.SourceFastPath {
		held = e.Status == ledger.EventFlagged && e.Decision.Shadow == ledger.Deny
	}
	if !held || !e.Decision.KillSwitchActive {
		t.Errorf("while the kill switch is active an action is %s: %+v", e.Status, e.Decision)
	}
}

// checkRecordedStops checks events by the clock: the switch was active for the whole of every odd
// second, and for a part of each even one.
func (g *governed) checkRecordedStops(t *testing.T) {
	t.Helper()
	origin := newClock().Now().UnixMilli()
	counts := map[bool]int{}
	for _, chain := range must[[]*service.ChainView](t)(g.Chains(t.Context(), g.who.member, service.ChainFilter{Limit: 100})) {
		for _, stored := range must[[]*service.EventView](t)(g.Events(t.Context(), g.who.member, chain.ID, 0, 100_000)) {
			event := must[*ledger.RecordedEvent](t)(ledger.DecodeEvent(stored.Body))
			odd := (int64(event.RecordedAt)-origin)/1000%2 == 1
			if odd {
				checkHeld(t, &event.Event)
			}
			counts[odd]++
		}
	}
	if counts[true] == 0 || counts[false] == 0 {
		t.Errorf("%d events of while the switch was active and %d others show nothing", counts[true], counts[false])
	}
}
