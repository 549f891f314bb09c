package service_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// passRound lets a quarter of an hour pass, and does what the worker does meanwhile: it stores
// polls and seals abandoned chains.
func (g *governed) passRound(s *service.Service) {
	g.t.Helper()
	done(g.t, s.FlushPolls(g.t.Context()))
	done(g.t, s.QueueAbandonment(g.t.Context()))
	g.clock.Advance(15 * time.Minute)
	for range 100 {
		jobs := must[[]*service.Job](g.t)(s.Jobs().Claim(g.t.Context(), 5*time.Minute, map[string]int{service.JobAbandon: 1}))
		if len(jobs) == 0 {
			return
		}
		for _, job := range jobs {
			done(g.t, s.Jobs().Abandon(g.t.Context(), job))
		}
	}
	g.t.Fatal("there is always another round")
}

// abandoned returns a chain with some events that has not been polled since.
func (g *governed) abandoned(name string, actions ...*ledger.Action) ledger.ChainID {
	g.t.Helper()
	chain := g.open(name)
	for _, action := range actions {
		g.record(chain, action)
	}
	g.clock.Advance(73 * time.Hour)
	g.passRound(g.Service)
	state := g.chainState(chain)
	if state.Status != ledger.ChainFailed || !state.Abandoned || state.Failure == nil || state.Failure.Type != ledger.FailureAbandoned {
		g.t.Fatalf("after 73 hours the chain is %s with %+v", state.Status, state.Failure)
	}
	return chain
}

// A pass that seals as many chains as one job may continues with the next chain, wherever in a page
// of chains that happens.
func TestAbandonmentContinuesWithinAPage(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	const abandoned, waiting = 120, 50 // pages have 100 chains, and one job seals 100
	var chains []ledger.ChainID
	for i := range abandoned + waiting {
		chains = append(chains, g.open(fmt.Sprint("chain-", i)))
	}
	for _, chain := range chains[abandoned:] {
		g.ask(chain) // waits for a person
	}
	g.clock.Advance(73 * time.Hour)
	g.passRound(g.Service)
	left := 0
	for _, chain := range chains[:abandoned] {
		if !g.chainState(chain).Status.Sealed() {
			left++
		}
	}
	if left > 0 {
		t.Errorf("%d abandoned chains are left until the next pass", left)
	}
}

