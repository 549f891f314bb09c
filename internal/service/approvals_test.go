package service_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// ending is one way in which an approval ends.
type ending struct {
	name   string
	end    func(*governed, ledger.ChainID, ledger.ApprovalID)
	status ledger.ApprovalStatus
	act    string // what the audit log calls it, "" where nobody did anything
}

var endings = []ending{
	{"approved", func(g *governed, _ ledger.ChainID, id ledger.ApprovalID) { g.approve(id) }, ledger.ApprovalApproved, "approval.approve"},
	{"denied", func(g *governed, _ ledger.ChainID, id ledger.ApprovalID) {
		checkCode(g.t, "deny", g.decide(g.who.member, id, false), "")
	}, ledger.ApprovalDenied, "approval.deny"},
	{"escalated and approved", func(g *governed, _ ledger.ChainID, id ledger.ApprovalID) {
		g.clock.Set(time.UnixMilli(int64(g.view(id).EscalatesAt)))
		g.passTime()
		checkStatus(g.t, g.view(id), ledger.ApprovalEscalated)
		g.approve(id)
	}, ledger.ApprovalApproved, "approval.approve"},
	{"timed out", func(g *governed, _ ledger.ChainID, id ledger.ApprovalID) {
		g.clock.Set(time.UnixMilli(int64(g.view(id).ExpiresAt)))
		g.passTime()
	}, ledger.ApprovalTimedOut, ""},
	{"escalated and timed out", func(g *governed, _ ledger.ChainID, id ledger.ApprovalID) {
		g.clock.Set(time.UnixMilli(int64(g.view(id).EscalatesAt)))
		g.passTime()
		g.clock.Set(time.UnixMilli(int64(g.view(id).ExpiresAt)))
		g.passTime()
	}, ledger.ApprovalTimedOut, ""},
	{"cancelled", func(g *governed, chain ledger.ChainID, _ ledger.ApprovalID) { g.complete(chain) }, ledger.ApprovalCancelled, ""},
	{"completed after its time", func(g *governed, chain ledger.ChainID, id ledger.ApprovalID) {
		g.clock.Set(time.UnixMilli(int64(g.view(id).ExpiresAt)))
		g.complete(chain)
	}, ledger.ApprovalTimedOut, ""},
}

// However an approval ends, its reservations are released or spent, its end is sealed with the
// chain, and no deadline remains.
func TestHowApprovalsEnd(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		for i, e := range endings {
			chain := g.open(e.name)
			id := g.ask(chain)
			checkMoney(t, "what waits holds", g.chainState(chain).Pending.Exposure, gatedAmount)
			checkMoney(t, "what waits has spent", g.chainState(chain).Metrics.FinancialExposure, 0)
			acts := len(g.acts())
			e.end(g, chain, id)
			t.Run(e.name, func(t *testing.T) { g.checkEnding(t, &e, chain, id) })
			if e.act != "" {
				g.checkActs(t, acts, []wantedAct{{e.act, "test", id.String()}})
			} else {
				g.checkActs(t, acts, nil)
			}
			g.complete(chain)
			g.checkSealed(t, chain, id)
			checkIntact(t, g.Service, "acme", int64(i)+1)
		}
		if rest := g.passTime(); len(rest) == 0 {
			t.Error("nobody would have been told")
		}
		g.clock.Advance(1000 * time.Hour)
		for _, job := range g.passTime() {
			if job.Kind == service.JobDeadline {
				t.Error("a deadline is left of approvals that have ended")
			}
		}
	})
}

