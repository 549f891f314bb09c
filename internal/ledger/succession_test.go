package ledger

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"countersign/internal/fault"
)

// cmpStates compares amounts by value and treats nil and empty lists as equal.
var cmpStates = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b Money) bool { return a.Cmp(b) == 0 })}

// abandonedChain returns a chain that used some of its limits and was then abandoned.
func abandonedChain(t *testing.T) (*Chain, *ChainState) {
	t.Helper()
	chain := &Chain{
		ID: ChainID{NewTimedID(1000, [10]byte{1})}, Org: OrgID{NewTimedID(1, [10]byte{2})}, OpenedBy: KeyID{NewTimedID(2, [10]byte{3})},
		Name: "quiet", ExternalID: "run-7", Environment: "staging", Metadata: []byte(`{"a":1}`), FailModes: []byte(`{"default":"deny"}`),
		FastPath: true, StartedAt: 1000, IdempotencyKey: "opening",
	}
	state := NewChainState(1000, "v1+abc")
	state.Status, state.Abandoned, state.LastAt = ChainFailed, true, 5000
	state.Actions, state.Tokens, state.Metrics.FinancialExposure = 7, 50, MoneyOf(12.5)
	state.Granted = Allowance{Actions: 3, Tokens: 20, At: 2000}
	state.Leases = UsedLeases{Forgotten: 9, Used: []UsedLease{{Serial: 10, Actions: 2}}}
	return chain, state
}

// A successor equals the chain, with the same limits and everything that was used of them, and both
// are read back unchanged.
func TestSucceed(t *testing.T) {
	t.Parallel()
	keys := testKeys{ids: []string{"k1"}}
	first, abandoned := abandonedChain(t)
	chain, state := first, abandoned
	for generation := range int64(3) {
		id := ChainID{NewTimedID(Time(6000+generation), [10]byte{9})}
		next, moved, err := state.Succeed(chain, id, "v2+def", 4000)
		if err != nil {
			t.Fatal(err)
		}
		if state.ContinuedBy == nil || *state.ContinuedBy != id || *next.Predecessor() != chain.ID || next.First() != first.ID {
			t.Errorf("%v continues %v, which is continued by %v", next.ID, next.Continues, state.ContinuedBy)
		}
		want := Carried{Actions: 7 * (generation + 1), Tokens: 50 * (generation + 1), Exposure: MoneyOf(12.5 * float64(generation+1)), Since: 1000}
		if diff := cmp.Diff(want, moved.Carried, cmpStates); diff != "" {
			t.Errorf("carried over (-want +got):\n%s", diff)
		}
		if moved.Granted != abandoned.Granted || !cmp.Equal(moved.Leases, abandoned.Leases) || moved.Begun(next) != 1000 || next.StartedAt != 5000 {
			t.Errorf("generation %d begins as %+v at %v", generation, moved, next.StartedAt)
		}
		for _, pair := range []struct {
			chain *Chain
			state *ChainState
		}{{chain, state}, {next, moved}} {
			read, err := DecodeChain(pair.chain.Encode())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(pair.chain.Continues, read.Continues); diff != "" {
				t.Errorf("the chains that it continues (-want +got):\n%s", diff)
			}
			body, mac := pair.state.Encode(keys, pair.chain)
			again, err := DecodeChainState(body, mac, keys, read)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(pair.state, again, cmpStates); diff != "" {
				t.Errorf("the state (-want +got):\n%s", diff)
			}
			// The chains that it continues cannot be changed without invalidating the state.
			forged := *pair.chain
			forged.Continues = append([]ChainID{{NewTimedID(7, [10]byte{7})}}, forged.Continues...)
			if _, err := DecodeChainState(body, mac, keys, &forged); !errors.Is(err, ErrStateTampered) {
				t.Errorf("a forged lineage is %v", err)
			}
		}
		if _, _, err := state.Succeed(chain, id, "v2+def", 6000); err == nil {
			t.Error("a chain has two successors")
		}
		moved.Status, moved.Abandoned = ChainFailed, true
		moved.Actions, moved.Tokens, moved.Metrics.FinancialExposure = 7, 50, MoneyOf(12.5)
		chain, state = next, moved
	}
	if diff := cmp.Diff([]ChainID{first.ID}, chain.Continues[:1]); diff != "" || len(chain.Continues) != 3 {
		t.Errorf("the last continues %v", chain.Continues)
	}
}

// A chain without predecessors has the same bytes as before succession existed.
func TestOrdinaryChainsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	chain, _ := abandonedChain(t)
	state := NewChainState(1000, "v1+abc")
	body, _ := state.Encode(testKeys{ids: []string{"k1"}}, chain)
	for _, name := range []string{"abandoned", "carried", "continued_by", "continues"} {
		if strings.Contains(string(body), name) || strings.Contains(string(chain.Encode()), name) {
			t.Errorf("an ordinary chain says %s: %s", name, body)
		}
	}
}

// Only an abandoned chain has a successor, and a lineage is bounded.
func TestRefusedSuccession(t *testing.T) {
	t.Parallel()
	id := ChainID{NewTimedID(6000, [10]byte{9})}
	chain, state := abandonedChain(t)
	state.Abandoned = false
	if _, _, err := state.Succeed(chain, id, "", 1); err == nil {
		t.Error("a failed chain has a successor")
	}
	state.Abandoned = true
	chain.Continues = make([]ChainID, maxContinued)
	_, _, err := state.Succeed(chain, id, "", 1)
	var own *fault.Error
	if !errors.As(err, &own) || own.Code != fault.CodeChainSealed || state.ContinuedBy != nil {
		t.Errorf("one too many: %v", err)
	}
}

// AbandonedAt says when a chain may be sealed as abandoned.
func TestAbandonedAt(t *testing.T) {
	t.Parallel()
	const hour = Time(3_600_000)
	tests := []struct {
		name   string
		hours  float64
		polled Time
		change func(*ChainState)
		want   Time // 0: never
	}{
		{"by default", 0, 0, func(*ChainState) {}, (73*hour + 5).Add(maxPollGrain)},
		{"as set", 2, 0, func(*ChainState) {}, (3*hour + 5).Add(maxPollGrain)},
		{"soon", 0.1, 0, func(*ChainState) {}, hour + hour/10 + hour/80 + 5},
		{"polled", 2, 4 * hour, func(*ChainState) {}, (6*hour + 5).Add(maxPollGrain)},
		{"polled before", 2, 1, func(*ChainState) {}, (3*hour + 5).Add(maxPollGrain)},
		{"waiting", 2, 0, func(s *ChainState) { s.Waiting = 1 }, 0},
		{"paused", 2, 0, func(s *ChainState) { s.Status = ChainAutoPaused }, 0},
		{"completed", 2, 0, func(s *ChainState) { s.Status = ChainCompleted }, 0},
		{"failed", 2, 0, func(s *ChainState) { s.Status = ChainFailed }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			settings := DefaultSettings()
			settings.AbandonAfterHours = test.hours
			state := NewChainState(hour, "")
			test.change(state)
			got, ok := state.AbandonedAt(&settings, test.polled, 5*time.Millisecond)
			if got != test.want || ok != (test.want != 0) {
				t.Errorf("abandoned at %d, %v; want %d", got, ok, test.want)
			}
		})
	}
}
