package service_test

import (
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// A repeat is answered with the current decision, on every replica, and is never recorded a second
// time.
//
//countersign:race
func TestRepeatsAreAnsweredWithWhatMayHappenNow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_events":6}}`)
		replica := g.replica()
		chain := g.open("repeats")
		keys := []string{"approved", "denied", "timed out", "waiting", "allowed"}
		events := map[string]*ledger.Event{}
		again := func(key string) *ledger.Event {
			t.Helper()
			action := payment(t, gatedAmount, key)
			if key == "allowed" {
				action = step(t, "deploy", key)
			}
			var answers [2]*ledger.Event
			for i, s := range []*service.Service{g.Service, replica} {
				answers[i] = must[*service.Recorded](t)(s.RecordEvent(t.Context(), g.who.agent, chain, action)).Event
			}
			if answers[0].ID != answers[1].ID || answers[0].Status != answers[1].Status || answers[0].Decision.Source != answers[1].Decision.Source {
				t.Errorf("%s: the replicas answer %s and %s", key, answers[0].Status, answers[1].Status)
			}
			if first := events[key]; first == nil {
				events[key] = answers[0]
			} else if first.ID != answers[0].ID {
				t.Errorf("%s is recorded again", key)
			}
			return answers[0]
		}
		check := func(when string, want map[string]ledger.EventStatus) {
			t.Helper()
			for _, key := range keys {
				event := again(key)
				if event.Status != want[key] {
					t.Errorf("%s, what is %s is answered %s: %+v", when, key, event.Status, event.Decision)
				}
				if human := event.Decision.Source == ledger.SourceHuman; event.Status == ledger.EventAllowed && human != (key == "approved") {
					t.Errorf("%s, what is %s was decided by %s", when, key, event.Decision.Source)
				}
			}
		}
		for _, key := range keys[:3] {
			again(key)
		}
		g.approve(events["approved"].Approval)
		done(t, g.decide(g.who.member, events["denied"].Approval, false))
		g.clock.Advance(25 * time.Hour) // the third has timed out, though nobody has said so
		g.settings(`{"auto_pause":{"max_duration_seconds":10000000}}`)
		const allowed, awaiting, denied = ledger.EventAllowed, ledger.EventAwaiting, ledger.EventDenied
		now := map[string]ledger.EventStatus{"approved": allowed, "denied": denied, "timed out": denied, "waiting": awaiting, "allowed": allowed}
		check("at first", now)

		g.kill("drill")
		none := map[string]ledger.EventStatus{"approved": denied, "denied": denied, "timed out": denied, "waiting": denied, "allowed": denied}
		check("under the kill switch", none)
		for _, key := range keys {
			if event := again(key); !event.Decision.KillSwitchActive {
				t.Errorf("under the kill switch, what is %s says %+v", key, event.Decision)
			}
		}
		g.deactivateKillSwitch()
		check("after it", now)

		g.put(`rules: [{name: nothing, when: "true", decision: deny, reason: r}]`)
		check("under a policy that denies", none)
		g.put(`rules: [{name: asking, when: "true", decision: require_approval, reason: r}]`)
		check("under a policy that asks", map[string]ledger.EventStatus{"approved": allowed, "denied": denied, "timed out": denied, "waiting": awaiting, "allowed": denied})
		g.settings(`{"evaluation_mode":"shadow"}`)
		check("on trial", now)
		g.settings(`{"evaluation_mode":"enforce"}`)
		g.put(`rules: []`)
		check("without rules", now)

		for range 2 { // the second is one too many
			g.record(chain, step(t, "deploy", ""))
		}
		check("in a paused chain", none)
		for _, key := range keys {
			if event := again(key); !event.Decision.AutoPaused {
				t.Errorf("in a paused chain, what is %s says %+v", key, event.Decision)
			}
		}
		if actions := g.chainState(chain).Actions; actions != int64(len(keys))+2 {
			t.Errorf("%d actions are recorded", actions)
		}
		g.complete(chain)
		if event := again("waiting"); event.Status != denied {
			t.Errorf("what was cancelled is answered %s", event.Status)
		}
		checkIntact(t, g.Service, "acme", 1)
	})
}

// The answer to a repeated report shows a stop that came after it was recorded: otherwise a client
// that knows of the stop would assume that it was lifted.
func TestRepeatedReportsTellOfStops(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_events":2}}`)
		chain := g.open("reported")
		again := func() *ledger.Decision {
			t.Helper()
			event := g.reportAll(chain, reported(t, "one")).Results[0].Event
			if event.Status != ledger.EventAllowed || event.Decision.Violated() {
				t.Errorf("it is answered %s: %+v", event.Status, event.Decision)
			}
			return &event.Decision
		}
		if d := again(); d.KillSwitchActive || d.AutoPaused {
			t.Errorf("at first it says %+v", d)
		}
		g.kill("drill")
		if d := again(); !d.KillSwitchActive || d.PauseReason != "drill" {
			t.Errorf("under the kill switch it says %+v", d)
		}
		g.deactivateKillSwitch()
		if d := again(); d.KillSwitchActive {
			t.Errorf("after it, it says %+v", d)
		}
		for range 2 { // the second is one too many
			g.record(chain, step(t, "deploy", ""))
		}
		if d := again(); !d.AutoPaused || d.PauseReason == "" {
			t.Errorf("in a paused chain it says %+v", d)
		}
	})
}