// checkEnding compares an ended approval, its chain and its event with the expected end.
func (g *governed) checkEnding(t *testing.T, e *ending, chain ledger.ChainID, id ledger.ApprovalID) {
	t.Helper()
	view, state := g.view(id), g.chainState(chain)
	checkStatus(t, view, e.status)
	spent := 0.0
	if e.status == ledger.ApprovalApproved {
		spent = gatedAmount
	}
	checkMoney(t, "held", state.Pending.Exposure, 0)
	checkMoney(t, "spent", state.Metrics.FinancialExposure, spent)
	if state.Waiting != 0 || state.Approvals != 1 || view.DecidedAt == nil {
		t.Errorf("%d of %d approvals wait, decided at %v", state.Waiting, state.Approvals, view.DecidedAt)
	}
	if byPerson := e.act != ""; (view.Reviewer != nil) != byPerson {
		t.Errorf("reviewer %v", view.Reviewer)
	}
	events := must[[]*service.EventView](t)(g.Events(t.Context(), g.who.member, chain, 0, 9))
	if entry := events[0].Approval; entry == nil || entry.ApprovalStatus != e.status || entry.ApprovalHash != view.Hash() {
		t.Errorf("the event's entry is %+v", entry)
	}
	// The first decision stands: the same again is harmless, another is refused.
	for approve, same := range map[bool]ledger.ApprovalStatus{true: ledger.ApprovalApproved, false: ledger.ApprovalDenied} {
		want := fault.CodeApprovalDecided
		switch e.status {
		case same:
			want = ""
		case ledger.ApprovalTimedOut:
			want = fault.CodeApprovalExpired
		}
		checkCode(t, "another verdict", g.decide(g.who.admin, id, approve), want)
	}
	if again := g.view(id); again.Hash() != view.Hash() || again.Status != e.status {
		t.Error("a verdict on what was settled has changed it")
	}
	next := must[[]*service.EventView](t)(g.Events(t.Context(), g.who.member, chain, 0, 9))
	if len(next) != 1 || g.chainState(chain).Entries != 2 {
		t.Errorf("the chain has %d entries, want the event and its end", g.chainState(chain).Entries)
	}
	outcome := fault.CodeOutcomeConflict
	if e.status == ledger.ApprovalApproved {
		outcome = ""
	}
	_, err := g.ReportOutcome(t.Context(), g.who.agent, chain, view.Event, &ledger.Entry{Result: ledger.Succeeded})
	if e.status != ledger.ApprovalCancelled && !g.chainState(chain).Status.Sealed() {
		checkCode(t, "an outcome", err, outcome)
	}
}

// checkSealed expects the approval in the receipt, with the hash of its decision.
func (g *governed) checkSealed(t *testing.T, chain ledger.ChainID, id ledger.ApprovalID) {
	t.Helper()
	stored := must[*ledger.StoredReceipt](t)(g.ReceiptOfChain(t.Context(), g.who.agent, chain))
	var receipt struct {
		Approvals []struct {
			ID     string `json:"approval_id"`
			Status string `json:"status"`
			Hash   string `json:"approval_hash"`
			Agent  string `json:"agent_name"`
			Action string `json:"action_name"`
		} `json:"approvals"`
	}
	if err := json.Unmarshal(stored.Body, &receipt); err != nil {
		t.Fatal(err)
	}
	view := g.view(id)
	if len(receipt.Approvals) != 1 {
		t.Fatalf("the receipt lists %d approvals", len(receipt.Approvals))
	}
	got := receipt.Approvals[0]
	if got.ID != id.String() || got.Status != string(view.Status) || got.Hash != ledger.FormatHash(view.Hash()) || got.Agent != "payer" || got.Action != "send_payment" {
		t.Errorf("the receipt says %+v of an approval that is %s", got, view.Status)
	}
}

