package ledger

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"countersign/internal/classify"
)

// granting returns a recording that could be granted a lease.
func granting(t testing.TB) (*ChainState, *Recording) {
	t.Helper()
	p := newBook(t).open("")
	r := plainly(p.chain, nil, p.chain.StartedAt, [10]byte{1, 2, 3, 4})
	r.Org.Controls.Act = 7
	return p.state, r
}

// A lease lasts at most a second and at most until a limit, and nothing that is stopped is granted
// one.
func TestLeases(t *testing.T) {
	t.Parallel()
	all := Lease{Milliseconds: 1000, MaxActions: 100, Actions: classify.SafeVerbs}
	limited := func(change func(*Lease)) *Lease {
		lease := all
		change(&lease)
		return &lease
	}
	for _, c := range []struct {
		name    string
		arrange func(*ChainState, *Recording)
		want    *Lease
	}{
		{"plainly", func(*ChainState, *Recording) {}, &all},
		{"kill switch", func(_ *ChainState, r *Recording) { r.Org.Controls.KillSwitch.Active = true }, nil},
		{"paused", func(s *ChainState, _ *Recording) { s.Status = ChainAutoPaused }, nil},
		{"completed", func(s *ChainState, _ *Recording) { s.Status = ChainCompleted }, nil},
		{"failed", func(s *ChainState, _ *Recording) { s.Status = ChainFailed }, nil},
		{"opened without the fast path", func(_ *ChainState, r *Recording) { r.Chain.FastPath = false }, nil},
		{"a policy without the fast path", func(_ *ChainState, r *Recording) { r.Policy = &Policy{Version: "v1"} }, nil},
		{"no words", func(_ *ChainState, r *Recording) { r.Org.Settings.FastPathActions = []string{} }, nil},
		{"some words", func(_ *ChainState, r *Recording) { r.Org.Settings.FastPathActions = []string{"count", "get"} },
			limited(func(l *Lease) { l.Actions = []string{"count", "get"} })},
		{"high-risk agents", func(_ *ChainState, r *Recording) {
			r.Org.Settings.HighRiskAgents, r.Chain.Limits.HighRiskAgents = []string{"a", "b"}, []string{"b", "c"}
		}, limited(func(l *Lease) { l.ExceptAgents = []string{"a", "b", "c"} })},
		{"few events left", func(s *ChainState, r *Recording) {
			s.Actions, s.Granted.Actions, r.Org.Settings.AutoPause.MaxEvents = 60, 50, 13
		}, limited(func(l *Lease) { l.MaxActions = 3 })},
		{"no event left", func(s *ChainState, r *Recording) { s.Actions, r.Org.Settings.AutoPause.MaxEvents = 13, 13 }, nil},
		{"beyond the limit", func(s *ChainState, r *Recording) { s.Actions, r.Org.Settings.AutoPause.MaxEvents = 14, 13 }, nil},
		{"little time left", func(_ *ChainState, r *Recording) {
			r.Org.Settings.AutoPause.MaxDurationSeconds, r.Now = 10, r.Chain.StartedAt+9700
		}, limited(func(l *Lease) { l.Milliseconds = 300 })},
		{"no time left", func(_ *ChainState, r *Recording) {
			r.Org.Settings.AutoPause.MaxDurationSeconds, r.Now = 10, r.Chain.StartedAt+10_000
		}, nil},
		{"resumed", func(s *ChainState, r *Recording) {
			r.Org.Settings.AutoPause.MaxDurationSeconds, r.Now, s.Granted.At = 10, r.Chain.StartedAt+12_000, r.Chain.StartedAt+2500
		}, limited(func(l *Lease) { l.Milliseconds = 500 })},
		{"little of the chain's own time", func(_ *ChainState, r *Recording) {
			r.Chain.Limits.TimeoutSeconds, r.Now = 1.5, r.Chain.StartedAt+1400
		}, limited(func(l *Lease) { l.Milliseconds = 100 })},
		{"a clock that stands behind", func(s *ChainState, r *Recording) {
			r.Chain.Limits.TimeoutSeconds, s.LastAt, r.Now = 1.5, r.Chain.StartedAt+1400, 0
		}, limited(func(l *Lease) { l.Milliseconds = 100 })},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			state, r := granting(t)
			c.arrange(state, r)
			got := state.Grant(r)
			if got != nil {
				if len(got.ID) > 200 {
					t.Errorf("an id of %d characters", len(got.ID))
				}
				grant := readLease(got.ID, r.Keys, r.Org.ID)
				if grant == nil || grant.chain != r.Chain.ID || grant.act != 7 || grant.maxActions != got.MaxActions {
					t.Fatalf("the id reads as %+v", grant)
				}
				words := slices.Sorted(slices.Values(grant.allowed()))
				if !slices.Equal(words, slices.Sorted(slices.Values(got.Actions))) {
					t.Errorf("the id is good for %q", words)
				}
				got.ID = ""
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
		})
	}
}

