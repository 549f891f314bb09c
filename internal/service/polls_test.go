package service_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// wantAttendance compares what a reviewer sees with what the client did; nil for a client that
// never polled.
func wantAttendance(t *testing.T, what string, s *service.Service, reviewer *service.Caller, id ledger.ApprovalID, last *ledger.Time, waiting bool) {
	t.Helper()
	view := must[*service.ApprovalView](t)(s.Approval(t.Context(), reviewer, id, 0))
	got := view.Client.LastPolledAt
	if (got == nil) != (last == nil) || got != nil && *got != *last || view.Client.Waiting != waiting {
		t.Errorf("%s: last asked at %v, waiting %t; want %v, %t", what, got, view.Client.Waiting, last, waiting)
	}
	listed := must[[]*service.ApprovalView](t)(s.Approvals(t.Context(), reviewer, service.ApprovalFilter{Limit: 100, Bare: true}))
	for _, one := range listed {
		if one.ID == id && one.Client.Waiting != waiting {
			t.Errorf("%s: listed as waiting %t, want %t", what, one.Client.Waiting, waiting)
		}
	}
}

// A reviewer sees when the client of an approval last polled, and whether it still waits. Only
// requests with the chain's own key count, and only those about the approval.
func TestReviewersSeeWhetherTheClientWaits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		for name, test := range map[string]struct {
			ask   func(chain ledger.ChainID, id ledger.ApprovalID) error
			asked bool
		}{
			"nobody asked": {func(ledger.ChainID, ledger.ApprovalID) error { return nil }, false},
			"the client reads the approval": {func(_ ledger.ChainID, id ledger.ApprovalID) error {
				_, err := g.Approval(t.Context(), g.who.agent, id, 0)
				return err
			}, true},
			"the client waits": {func(_ ledger.ChainID, id ledger.ApprovalID) error {
				_, err := g.Approval(t.Context(), g.who.agent, id, time.Millisecond)
				return err
			}, true},
			"the client polls its chain": {func(chain ledger.ChainID, _ ledger.ApprovalID) error {
				_, err := g.ChainApprovals(t.Context(), g.who.agent, chain)
				return err
			}, true},
			"a reviewer waits": {func(_ ledger.ChainID, id ledger.ApprovalID) error {
				_, err := g.Approval(t.Context(), g.who.member, id, time.Millisecond)
				return err
			}, false},
			"a reviewer polls the chain": {func(chain ledger.ChainID, _ ledger.ApprovalID) error {
				_, err := g.ChainApprovals(t.Context(), g.who.admin, chain)
				return err
			}, false},
			"another agent is refused": {func(_ ledger.ChainID, id ledger.ApprovalID) error {
				_, other := g.newKey(&service.KeyRequest{Role: ledger.RoleAgent})
				if _, err := g.Approval(t.Context(), other, id, 0); codeOf(err) != fault.CodeNotFound {
					return errors.New("another agent saw the approval")
				}
				return nil
			}, false},
			"the client records something else": {func(chain ledger.ChainID, _ ledger.ApprovalID) error {
				_, err := g.RecordEvent(t.Context(), g.who.agent, chain, step(t, "list_files", ""))
				return err
			}, false},
			"the client lists approvals": {func(_ ledger.ChainID, _ ledger.ApprovalID) error {
				_, err := g.Approvals(t.Context(), g.who.agent, service.ApprovalFilter{Limit: 10})
				return err
			}, false},
		} {
			chain := g.open("n")
			id := g.ask(chain)
			if err := test.ask(chain, id); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var last *ledger.Time
			if test.asked {
				last = g.in(0)
			}
			wantAttendance(t, name+", at once", g.Service, g.who.member, id, last, test.asked)
			g.clock.Advance(59 * time.Second)
			wantAttendance(t, name+", within the minute", g.Service, g.who.member, id, last, test.asked)
			g.clock.Advance(time.Second)
			wantAttendance(t, name+", after a minute", g.Service, g.who.member, id, last, false)
		}
	})
}

// A person who is signed in with the key that opened the chain is not its client.
func TestABrowserIsNoClient(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		id := g.ask(g.open("n"))
		link := must[ledger.Secret](t)(g.CreateSignIn(t.Context(), g.who.admin, g.who.agentKey.Record.ID))
		session, _, err := g.SignIn(t.Context(), link.Reveal())
		done(t, err)
		person := must[*service.Caller](t)(g.SessionCaller(t.Context(), session.Reveal()))
		must[*service.ApprovalView](t)(g.Approval(t.Context(), person, id, 0))
		wantAttendance(t, "looked at", g.Service, g.who.member, id, nil, false)
	})
}