// After each kind of request that counts, a chain is left open for as long as after its last
// event, and no longer.
//
//countersign:race
func TestWhatCountsAsARequest(t *testing.T) {
	type scene struct {
		*governed
		chain    ledger.ChainID
		event    ledger.EventID
		approval ledger.ApprovalID
	}
	tests := []struct {
		name   string
		counts bool
		ask    func(s *scene) error
	}{
		{"nothing", false, func(*scene) error { return nil }},
		{"an event", true, func(s *scene) error {
			_, err := s.RecordEvent(s.t.Context(), s.who.agent, s.chain, step(s.t, "look", "new"))
			return err
		}},
		{"an event again", true, func(s *scene) error {
			_, err := s.RecordEvent(s.t.Context(), s.who.agent, s.chain, step(s.t, "look", "first"))
			return err
		}},
		{"a batch again", true, func(s *scene) error {
			_, err := s.ReportEvents(s.t.Context(), s.who.agent, s.chain, reported(s.t, "reported"))
			return err
		}},
		{"an outcome", true, func(s *scene) error {
			_, err := s.ReportOutcome(s.t.Context(), s.who.agent, s.chain, s.event, &ledger.Entry{Result: ledger.Succeeded})
			return err
		}},
		{"the opening again", true, func(s *scene) error {
			_, err := s.OpenChain(s.t.Context(), s.who.agent, chainNamed(s.t, "polled"), "opening")
			return err
		}},
		{"a look at the chain", true, func(s *scene) error {
			_, err := s.Chain(s.t.Context(), s.who.agent, s.chain)
			return err
		}},
		{"a poll of its approvals", true, func(s *scene) error {
			_, err := s.ChainApprovals(s.t.Context(), s.who.agent, s.chain)
			return err
		}},
		{"a poll of an approval", true, func(s *scene) error {
			_, err := s.Approval(s.t.Context(), s.who.agent, s.approval, 0)
			return err
		}},
		{"a list of its approvals", true, func(s *scene) error {
			_, err := s.Approvals(s.t.Context(), s.who.agent, service.ApprovalFilter{Chain: &s.chain, Limit: 10})
			return err
		}},
		{"a member's look at the chain", false, func(s *scene) error {
			_, err := s.Chain(s.t.Context(), s.who.member, s.chain)
			return err
		}},
		{"a member's look at its events", false, func(s *scene) error {
			_, err := s.Events(s.t.Context(), s.who.member, s.chain, 0, 10)
			return err
		}},
		{"a member's look at an approval", false, func(s *scene) error {
			_, err := s.Approval(s.t.Context(), s.who.member, s.approval, 0)
			return err
		}},
		{"a list of chains", false, func(s *scene) error {
			_, err := s.Chains(s.t.Context(), s.who.agent, service.ChainFilter{Limit: 10})
			return err
		}},
		{"another key's look", false, func(s *scene) error {
			other := newKey(s.t, s.Service, "acme", ledger.RoleAgent)
			caller := must[*service.Caller](s.t)(s.Authenticate(s.t.Context(), other.Text.Reveal()))
			if _, err := s.Chain(s.t.Context(), caller, s.chain); codeOf(err) != fault.CodeNotFound {
				return fmt.Errorf("another agent's look: %w", err)
			}
			return nil
		}},
	}
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				g := govern(t, db.Fresh(t))
				g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
				s := &scene{governed: g}
				s.chain = must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, chainNamed(t, "polled"), "opening")).ID
				s.approval = g.ask(s.chain)
				g.approve(s.approval)
				must[*service.Report](t)(g.ReportEvents(t.Context(), g.who.agent, s.chain, reported(t, "reported")))
				s.event = g.record(s.chain, step(t, "look", "first")).Event.ID

				g.clock.Advance(71 * time.Hour)
				done(t, test.ask(s))
				g.passRound(g.Service) // it is written down
				if status := g.chainState(s.chain).Status; status != ledger.ChainActive {
					t.Fatalf("after 71 hours the chain is %s", status)
				}
				g.clock.Advance(2 * time.Hour)
				restarted := g.replica() // what was written down outlives the process
				g.passRound(restarted)
				if open := g.chainState(s.chain).Status == ledger.ChainActive; open != test.counts {
					t.Errorf("2 hours later the chain is open: %v, want %v", open, test.counts)
				}
				g.clock.Advance(70 * time.Hour)
				g.passRound(restarted)
				if status := g.chainState(s.chain).Status; status != ledger.ChainFailed {
					t.Errorf("72 hours after the request the chain is %s", status)
				}
				checkIntact(t, g.Service, "acme", 1)
			})
		}
	})
}

// A chain that waits for an approval or is paused is never abandoned. When that has ended, its
// time starts again.
func TestNeverAbandonedWhileSomebodyIsAsked(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		t.Run("an approval is open", func(t *testing.T) {
			g := govern(t, db.Fresh(t))
			g.settings(`{"approval_timeout_hours":1000}`)
			chain := g.open("waiting")
			approval := g.ask(chain)
			for range 3 {
				g.clock.Advance(200 * time.Hour)
				g.passRound(g.Service)
				if status := g.chainState(chain).Status; status != ledger.ChainActive {
					t.Fatalf("a chain that waits for a person is %s", status)
				}
			}
			g.approve(approval)
			g.clock.Advance(71 * time.Hour)
			g.passRound(g.Service)
			if status := g.chainState(chain).Status; status != ledger.ChainActive {
				t.Errorf("71 hours after the decision the chain is %s", status)
			}
			g.clock.Advance(2 * time.Hour)
			g.passRound(g.Service)
			if !g.chainState(chain).Abandoned {
				t.Error("73 hours after the decision the chain is not abandoned")
			}
			checkIntact(t, g.Service, "acme", 1)
		})
		t.Run("the chain is paused", func(t *testing.T) {
			g := govern(t, db.Fresh(t))
			g.settings(`{"auto_pause":{"max_events":1}}`)
			chain := g.open("paused")
			for range 2 {
				g.record(chain, step(t, "look", ""))
			}
			g.clock.Advance(2000 * time.Hour)
			g.passRound(g.Service)
			if status := g.chainState(chain).Status; status != ledger.ChainAutoPaused {
				t.Fatalf("a paused chain is %s", status)
			}
			must[*service.ChainView](t)(g.ResumeChain(t.Context(), g.who.admin, chain))
			g.clock.Advance(73 * time.Hour)
			g.passRound(g.Service)
			if !g.chainState(chain).Abandoned {
				t.Error("73 hours after it was resumed the chain is not abandoned")
			}
		})
	})
}