// under returns a report of a harmless read, decided under a lease.
func under(lease string) *Action {
	return &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "get_file", Payload: []byte("{}"), Source: SourceFastPath, LeaseID: lease}
}

// What a lease covered is not a violation, whatever would be decided now. Everything else is judged
// as if there were no lease.
func TestWhatALeaseCovers(t *testing.T) {
	t.Parallel()
	stop := func(_ *ChainState, r *Recording) {
		r.Org.Controls.KillSwitch = KillSwitch{Active: true, Reason: "drill"}
	}
	for _, c := range []struct {
		name    string
		arrange func(*ChainState, *Recording) // after the grant
		covered bool
	}{
		{"the kill switch", stop, true},
		{"a new policy", func(_ *ChainState, r *Recording) {
			r.Policy = &Policy{Version: "v1", Rules: fixedRules{{Name: "no", Outcome: Deny}}}
		}, true},
		{"a pause", func(s *ChainState, _ *Recording) { s.Status, s.PauseReason = ChainAutoPaused, "too much" }, true},
		{"a lower limit", func(s *ChainState, r *Recording) { s.Actions, r.Org.Settings.AutoPause.MaxEvents = 50, 1 }, true},
		{"another list of words", func(s *ChainState, r *Recording) {
			r.Org.Settings.FastPathActions = []string{}
			stop(s, r)
		}, true},
		{"an agent that became high-risk", func(_ *ChainState, r *Recording) { r.Org.Settings.HighRiskAgents = []string{"risky", "agent"} }, true},
		{"an agent that was high-risk", func(_ *ChainState, r *Recording) {
			r.Action.AgentName = "Risky "
		}, false},
		{"an agent that the chain calls high-risk", func(_ *ChainState, r *Recording) {
			r.Action.AgentName, r.Org.Settings.HighRiskAgents = "chain's", nil
		}, false},
		{"another first word", func(s *ChainState, r *Recording) {
			r.Action.ActionName = "execute_shell"
			stop(s, r)
		}, false},
		{"something found in it", func(s *ChainState, r *Recording) {
			r.Action.Facts = payment(6000)
			stop(s, r)
		}, false},
		{"an amount alone", func(s *ChainState, r *Recording) {
			r.Action.Facts.Amount = money(1)
			stop(s, r)
		}, false},
		{"tokens", func(s *ChainState, r *Recording) {
			r.Action.Facts.InputTokens = 1
			stop(s, r)
		}, false},
		{"another chain", func(s *ChainState, r *Recording) {
			other := *r.Chain
			other.ID = ChainID{NewTimedID(1, [10]byte{9})}
			r.Chain = &other
			stop(s, r)
		}, false},
		{"another organization", func(s *ChainState, r *Recording) {
			other := *r.Org
			other.ID = OrgID{NewTimedID(1, [10]byte{9})}
			r.Org = &other
			stop(s, r)
		}, false},
		{"no lease", func(s *ChainState, r *Recording) {
			r.Action.LeaseID = ""
			stop(s, r)
		}, false},
		{"a made-up one", func(s *ChainState, r *Recording) {
			r.Action.LeaseID = strings.Repeat("A", 150)
			stop(s, r)
		}, false},
		{"a changed one", func(s *ChainState, r *Recording) {
			r.Action.LeaseID = changedAt(t, r.Action.LeaseID, 33) // max_actions
			stop(s, r)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			state, r := granting(t)
			r.Org.Settings.HighRiskAgents, r.Chain.Limits.HighRiskAgents = []string{"risky"}, []string{"chain's"}
			r.Action = under(state.Grant(r).ID)
			c.arrange(state, r)
			recorded := state.Record(r)
			event := must(DecodeEvent(recorded.Stored.Body))
			if got := event.Status == EventAllowed && !event.Decision.Violated(); got != c.covered {
				t.Errorf("covered %v, want %v: %s with %+v", got, c.covered, event.Status, event.Decision)
			}
			if recorded.Paused && c.covered {
				t.Error("what a lease covered pauses the chain")
			}
			if killed := r.Org.Controls.KillSwitch.Active; event.Decision.KillSwitchActive != killed {
				t.Errorf("the event says of the kill switch %v", event.Decision.KillSwitchActive)
			}
			if (event.Lease != "") != c.covered || event.Act != 7 {
				t.Errorf("the facts name the lease %q and act %d", event.Lease, event.Act)
			}
		})
	}
}

