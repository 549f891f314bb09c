package service_test

import (
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
)

// filler fills a ledger with everything that a ledger can contain.
type filler struct{ governed }

// administer does what admins do.
func (f *filler) administer() {
	f.t.Helper()
	f.settings(`{"auto_pause":{"max_events":5},"approval_timeout_hours":2,"budgets":[
		{"name":"all","scope":"organization","window":"month","limit_usd":1e9,"decision":"deny"},
		{"name":"each","scope":"agent","window":"month","limit_usd":1e9,"decision":"require_approval"}]}`)
	f.put(flagDeploys)
	f.put(denyDeploys)
	f.hook()
	f.kill("a drill")
	f.deactivateKillSwitch()
	from := servicetest.NewElsewhere(f.t)
	for range 2 {
		_, one := from.Decide(nil)
		_, two := from.Decide(func(a *ledger.Approval) { a.Status = ledger.ApprovalDenied })
		must[*service.Import](f.t)(f.bring(one, two))
	}
}

// liven adds to the n-th sealed chain what the others do not have.
func (f *filler) liven(chain ledger.ChainID, n int) {
	f.t.Helper()
	switch n {
	case 1:
		f.approve(f.ask(chain))
	case 2:
		for range 4 { // the last of them pauses the chain
			f.record(chain, step(f.t, "deploy", ""))
		}
		must[*service.ChainView](f.t)(f.ResumeChain(f.t.Context(), f.who.admin, chain))
		f.record(chain, step(f.t, "look", ""))
	case 4:
		done(f.t, f.decide(f.who.member, f.ask(chain), false))
	case 5:
		must[*service.Report](f.t)(f.ReportEvents(f.t.Context(), f.who.agent, chain, reported(f.t, "one", "two")))
	case 7:
		f.wait(f.ask(chain), ledger.ApprovalTimedOut)
	case 10:
		f.approve(f.ask(chain))
		f.ask(chain) // completing cancels it
	}
}

// leaveOpen leaves a chain with open approvals, one of them with a long deadline.
func (f *filler) leaveOpen(chain ledger.ChainID) {
	f.t.Helper()
	f.wait(f.ask(chain), ledger.ApprovalEscalated)
	f.ask(chain)
}

// wait lets time pass until an approval has the given status.
func (f *filler) wait(id ledger.ApprovalID, until ledger.ApprovalStatus) {
	f.t.Helper()
	for range 3 {
		if view := f.view(id); view.Approval.Status == until {
			return
		}
		f.clock.Advance(time.Hour)
		must[ledger.Time](f.t)(f.AdvanceApproval(f.t.Context(), id))
	}
	f.t.Fatalf("an approval never comes to be %s", until)
}