// The receipt of an abandoned chain is like that of a chain that its client failed.
func TestReceiptOfAnAbandonedChain(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.abandoned("quiet", step(t, "look", ""), payment(t, 10, ""))
		stored := must[*ledger.StoredReceipt](t)(g.ReceiptOfChain(t.Context(), g.who.member, chain))
		if body := string(stored.Body); !strings.Contains(body, `"total_actions":2`) || !strings.Contains(body, `"action_name":"abandoned","action_type":"chain_failure"`) {
			t.Errorf("the receipt is %s", body)
		}
		if view := must[*service.ChainView](t)(g.Chain(t.Context(), g.who.agent, chain)); view.State.Failure.Message == "" || view.State.CompletedAt == nil {
			t.Errorf("the chain is %+v", view.State)
		}
		g.passRound(g.Service) // it is sealed once
		checkIntact(t, g.Service, "acme", 1)
	})
}

// A job seals no more chains than its limit, and successive jobs seal all of them. Concurrent
// replicas seal each chain once.
//
//countersign:race
func TestManyAbandonedChains(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const chains = 205
		g := govern(t, db)
		replica := g.replica()
		for i := range chains {
			g.open(fmt.Sprint("quiet-", i))
		}
		g.clock.Advance(73 * time.Hour)
		young := g.open("young")
		// Three jobs for one round, as when leases have run out under slow workers.
		done(t, g.QueueAbandonment(t.Context()))
		g.settings(`{"abandon_after_hours":71}`)
		g.settings(`{"abandon_after_hours":72}`)
		g.clock.Advance(15 * time.Minute)
		group, ctx := errgroup.WithContext(t.Context())
		for i, s := range []*service.Service{g.Service, replica, g.Service, replica} {
			group.Go(func() error {
				for {
					jobs, err := s.Jobs().Claim(ctx, 5*time.Minute, map[string]int{service.JobAbandon: 1})
					if err != nil || len(jobs) == 0 {
						return err
					}
					if err := s.Jobs().Abandon(ctx, jobs[0]); err != nil {
						return fmt.Errorf("worker %d: %w", i, err)
					}
				}
			})
		}
		done(t, group.Wait())
		if status := g.chainState(young).Status; status != ledger.ChainActive {
			t.Errorf("the young chain is %s", status)
		}
		checkIntact(t, g.Service, "acme", chains)
	})
}

// A change of the setting takes effect at once.
func TestAbandonAfterHours(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("quiet")
		g.clock.Advance(10 * time.Minute)
		g.settings(`{"abandon_after_hours":0.1}`)
		jobs := must[[]*service.Job](t)(g.Jobs().Claim(t.Context(), 5*time.Minute, map[string]int{service.JobAbandon: 1}))
		if len(jobs) != 1 {
			t.Fatalf("%d rounds are due when the setting has changed", len(jobs))
		}
		done(t, g.Jobs().Abandon(t.Context(), jobs[0]))
		if !g.chainState(chain).Abandoned {
			t.Error("a chain that was quiet for 10 minutes is not abandoned after 6")
		}
		g.clock.Advance(30 * time.Second)
		jobs = must[[]*service.Job](t)(g.Jobs().Claim(t.Context(), 5*time.Minute, map[string]int{service.JobAbandon: 2}))
		if len(jobs) != 1 {
			t.Errorf("%d rounds are due half a minute later, want one", len(jobs))
		}
	})
}

func (g *governed) reportAll(chain ledger.ChainID, actions []*ledger.Action) *service.Report {
	g.t.Helper()
	return must[*service.Report](g.t)(g.ReportEvents(g.t.Context(), g.who.agent, chain, actions))
}