// An agent does not see whether clients wait, and nobody waits for an ended approval.
func TestAttendanceEnds(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		id := g.ask(g.open("n"))
		for range 2 {
			view := must[*service.ApprovalView](t)(g.Approval(t.Context(), g.who.agent, id, 0))
			if view.Client != nil {
				t.Error("an agent is told when it asked")
			}
		}
		wantAttendance(t, "open", g.Service, g.who.member, id, g.in(0), true)
		g.approve(id)
		wantAttendance(t, "approved", g.Service, g.who.member, id, g.in(0), false)
		last := g.in(time.Minute)
		g.clock.Advance(time.Minute)
		must[*service.ApprovalView](t)(g.Approval(t.Context(), g.who.agent, id, 0)) // it learns of the decision
		wantAttendance(t, "fetched", g.Service, g.who.member, id, last, false)
	})
}

// A running long poll is a client that waits now, on this replica and, after a flush, on every
// other. Its end is recorded.
//
//countersign:race
func TestAnOpenLongPollWaitsNow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		here, elsewhere := g.over(heard), g.over(g.another())
		id := g.ask(g.open("n"))
		ctx, hangUp := context.WithCancel(t.Context())
		answered := poll(ctx, here, g.who.agent, id, forever)
		<-heard.read
		g.clock.Advance(10 * time.Minute)
		g.awaitWaiting(t, here, id)
		wantAttendance(t, "elsewhere, not written", elsewhere, g.who.member, id, nil, false)
		done(t, here.FlushPolls(t.Context()))
		wantAttendance(t, "elsewhere", elsewhere, g.who.member, id, g.in(0), true)
		g.clock.Advance(15 * time.Second)
		ended := g.in(0)
		hangUp()
		checkAnswer(t, answered, ledger.ApprovalPending)
		done(t, here.FlushPolls(t.Context()))
		g.clock.Advance(2 * time.Minute)
		wantAttendance(t, "hung up", here, g.who.member, id, ended, false)
		wantAttendance(t, "hung up, elsewhere", elsewhere, g.who.member, id, ended, false)
		wantAttendance(t, "after a restart", g.over(g.another()), g.who.member, id, ended, false)
	})
}

// awaitWaiting waits for a long poll that has read the approval, but may not be counted yet.
func (g *governed) awaitWaiting(t *testing.T, s *service.Service, id ledger.ApprovalID) {
	t.Helper()
	for range 100_000 {
		if must[*service.ApprovalView](t)(s.Approval(t.Context(), g.who.member, id, 0)).Client.Waiting {
			return
		}
	}
	t.Fatal("a long poll is under way, and nobody waits")
}

// countingPolls counts writes of polls, and fails the first.
type countingPolls struct {
	store.Store
	failsOnce
}

func (c *countingPolls) PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error {
	if err := c.write(); err != nil {
		return err
	}
	return c.Store.PutPolls(ctx, polls)
}

// Polls are written by a flush and not before, each once, and a failed flush loses nothing.
func TestPollsAreFlushed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		c := &countingPolls{Store: g.another()}
		s := g.over(c)
		id := g.ask(g.open("n"))
		for range 5 {
			must[*service.ApprovalView](t)(s.Approval(t.Context(), g.who.agent, id, 0))
		}
		if c.writes.Load() != 0 {
			t.Error("a poll was written before it was flushed")
		}
		if err := s.FlushPolls(t.Context()); err == nil {
			t.Error("the failure was not told")
		}
		wantAttendance(t, "elsewhere, not written", g.Service, g.who.member, id, nil, false)
		for range 3 {
			done(t, s.FlushPolls(t.Context()))
		}
		if c.writes.Load() != 2 {
			t.Errorf("%d writes, want the one that failed and one more", c.writes.Load())
		}
		wantAttendance(t, "elsewhere", g.Service, g.who.member, id, g.in(0), true)
		// What is written and old is forgotten here and known from the store.
		last := g.in(0)
		g.clock.Advance(time.Hour)
		done(t, s.FlushPolls(t.Context()))
		wantAttendance(t, "an hour later", s, g.who.member, id, last, false)
		// A replica whose clock runs ahead tells of no poll in the future.
		done(t, g.store.PutPolls(t.Context(), map[ledger.ApprovalID]ledger.Time{id: *g.in(time.Hour)}))
		wantAttendance(t, "from the future", s, g.who.member, id, g.in(0), true)
	})
}
