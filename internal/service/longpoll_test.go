package service_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// forever is a wait that no test waits for.
const forever = time.Hour

// overheard reports to a test each time an approval has been read, of which the organization is
// the last part: a caller that waits has subscribed by then.
type overheard struct {
	store.Store
	read chan struct{}
}

func overhear(s store.Store) *overheard { return &overheard{s, make(chan struct{}, 10_000)} }

func (o *overheard) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	org, err := o.Store.Organization(ctx, id)
	o.read <- struct{}{}
	return org, err
}

// forget drops the reads so far.
func (o *overheard) forget() {
	for len(o.read) > 0 {
		<-o.read
	}
}

// answer is the result of a long poll.
type answer struct {
	view *service.ApprovalView
	err  error
}

func poll(ctx context.Context, s *service.Service, caller *service.Caller, id ledger.ApprovalID, wait time.Duration) <-chan answer {
	answered := make(chan answer, 1)
	go func() {
		view, err := s.Approval(ctx, caller, id, wait)
		answered <- answer{view, err}
	}()
	return answered
}

func checkAnswer(t testing.TB, answered <-chan answer, want ledger.ApprovalStatus) {
	t.Helper()
	got := <-answered
	if got.err != nil {
		t.Errorf("the wait ended with %v", got.err)
		return
	}
	checkStatus(t, got.view, want)
}

// another opens the store as a second process would. One SQLite file is served by one process.
func (g *governed) another() store.Store {
	if g.db.Kind == "postgres" {
		return g.db.Open(g.t)
	}
	return g.store
}

// A wait for an approval ends as soon as the approval ends, even if another replica decided it.
//
//countersign:race
func TestADecisionElsewhereWakesAtOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		elsewhere := g.over(heard)
		for _, e := range endings {
			chain := g.open(e.name)
			id := g.ask(chain)
			answered := poll(t.Context(), elsewhere, g.who.agent, id, forever)
			<-heard.read
			e.end(g, chain, id)
			checkAnswer(t, answered, e.status)
		}
	})
}