// Whatever arrives for an abandoned chain is recorded in a successor.
func TestSuccessorOfAnAbandonedChain(t *testing.T) {
	tests := []struct {
		name   string
		arrive func(g *governed, chain ledger.ChainID) (successor, named ledger.ChainID)
		events int64
		sealed bool
	}{
		{"an event", func(g *governed, chain ledger.ChainID) (ledger.ChainID, ledger.ChainID) {
			r := g.record(chain, step(g.t, "deploy", "late"))
			return r.Event.Chain, *r.ContinuedBy
		}, 1, false},
		{"a batch", func(g *governed, chain ledger.ChainID) (ledger.ChainID, ledger.ChainID) {
			r := g.reportAll(chain, reported(g.t, "first", "second"))
			return r.Results[1].Event.Chain, *r.ContinuedBy
		}, 2, false},
		{"an outcome", func(g *governed, chain ledger.ChainID) (ledger.ChainID, ledger.ChainID) {
			g.outcome(chain, ledger.Succeeded, "done")
			o := g.outcome(chain, ledger.Succeeded, "done")
			return *g.chain(chain).State.ContinuedBy, *o.ContinuedBy
		}, 1, false},
		{"a completion", func(g *governed, chain ledger.ChainID) (ledger.ChainID, ledger.ChainID) {
			c := g.complete(chain)
			return c.Chain.ID, c.Chain.ID
		}, 0, true},
		{"a failure", func(g *governed, chain ledger.ChainID) (ledger.ChainID, ledger.ChainID) {
			c := must[*service.Completed](g.t)(g.CompleteChain(g.t.Context(), g.who.agent, chain, &ledger.Completion{Failed: true}))
			return c.Chain.ID, c.Chain.ID
		}, 0, true},
	}
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				g := govern(t, db.Fresh(t))
				g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
				old := g.abandoned("quiet", step(t, "look", "early"))
				successor, named := test.arrive(g, old)
				if successor == old || named != successor {
					t.Fatalf("it was recorded in %s, and the answer names %s", successor, named)
				}
				again, _ := test.arrive(g, old)
				if again != successor {
					t.Errorf("sent again it was recorded in %s, at first in %s", again, successor)
				}
				before, after := g.chain(old), g.chain(successor)
				if before.State.ContinuedBy == nil || *before.State.ContinuedBy != successor || after.Predecessor() == nil || *after.Predecessor() != old {
					t.Errorf("%s is continued by %v, %s continues %v", old, before.State.ContinuedBy, successor, after.Predecessor())
				}
				if after.Name != before.Name || after.ExternalID != before.ExternalID || string(after.Metadata) != string(before.Metadata) ||
					after.OpenedBy != before.OpenedBy || after.Environment != before.Environment || after.IdempotencyKey != "" {
					t.Errorf("the successor is %+v of %+v", after.Chain, before.Chain)
				}
				if after.State.Actions != test.events || after.State.Status.Sealed() != test.sealed || before.State.Actions != 1 {
					t.Errorf("the successor has %d events and is %s; the old chain has %d", after.State.Actions, after.State.Status, before.State.Actions)
				}
				// Nothing that was recorded before the sealing runs again, under whichever id.
				for _, chain := range []ledger.ChainID{old, successor} {
					if r := g.record(chain, step(t, "look", "early")); r.Event.Chain != old || r.Event.Sequence != 1 || r.Event.Status != ledger.EventAllowed {
						t.Errorf("the early event is answered %+v", r.Event)
					}
					_, err := g.RecordEvent(t.Context(), g.who.agent, chain, step(t, "deploy", "early"))
					checkCode(t, "another action under the early key", err, fault.CodeIdempotencyConflict)
				}
				receipts := int64(1)
				if test.sealed {
					receipts = 2
					_, err := g.RecordEvent(t.Context(), g.who.agent, old, step(t, "deploy", "too late"))
					checkCode(t, "an event after the successor was completed", err, fault.CodeChainSealed)
				}
				checkIntact(t, g.Service, "acme", receipts)
			})
		}
	})
}

// firstEvent returns the id of a chain's first event.
func (g *governed) firstEvent(chain ledger.ChainID) ledger.EventID {
	g.t.Helper()
	events := must[[]*service.EventView](g.t)(g.Events(g.t.Context(), g.who.member, chain, 0, 1))
	return must[*ledger.RecordedEvent](g.t)(ledger.DecodeEvent(events[0].Body)).ID
}

// outcome reports the outcome of a chain's first event.
func (g *governed) outcome(chain ledger.ChainID, result ledger.Result, detail string) *service.Outcome {
	g.t.Helper()
	return must[*service.Outcome](g.t)(g.ReportOutcome(g.t.Context(), g.who.agent, chain, g.firstEvent(chain), &ledger.Entry{Result: result, Detail: detail}))
}