// Escalation and timeout happen at their exact millisecond.
func TestApprovalDeadlinesToTheMillisecond(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"approval_timeout_hours":2}`)
		first, second := g.ask(g.open("first")), g.ask(g.open("second"))
		asked := g.view(first)
		const hour = 60 * 60 * 1000
		if asked.EscalatesAt != asked.RequestedAt+hour || asked.ExpiresAt != asked.RequestedAt+2*hour {
			t.Fatalf("asked at %s, escalates at %s, expires at %s", asked.RequestedAt, asked.EscalatesAt, asked.ExpiresAt)
		}
		g.clock.Set(time.UnixMilli(int64(asked.EscalatesAt - 1)))
		g.passTime()
		checkStatus(t, g.view(first), ledger.ApprovalPending)
		g.clock.Set(time.UnixMilli(int64(asked.EscalatesAt)))
		g.passTime()
		checkStatus(t, g.view(first), ledger.ApprovalEscalated)
		if at := g.view(first).EscalatedAt; at == nil || *at != asked.EscalatesAt {
			t.Errorf("escalated at %v", at)
		}
		g.clock.Set(time.UnixMilli(int64(asked.ExpiresAt - 1)))
		g.passTime()
		checkCode(t, "the last moment", g.decide(g.who.member, first, true), "")
		// No worker has come by, and still nothing can be decided any more.
		g.clock.Set(time.UnixMilli(int64(asked.ExpiresAt)))
		checkStatus(t, g.view(second), ledger.ApprovalTimedOut)
		checkCode(t, "approve at the end", g.decide(g.who.member, second, true), fault.CodeApprovalExpired)
		checkCode(t, "deny at the end", g.decide(g.who.member, second, false), fault.CodeApprovalExpired)
		g.passTime()
		checkStatus(t, g.view(second), ledger.ApprovalTimedOut)
		checkIntact(t, g.Service, "acme", 0)
	})
}

// A client can request less time than the organization's setting, but never more.
func TestClientsShortenTheWait(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		for hours, want := range map[string]ledger.Time{"1": 1, "100": 24} {
			opened := request(t, ledger.ParseChainRequest, `{"name":"short","policy_config":{"approval_timeout_hours":`+hours+`}}`)
			chain := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, opened, "")).ID
			view := g.view(g.ask(chain))
			if got := (view.ExpiresAt - view.RequestedAt) / (60 * 60 * 1000); got != want {
				t.Errorf("%s hours asked for: the approval lasts %d hours, want %d", hours, got, want)
			}
		}
	})
}

// Approvals with payloads so large that a page of them ends early do not hide older ones from a
// list without payloads.
func TestLargePayloadsHideNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("flooded")
		first := g.ask(chain)
		const flood, size = 12, 900 << 10
		body := fmt.Sprintf(`{"agent_name":"payer","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":%d,"note":%q}}`,
			gatedAmount, strings.Repeat("n", size))
		for range flood {
			g.record(chain, request(t, ledger.ParseAction, body))
		}
		list := func(bare bool) []*service.ApprovalView {
			filter := service.ApprovalFilter{Status: ledger.ApprovalPending, Limit: 100, Bare: bare}
			return must[[]*service.ApprovalView](t)(g.Approvals(t.Context(), g.who.member, filter))
		}
		if whole := list(false); len(whole) >= flood {
			t.Errorf("a page with payloads holds %d of them: it should have ended before", len(whole))
		}
		bare := list(true)
		seen := slices.ContainsFunc(bare, func(a *service.ApprovalView) bool { return a.ID == first })
		if len(bare) != flood+1 || !seen || bare[0].Payload != nil {
			t.Errorf("a list without payloads holds %d approvals, the first among them is %v, want %d and true", len(bare), seen, flood+1)
		}
	})
}

// However many approvals wait, those that expire first are at the head of the list: the oldest, and the
// newest if somebody asked for a shorter time. None is listed twice.
func TestMostUrgentOfManyApprovals(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	chain := func(hours int) ledger.ChainID {
		opened := request(t, ledger.ParseChainRequest, fmt.Sprintf(`{"name":"short","policy_config":{"approval_timeout_hours":%d}}`, hours))
		return must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, opened, "")).ID
	}
	day, hour := chain(24), chain(1)
	want := []ledger.ApprovalID{{}, g.ask(day)}
	g.clock.Advance(time.Minute)
	want = append(want, g.ask(day))
	for _, day := range []ledger.ChainID{day, chain(24)} { // a chain asks for 1000 at most
		for range 550 {
			g.clock.Advance(time.Millisecond)
			g.ask(day)
		}
	}
	want[0] = g.ask(hour)
	var got []ledger.ApprovalID
	seen := make(map[ledger.ApprovalID]bool)
	for i, view := range must[[]*service.ApprovalView](t)(g.WaitingApprovals(t.Context(), g.who.member, 1200)) {
		if seen[view.ID] {
			t.Errorf("%s is listed twice", view.ID)
		}
		if seen[view.ID] = true; i < len(want) {
			got = append(got, view.ID)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the most urgent (-want +got):\n%s", diff)
	}
	if len(seen) != 1103 {
		t.Errorf("%d are listed, want all 1103", len(seen))
	}
}

// The approvals that wait are listed in the order of their expiry, however many were requested later.
// Those that have expired are left out before anything has recorded it, and an agent sees only its own.
func TestWaitingApprovalsAreListedByExpiry(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := func(hours int) ledger.ChainID {
			opened := request(t, ledger.ParseChainRequest, fmt.Sprintf(`{"name":"short","policy_config":{"approval_timeout_hours":%d}}`, hours))
			return must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, opened, "")).ID
		}
		expect := func(caller *service.Caller, limit int, want ...ledger.ApprovalID) {
			t.Helper()
			var got []ledger.ApprovalID
			for _, view := range must[[]*service.ApprovalView](t)(g.WaitingApprovals(t.Context(), caller, limit)) {
				got = append(got, view.ID)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("listed (-want +got):\n%s", diff)
			}
		}
		third, first := g.ask(chain(3)), g.ask(chain(1))
		day := chain(24)
		for range 210 { // more than are read at a time
			g.ask(day)
		}
		second := g.ask(chain(2))
		expect(g.who.member, 3, first, second, third)
		other := servicetest.Authenticate(t, g.Service, newKey(t, g.Service, "acme", ledger.RoleAgent))
		expect(other, 3)
		g.clock.Set(time.UnixMilli(int64(g.view(first).ExpiresAt)))
		expect(g.who.agent, 1, second)
	})
}
