package service_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// Each contest has waves of concurrent approvals: their number, and the approvals in each.
const (
	waves = 10 - 8*racing
	wave  = 25
)

// contest lets a rival compete with a person's approval, concurrently, over many approvals.
type contest struct {
	name  string
	rival func(*governed, *service.Service, *contested) error
	throw func(*governed) // once in each wave, at the same time; optional
	// beaten is what the yes is answered with when the rival was first, and lost
	// what the approval is then.
	beaten fault.Code
	lost   ledger.ApprovalStatus
}

type contested struct {
	name     string
	chain    ledger.ChainID
	id       ledger.ApprovalID
	handicap int   // how often the rival looks before it acts
	yes      error // what became of the yes
	rival    error // and of its rival
}

var rivalries = []contest{
	{
		name: "deny", beaten: fault.CodeApprovalDecided, lost: ledger.ApprovalDenied,
		rival: func(g *governed, s *service.Service, c *contested) error {
			_, err := s.DecideApproval(context.Background(), g.who.admin, c.id, &ledger.Verdict{})
			return err
		},
	},
	{
		name: "time-out", beaten: fault.CodeApprovalExpired, lost: ledger.ApprovalTimedOut,
		rival: func(_ *governed, s *service.Service, c *contested) error {
			_, err := s.AdvanceApproval(context.Background(), c.id)
			return err
		},
		throw: func(g *governed) { g.clock.Advance(24 * time.Hour) },
	},
	{
		name: "completion", beaten: fault.CodeApprovalDecided, lost: ledger.ApprovalCancelled,
		rival: func(g *governed, s *service.Service, c *contested) error {
			return complete(context.Background(), s, g.who.agent, c.chain)
		},
	},
	{
		name: "kill switch", beaten: fault.CodeKillSwitchActive, lost: ledger.ApprovalPending,
		rival: func(g *governed, s *service.Service, c *contested) error {
			_, err := s.Approval(context.Background(), g.who.agent, c.id, 0)
			return err
		},
		throw: func(g *governed) { g.kill("an incident") },
	},
}

// When an approval competes with anything else, there is one winner, and everything stored agrees
// with it.
//
//countersign:race twice
func TestContests(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		elsewhere := g.replica()
		for _, c := range rivalries {
			var won atomic.Int64
			for turn := range waves {
				held := g.hold(&c, elsewhere, turn)
				g.passTime() // the worker comes by: what is due and was not yet is settled
				each(held, func(one *contested) {
					if g.checkContest(t, &c, one) {
						won.Add(1)
					}
				})
				if g.view(held[0].id).Killed {
					g.deactivateKillSwitch()
				}
				each(held, func(one *contested) {
					g.complete(one.chain)
					g.checkSealed(t, one.chain, one.id)
				})
			}
			t.Logf("approve against %s: %d of %d won", c.name, won.Load(), waves*wave)
		}
		checkIntact(t, elsewhere, "acme", int64(len(rivalries)*waves*wave))
	})
}

// each calls do for all of them concurrently.
func each(held []*contested, do func(*contested)) {
	var crowd sync.WaitGroup
	for _, one := range held {
		crowd.Go(func() { do(one) })
	}
	crowd.Wait()
}

// hold opens chains and starts all contestants at once. From wave to wave the rivals wait a little
// longer before they act.
func (g *governed) hold(c *contest, elsewhere *service.Service, turn int) []*contested {
	g.t.Helper()
	held := make([]*contested, wave)
	for i := range held {
		held[i] = &contested{name: fmt.Sprint(c.name, "-", i), handicap: (turn + i) % 4}
	}
	each(held, func(one *contested) {
		one.chain = g.open(one.name)
		one.id = g.ask(one.chain)
	})
	var thrown sync.WaitGroup
	if c.throw != nil {
		thrown.Go(func() {
			for range 2 * turn {
				g.view(held[0].id)
			}
			c.throw(g)
		})
	}
	each(held, func(one *contested) {
		var both sync.WaitGroup
		both.Go(func() {
			for range one.handicap {
				g.view(one.id)
			}
			one.rival = c.rival(g, elsewhere, one)
		})
		_, one.yes = g.DecideApproval(context.Background(), g.who.member, one.id, &ledger.Verdict{Approve: true})
		both.Wait()
	})
	thrown.Wait()
	return held
}

// checkContest expects one winner, and a chain that agrees with it. It reports whether the
// approval has won.
func (g *governed) checkContest(t *testing.T, c *contest, one *contested) bool {
	t.Helper()
	view, state := g.view(one.id), g.chainState(one.chain)
	want, spent, rival := c.lost, 0.0, fault.Code("")
	if one.yes == nil {
		want, spent = ledger.ApprovalApproved, gatedAmount
		if c.name == "deny" {
			rival = fault.CodeApprovalDecided
		}
	} else {
		checkCode(t, "a yes that came late", one.yes, c.beaten)
	}
	checkCode(t, c.name, one.rival, rival)
	if view.Status != want {
		t.Errorf("approve (%v) against %s (%v): the approval is %s", one.yes, c.name, one.rival, view.Status)
	}
	held, entries := 0.0, int64(2)
	if want.Open() {
		held, entries = gatedAmount, 1
	}
	checkMoney(t, "held", state.Pending.Exposure, held)
	checkMoney(t, "spent", state.Metrics.FinancialExposure, spent)
	if state.Entries != entries {
		t.Errorf("%d entries, want %d", state.Entries, entries)
	}
	return one.yes == nil
}