// Late outcomes follow the rules of outcomes along a lineage of abandoned chains: repeating one
// changes nothing, an unknown result can be replaced once, and a denied action has none. They are
// recorded under the kill switch, but not after the client has completed the lineage.
func TestLateOutcomes(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
		old := g.abandoned("quiet", step(t, "look", "early"))
		refused := func(what string, event ledger.EventID, result ledger.Result, detail string, code fault.Code) {
			t.Helper()
			_, err := g.ReportOutcome(t.Context(), g.who.agent, old, event, &ledger.Entry{Result: result, Detail: detail})
			checkCode(t, what, err, code)
		}
		event := g.firstEvent(old)
		unknown := g.outcome(old, ledger.Unknown, "")
		second := *unknown.ContinuedBy
		if unknown.Event != event || unknown.Sequence != 1 || unknown.Position != 1 || g.chain(second).State.Entries != 1 {
			t.Errorf("the outcome is %+v", unknown.Entry)
		}
		// The successor is abandoned too: what was reported there still counts.
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		if again := g.outcome(old, ledger.Unknown, ""); again.RecordedAt != unknown.RecordedAt || *again.ContinuedBy != second || g.chain(second).State.ContinuedBy != nil {
			t.Errorf("repeated, the outcome is %+v, at first %+v", again, unknown)
		}
		g.kill("stop")
		settled := g.outcome(old, ledger.Failed, "no")
		third := *settled.ContinuedBy
		if third == second || settled.Result != ledger.Failed || settled.Detail != "no" || settled.RecordedAt <= unknown.RecordedAt {
			t.Errorf("the settled outcome is %+v", settled)
		}
		if again := g.outcome(old, ledger.Failed, "no"); again.RecordedAt != settled.RecordedAt || again.Position != settled.Position {
			t.Errorf("repeated, the settled outcome is %+v, at first %+v", again.Entry, settled.Entry)
		}
		refused("another outcome", event, ledger.Succeeded, "", fault.CodeOutcomeConflict)
		refused("another detail", event, ledger.Failed, "yes", fault.CodeOutcomeConflict)
		refused("an unknown outcome of what is settled", event, ledger.Unknown, "", fault.CodeOutcomeConflict)
		for _, chain := range []ledger.ChainID{second, third} {
			stored := must[[]*service.EventView](t)(g.Events(t.Context(), g.who.member, chain, 0, 10))
			marker := must[*ledger.RecordedEvent](t)(ledger.DecodeEvent(stored[0].Body))
			if len(stored) != 1 || marker.Action.ActionType != ledger.ActionTypeLateOutcome || marker.Action.ActionName != "look" || marker.Status != ledger.EventAllowed {
				t.Errorf("%d events, the first %+v", len(stored), marker.Event)
			}
		}
		g.complete(old)
		if again := g.outcome(old, ledger.Failed, "no"); again.RecordedAt != settled.RecordedAt {
			t.Errorf("repeated after the completion, the outcome is %+v", again.Entry)
		}
		checkIntact(t, g.Service, "acme", 3)
	})
}

// A denied action has no late outcome, none is recorded after the lineage was completed, and an
// action that used the idempotency key of an outcome is left unchanged. None of these opens a
// successor.
func TestLateOutcomesThatAreRefused(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
		g.kill("stop")
		denied := g.open("denied")
		g.record(denied, step(t, "deploy", ""))
		g.deactivateKillSwitch()
		done := g.open("done")
		g.record(done, step(t, "look", ""))
		taken := g.open("taken")
		g.record(taken, step(t, "look", ""))
		key := ledger.LateOutcomeKeys(g.firstEvent(taken))[1]
		g.record(taken, step(t, "take", key))
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		g.complete(done)
		for chain, code := range map[ledger.ChainID]fault.Code{
			denied: fault.CodeOutcomeConflict, done: fault.CodeChainSealed, taken: fault.CodeOutcomeConflict,
		} {
			_, err := g.ReportOutcome(t.Context(), g.who.agent, chain, g.firstEvent(chain), &ledger.Entry{Result: ledger.Succeeded})
			checkCode(t, g.chain(chain).Name, err, code)
			if chain != done && g.chain(chain).State.ContinuedBy != nil {
				t.Errorf("the refused outcome has opened a successor of %s", g.chain(chain).Name)
			}
		}
		checkIntact(t, g.Service, "acme", 4)
	})
}

func (g *governed) chain(id ledger.ChainID) *service.ChainView {
	g.t.Helper()
	return must[*service.ChainView](g.t)(g.Chain(g.t.Context(), g.who.member, id))
}