func changedAt(t *testing.T, id string, at int) string {
	t.Helper()
	token := must(base64.RawURLEncoding.DecodeString(id))
	token[at] ^= 1
	return base64.RawURLEncoding.EncodeToString(token)
}

// A gap is not an action: a lease does not hide a hole in the record.
func TestALeaseHidesNoGap(t *testing.T) {
	t.Parallel()
	state, r := granting(t)
	r.Action = under(state.Grant(r).ID)
	r.Action.ActionType = ActionTypeGap
	if event := state.Record(r).Event; event.Status != EventFlagged {
		t.Errorf("a gap under a lease is %s", event.Status)
	}
}

// Each lease is valid for a limited number of actions, even if many are used at once and in any
// order. Old ones are dropped and no longer valid.
func TestLeasesAreUsedUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var used UsedLeases
		counts, greatest := map[uint64]int64{}, uint64(0)
		for range rapid.IntRange(1, 300).Draw(rt, "uses") {
			serial := rapid.Uint64Range(1, 2*maxUsedLeases).Draw(rt, "serial")
			grant := &leaseGrant{serial: serial, maxActions: int64(serial%3) + 1}
			if used.use(grant) {
				counts[serial]++
			}
			greatest = max(greatest, serial)
			if counts[serial] > grant.maxActions {
				rt.Fatalf("%d actions under lease %d, which is good for %d", counts[serial], serial, grant.maxActions)
			}
			if len(used.Used) > maxUsedLeases || used.Forgotten >= greatest {
				rt.Fatalf("%d leases are remembered, %d forgotten", len(used.Used), used.Forgotten)
			}
		}
	})
}

// The chain's state counts what was decided under each lease, and its size is bounded.
func TestTheStateCountsLeases(t *testing.T) {
	t.Parallel()
	state, r := granting(t)
	r.Org.Settings.AutoPause.MaxEvents = 3
	r.Action = under(state.Grant(r).ID)
	r.Org.Controls.KillSwitch.Active = true
	for n := range 5 {
		event := state.Record(r).Event
		if violated := event.Decision.Violated(); violated != (n >= 3) {
			t.Errorf("action %d under a lease for 3 is a violation: %v", n, violated)
		}
		body, mac := state.Encode(r.Keys, r.Chain)
		state = must(DecodeChainState(body, mac, r.Keys, r.Chain))
	}
}

// Any text is accepted as a lease's id, and none prevents recording an event.
func TestUnknownLeaseIDsAreNoFault(t *testing.T) {
	t.Parallel()
	for _, id := range []string{`null`, `""`, `"x"`, `"` + strings.Repeat("y", 10_000) + `"`, `"ä\n"`} {
		actions, err := ParseReported(parse(t, `{"events":[{"agent_name":"a","action_type":"tool_call","action_name":"get","payload":{},`+
			`"decision_source":"local_fast_path","idempotency_key":"k","lease_id":`+id+`}]}`))
		if err != nil || len(actions[0].LeaseID) > maxLeaseID {
			t.Errorf("lease_id %.20s: %v", id, err)
		}
	}
	if _, err := ParseAction(parse(t, `{"agent_name":"a","action_type":"tool_call","action_name":"get","payload":{},"lease_id":"x"}`)); err == nil {
		t.Error("an action that the service decides takes a lease")
	}
}

// No text that the service did not write is read as a lease.
func FuzzReadLease(f *testing.F) {
	state, r := granting(f)
	good := state.Grant(r).ID
	f.Add(good)
	f.Add(strings.Repeat("A", 200))
	f.Add(good[:10] + "\n" + good[10:]) // the decoder skips line breaks
	f.Fuzz(func(t *testing.T, id string) {
		if grant := readLease(id, r.Keys, r.Org.ID); (grant != nil) != (id == good) {
			t.Errorf("%q reads as %+v", id, grant)
		}
	})
}