// A wait continues through an escalation, and through the first of two votes.
//
//countersign:race
func TestAWaitOutlastsWhatIsNoEnd(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"two_person_approval":true}`)
		heard := overhear(g.another())
		elsewhere := g.over(heard)
		id := g.ask(g.open("long"))
		answered := poll(t.Context(), elsewhere, g.who.agent, id, forever)
		<-heard.read
		g.clock.Set(time.UnixMilli(int64(g.view(id).EscalatesAt)))
		g.passTime()
		<-heard.read // woken, read, and still waiting
		checkCode(t, "one yes", g.decide(g.who.member, id, true), "")
		<-heard.read
		checkCode(t, "the other", g.decide(g.who.admin, id, true), "")
		checkAnswer(t, answered, ledger.ApprovalApproved)
	})
}

// A wait ends with the approval still pending when its time is up, when the caller gives up and
// when the service shuts down.
//
//countersign:race
func TestWaitsThatEndWithoutADecision(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		id := g.ask(g.open("undecided"))
		for _, wait := range []time.Duration{0, -1, time.Millisecond} {
			checkAnswer(t, poll(t.Context(), g.Service, g.who.agent, id, wait), ledger.ApprovalPending)
		}
		heard := overhear(g.another())
		elsewhere := g.over(heard)
		// One that is answered shows that signals are heard by now: nothing wakes the
		// others while they are being given up.
		decided := g.ask(g.open("decided"))
		answered := poll(t.Context(), elsewhere, g.who.agent, decided, forever)
		<-heard.read
		g.approve(decided)
		checkAnswer(t, answered, ledger.ApprovalApproved)
		heard.forget()
		ctx, cancel := context.WithCancel(t.Context())
		given := poll(ctx, elsewhere, g.who.agent, id, forever)
		<-heard.read
		cancel()
		checkAnswer(t, given, ledger.ApprovalPending)
		heard.forget()

		released := poll(t.Context(), elsewhere, g.who.agent, id, forever)
		<-heard.read
		elsewhere.Release()
		checkAnswer(t, released, ledger.ApprovalPending)
		checkAnswer(t, poll(t.Context(), elsewhere, g.who.agent, id, forever), ledger.ApprovalPending)
		elsewhere.Release() // a second time is harmless

		_, err := g.Approval(t.Context(), g.who.agent, ledger.ApprovalID{}, forever)
		checkCode(t, "waiting for nothing", err, fault.CodeNotFound)
	})
}

// A wait that ends without a signal answers with the state at its end: the approval may have
// expired, or may have been decided, since the wait began.
//
//countersign:race
func TestWaitsEndWithTheCurrentState(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		elsewhere := g.over(deaf{heard, make(chan struct{})})
		end := func(id ledger.ApprovalID, change func()) <-chan answer {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			heard.forget()
			answered := poll(ctx, elsewhere, g.who.agent, id, forever)
			<-heard.read
			change()
			return answered
		}
		decided := g.ask(g.open("decided"))
		checkAnswer(t, end(decided, func() { g.approve(decided) }), ledger.ApprovalApproved)
		expired := g.ask(g.open("expired"))
		expires := g.view(expired).ExpiresAt
		checkAnswer(t, end(expired, func() { g.clock.Set(time.UnixMilli(int64(expires))) }), ledger.ApprovalTimedOut)
	})
}

// deaf receives no signal, and learns only that it may have missed some.
type deaf struct {
	store.Store
	missed chan struct{}
}

func (d deaf) Watch(ctx context.Context, _ func(uuid.UUID), missed func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.missed:
			missed()
		}
	}
}

// Waiters whose signals were lost are answered once the store reports that it missed some.
//
//countersign:race
func TestASignalThatWasMissed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		lost := deaf{heard, make(chan struct{})}
		elsewhere := g.over(lost)
		first, second := g.ask(g.open("first")), g.ask(g.open("second"))
		one := poll(t.Context(), elsewhere, g.who.agent, first, forever)
		two := poll(t.Context(), elsewhere, g.who.agent, second, forever)
		<-heard.read
		<-heard.read
		g.approve(first)
		checkCode(t, "deny", g.decide(g.who.member, second, false), "")
		lost.missed <- struct{}{}
		checkAnswer(t, one, ledger.ApprovalApproved)
		checkAnswer(t, two, ledger.ApprovalDenied)
	})
}

// Two thousand callers wait on a handful of connections, on two replicas (fewer under the race
// detector). A waiting caller holds no connection, or nothing else could be done meanwhile.
//
//countersign:race twice
func TestTwoThousandWaiters(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const approvals, each = 20, 100 - 80*racing
		g := govern(t, db)
		heard := []*overheard{overhear(g.another()), overhear(g.another())}
		replicas := []*service.Service{g.over(heard[0]), g.over(heard[1])}
		var ids []ledger.ApprovalID
		for range approvals {
			ids = append(ids, g.ask(g.open("crowd")))
		}
		var crowd sync.WaitGroup
		answers := make(chan answer, approvals*each)
		for i := range approvals * each {
			crowd.Go(func() {
				view, err := replicas[i%2].Approval(t.Context(), g.who.agent, ids[i%approvals], forever)
				answers <- answer{view, err}
			})
		}
		for i := range approvals * each {
			<-heard[i%2].read
		}
		began := time.Now()
		for i, id := range ids {
			checkCode(t, "decide", g.decide(g.who.member, id, i%2 == 0), "")
		}
		crowd.Wait()
		close(answers)
		counts := map[ledger.ApprovalStatus]int{}
		for got := range answers {
			if got.err != nil {
				t.Fatal(got.err)
			}
			counts[got.view.Status]++
		}
		t.Logf("%d waiters answered within %v of the first of %d decisions", approvals*each, time.Since(began), approvals)
		if counts[ledger.ApprovalApproved] != approvals*each/2 || counts[ledger.ApprovalDenied] != approvals*each/2 {
			t.Errorf("answered %v", counts)
		}
	})
}