// A successor may be abandoned, too, and a client that still names the first chain is directed to
// the newest one, even by a service that was just started.
func TestSuccessorOfASuccessor(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
		first := g.abandoned("quiet", step(t, "look", "0"))
		chains := []ledger.ChainID{first}
		for i := range 4 {
			name := fmt.Sprint(i + 1)
			r := g.record(first, step(t, "look", name))
			chains = append(chains, r.Event.Chain)
			g.clock.Advance(73 * time.Hour)
			g.passRound(g.Service)
		}
		fresh := g.over(g.store)
		last := must[*service.Recorded](t)(fresh.RecordEvent(t.Context(), g.who.agent, first, step(t, "look", "last")))
		chains = append(chains, last.Event.Chain)
		seen := make(map[ledger.ChainID]bool)
		for i, chain := range chains {
			if seen[chain] {
				t.Fatalf("chain %d is one of those before it", i)
			}
			seen[chain] = true
			// Whichever of them is named, each action stands where it was first recorded.
			for j := range 5 {
				again := must[*service.Recorded](t)(fresh.RecordEvent(t.Context(), g.who.agent, chain, step(t, "look", fmt.Sprint(j))))
				if again.Event.Chain != chains[j] {
					t.Errorf("named by chain %d, action %d is in another chain", i, j)
				}
			}
			next := must[*service.Recorded](t)(fresh.RecordEvent(t.Context(), g.who.agent, chain, step(t, "look", fmt.Sprint("next-", i))))
			if next.Event.Chain != last.Event.Chain {
				t.Errorf("named by chain %d, the next action is not in the newest", i)
			}
		}
		state := g.chainState(last.Event.Chain)
		if state.Carried.Actions != 5 || state.Actions != 7 {
			t.Errorf("%d actions were carried over to %d", state.Carried.Actions, state.Actions)
		}
		if completed := g.complete(first); completed.Chain.ID != last.Event.Chain {
			t.Error("the completion is not of the newest chain")
		}
		checkIntact(t, g.Service, "acme", 6)
	})
}

// A chain and its successors share the limits of one chain.
func TestSuccessorsShareLimits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for _, limit := range limits {
			t.Run(limit.name, func(t *testing.T) {
				t.Parallel()
				g := govern(t, db.Fresh(t))
				g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
				g.settings(limit.settings)
				chain := g.open("limited")
				limit.act(g, chain)
				g.clock.Advance(73 * time.Hour)
				g.passRound(g.Service)
				allowed := 1
				for limit.act(g, chain).Status == ledger.EventAllowed {
					allowed++
				}
				want := limit.allowed
				if limit.name == "duration" {
					want = 1 // it is 73 hours old
				}
				if allowed != want {
					t.Errorf("%d actions were allowed, want %d", allowed, want)
				}
				successor := *g.chain(chain).State.ContinuedBy
				if status := g.chainState(successor).Status; status != ledger.ChainAutoPaused {
					t.Fatalf("the successor is %s", status)
				}
				must[*service.ChainView](t)(g.ResumeChain(t.Context(), g.who.admin, successor))
				for range limit.allowed {
					if e := limit.act(g, chain); e.Status != ledger.EventAllowed {
						t.Errorf("after it was resumed an action is %s: %s", e.Status, e.Decision.Reason)
					}
				}
				if e := limit.act(g, chain); !e.Decision.AutoPaused {
					t.Errorf("beyond the new grant an action is %s", e.Status)
				}
			})
		}
		t.Run("exposure", func(t *testing.T) {
			t.Parallel()
			g := govern(t, db.Fresh(t))
			g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
			chain := g.abandoned("payer", payment(t, 4000, "1"), payment(t, 4000, "2"), payment(t, 4000, "3"))
			if e := g.record(chain, payment(t, 10, "4")).Event; e.Status != ledger.EventAwaiting || e.Decision.PolicyName != ledger.RuleCumulativeThreshold {
				t.Errorf("12,000 USD later a payment is %s: %s", e.Status, e.Decision.Reason)
			}
			// What was allowed before does not stand in its own way.
			g.settings(`{"cumulative_financial_threshold_usd":8500}`)
			if e := g.record(chain, payment(t, 4000, "3")).Event; e.Status != ledger.EventAllowed {
				t.Errorf("the third payment again is %s: %s", e.Status, e.Decision.Reason)
			}
		})
		t.Run("the chain's own timeout", func(t *testing.T) {
			t.Parallel()
			g := govern(t, db.Fresh(t))
			g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
			request := request(t, ledger.ParseChainRequest, `{"name":"timed","policy_config":{"chain_timeout_seconds":3600}}`)
			chain := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, request, "")).ID
			g.clock.Advance(73 * time.Hour)
			g.passRound(g.Service)
			if e := g.record(chain, step(t, "look", "")).Event; e.Decision.PolicyName != ledger.RuleChainTimeout {
				t.Errorf("an action of a successor is %s by %s", e.Status, e.Decision.PolicyName)
			}
		})
		t.Run("the organization's rules", func(t *testing.T) {
			t.Parallel()
			g := govern(t, db.Fresh(t))
			g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
			g.put(`rules: [{name: few, when: "chain.total_actions >= 2 || chain.age_seconds < 3600.0 && chain.total_actions >= 1", decision: deny, reason: r}]`)
			chain := g.abandoned("counted", step(t, "look", ""))
			if e := g.record(chain, step(t, "look", "")).Event; e.Status != ledger.EventAllowed {
				t.Errorf("the second action is %s: %s", e.Status, e.Decision.Reason)
			}
			if e := g.record(chain, step(t, "look", "")).Event; e.Decision.PolicyName != "few" {
				t.Errorf("the third action is %s", e.Status)
			}
		})
	})
}

// A lease of an abandoned chain covers the actions that were decided under it, once.
func TestLeaseOfAnAbandonedChain(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_events":4}}`)
		view := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, chainNamed(t, "leased"), ""))
		lease := view.Terms.Lease
		leased := func(keys ...string) []*ledger.Action {
			actions := reported(t, keys...)
			for _, action := range actions {
				action.ActionName, action.LeaseID = "get_page", lease.ID
			}
			return actions
		}
		g.reportAll(view.ID, leased("1", "2"))
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		report := g.reportAll(view.ID, leased("3", "4", "5"))
		for i, want := range []bool{true, true, false} { // the lease was for four actions
			if leased := report.Results[i].Event.Lease != ""; leased != want {
				t.Errorf("late action %d is covered: %v, want %v", i, leased, want)
			}
		}
	})
}

// However sealing and clients interleave, each event is recorded once: in the chain or in its only
// successor.
//
//countersign:race
func TestSealingRacesWithEvents(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const workers, each = 4, 6
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
		replica := g.replica()
		for round := range 5 {
			chain := g.open(fmt.Sprint("contested-", round))
			g.clock.Advance(74 * time.Hour)
			group, ctx := errgroup.WithContext(t.Context())
			for worker := range workers {
				s := []*service.Service{g.Service, replica}[worker%2]
				group.Go(func() error {
					for i := range each {
						// Two workers send each event.
						if _, err := s.RecordEvent(ctx, g.who.agent, chain, step(t, "look", fmt.Sprint(worker/2, "-", i))); err != nil {
							return err
						}
					}
					return nil
				})
				group.Go(func() error { return s.AbandonForTest(ctx, g.who.id, chain) })
			}
			done(t, group.Wait())
			old := g.chain(chain)
			recorded := g.recordedKeys(t, chain, make(map[string]int))
			if old.State.Abandoned {
				recorded = g.recordedKeys(t, *old.State.ContinuedBy, recorded)
				if next := g.chainState(*old.State.ContinuedBy); next.ContinuedBy != nil || next.Abandoned {
					t.Error("the successor was abandoned at once")
				}
			}
			if len(recorded) != workers/2*each {
				t.Errorf("%d of %d events are recorded", len(recorded), workers/2*each)
			}
			for key, times := range recorded {
				if times != 1 {
					t.Errorf("event %s is recorded %d times", key, times)
				}
			}
		}
		report := must[*verify.AuditReport](t)(g.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Status != verify.AuditIntact {
			t.Errorf("the audit says %s: %v", report.Status, report.Break)
		}
	})
}

func (g *governed) recordedKeys(t *testing.T, chain ledger.ChainID, counts map[string]int) map[string]int {
	t.Helper()
	for _, event := range must[[]*service.EventView](t)(g.Events(context.WithoutCancel(t.Context()), g.who.member, chain, 0, 200)) {
		counts[event.IdempotencyKey]++
	}
	return counts
}

// A chain that was tampered with is left unchanged, and does not keep others from being sealed.
func TestTamperedChainHoldsUpNoOther(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		older, forged, newer := g.open("older"), g.open("forged"), g.open("newer")
		edit := "UPDATE chain_states SET mac = state WHERE chain_id = $1"
		id := any(forged.UUID.String())
		if db.Kind == "sqlite" {
			edit = "UPDATE chain_states SET mac = state WHERE chain_no = (SELECT no FROM chains WHERE id = ?)"
			id = forged.UUID[:]
		}
		if _, err := db.Direct(t).ExecContext(t.Context(), edit, id); err != nil {
			t.Fatal(err)
		}
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		for _, chain := range []ledger.ChainID{older, newer} {
			if !g.chainState(chain).Abandoned {
				t.Error("a chain beside the forged one is not sealed")
			}
		}
		_, err := g.Chain(t.Context(), g.who.member, forged)
		checkCode(t, "the forged chain", err, fault.CodeEvidenceTampered)
	})
}

// refusesOnce is a store whose first transaction about a chain fails.
type refusesOnce struct {
	store.Store
	err    error
	failed atomic.Bool
}

func (f *refusesOnce) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if len(needs.Chains) > 0 && !f.failed.Swap(true) {
		return f.err
	}
	return f.Store.Transact(ctx, needs, plan)
}

// An operator is told to run an audit if a chain cannot be sealed for a reason that lasts. While the store
// is only unavailable, the chain waits for the next pass, which seals it.
//
//countersign:race
func TestSealingWhileTheStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		level string
	}{
		"unavailable": {fmt.Errorf("the disk is busy: %w", store.ErrUnavailable), "WARN"},
		"damaged":     {errUnreadable, "ERROR"},
	} {
		g := govern(t, testdb.SQLite(t))
		chain := g.open("left")
		g.clock.Advance(73 * time.Hour)
		var log servicetest.Buffer
		broken := &refusesOnce{Store: g.store, err: test.err}
		s := serve(t, service.Config{
			Store: broken, Keys: g.ring, Secrets: g.ring, Clock: g.clock.Now, Committers: 1, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		g.passRound(s)
		if g.chainState(chain).Abandoned || !broken.failed.Load() {
			t.Fatalf("%s: the chain is sealed", name)
		}
		if got := log.String(); !strings.Contains(got, "level="+test.level) || strings.Contains(got, "countersign audit") != (test.level == "ERROR") {
			t.Errorf("%s: the log says %s", name, got)
		}
		g.passRound(s)
		if !g.chainState(chain).Abandoned {
			t.Errorf("%s: the next pass does not seal the chain", name)
		}
	}
}

// An approval from before its chain was abandoned releases nothing while the newest chain is
// paused, and neither does a repeat of its action.
func TestApprovalOfAnAbandonedChainInAPausedSuccessor(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_events":2,"max_duration_seconds":100000000}}`)
		chain := g.open("approved")
		asked := g.record(chain, payment(t, gatedAmount, "pay")).Event
		g.approve(asked.Approval)
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		view := func() *service.ApprovalView {
			t.Helper()
			return must[*service.ApprovalView](t)(g.Approval(t.Context(), g.who.agent, asked.Approval, 0))
		}
		g.record(chain, step(t, "look", ""))
		if now := view(); now.Now() != ledger.ApprovalApproved {
			t.Errorf("in a successor that runs it is %s: %+v", now.Now(), now.Overruled)
		}
		if event := g.record(chain, step(t, "look", "")).Event; !event.Decision.AutoPaused {
			t.Fatalf("beyond the limit an action is %s", event.Status)
		}
		if now := view(); now.Now() != ledger.ApprovalDenied || !now.Overruled.AutoPaused {
			t.Errorf("in a paused successor it is %s: %+v", now.Now(), now.Overruled)
		}
		if event := g.record(chain, payment(t, gatedAmount, "pay")).Event; !event.Decision.AutoPaused {
			t.Errorf("a repeat is %s", event.Status)
		}
	})
}

// A client that polls per chain sees a denial in whichever chain of the lineage it was given: a
// successor does not hide it.
func TestDenialsOutliveTheirChain(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"auto_pause":{"max_duration_seconds":100000000}}`)
		chain := g.open("denied")
		first := g.ask(chain)
		done(t, g.decide(g.reviewer("cfo"), first, false))
		g.clock.Advance(73 * time.Hour)
		g.passRound(g.Service)
		standing := func(when string, shown int) {
			t.Helper()
			for _, id := range []ledger.ChainID{chain, *g.newest(chain)} {
				got := must[*service.ChainApprovals](t)(g.ChainApprovals(t.Context(), g.who.agent, id))
				if got.Standing != ledger.ApprovalDenied || len(got.Shown) != shown {
					t.Errorf("%s: %s, with %d approvals; want denied, with %d", when, got.Standing, len(got.Shown), shown)
				}
			}
		}
		g.record(chain, step(t, "late", ""))
		standing("in the successor", 1)
		g.approve(g.ask(chain))
		standing("after another approval", 2)
	})
}

// newest returns the chain that continues a chain.
func (g *governed) newest(chain ledger.ChainID) *ledger.ChainID {
	g.t.Helper()
	if next := g.chainState(chain).ContinuedBy; next != nil {
		return next
	}
	return &chain
}
