package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// stopRace runs well-behaved clients over a network that delays both ways, while admins toggle the
// kill switch. No action may begin between the answer to an activation and the request to
// deactivate.
type stopRace struct {
	t        *testing.T
	replicas []*service.Service
	orgs     int
	rounds   int           // activations of each organization
	slowest  time.Duration // of an answer, both ways together

	begun  atomic.Int64 // actions
	leased atomic.Int64 // of those, under a lease for several
	late   atomic.Int64 // allows that arrived too late
	lost   atomic.Int64 // actions that began after a stop was answered
}

// tick is the unit of delays before a request, so that the requests of many clients arrive in one
// batch.
const tick = 50 * time.Millisecond

// raced is one organization of a race.
type raced struct {
	race     *stopRace
	who      *tenant
	approval ledger.ApprovalID // approved before
	done     chan struct{}     // closed after the last round

	mu      sync.Mutex
	stopped time.Time // guarded by mu; when activate was answered, zero from the call of deactivate on
}

func (r *stopRace) run() {
	r.t.Helper()
	var all sync.WaitGroup
	for n := range r.orgs {
		o := r.organization(fmt.Sprint("org-", n))
		random := rand.New(rand.NewPCG(uint64(n), 1))
		all.Go(func() { o.admin(random) })
		for c := range 2 {
			client := &racingClient{raced: o, service: r.replicas[(n+c)%len(r.replicas)], random: rand.New(rand.NewPCG(uint64(n), uint64(c+2)))}
			client.chain = must[*service.ChainView](r.t)(client.service.OpenChain(r.t.Context(), o.who.agent, chainNamed(r.t, fmt.Sprint("chain-", c)), "")).ID
			all.Go(client.run)
		}
	}
	all.Wait()
	r.t.Logf("%d actions began, %d of them under a lease for several; %d allows came too late", r.begun.Load(), r.leased.Load(), r.late.Load())
	if stops := int64(r.orgs * r.rounds); r.begun.Load() < stops || r.leased.Load() < stops/4 || r.late.Load() < stops/100 {
		r.t.Errorf("%d stops with so little going on show nothing", stops)
	}
}

func (r *stopRace) organization(slug string) *raced {
	r.t.Helper()
	s := r.replicas[0]
	o := &raced{race: r, who: newTenant(r.t, s, slug), done: make(chan struct{})}
	chain := must[*service.ChainView](r.t)(s.OpenChain(r.t.Context(), o.who.agent, chainNamed(r.t, "approved"), "")).ID
	o.approval = must[*service.Recorded](r.t)(s.RecordEvent(r.t.Context(), o.who.agent, chain, payment(r.t, gatedAmount, ""))).Event.Approval
	must[*service.ApprovalView](r.t)(s.DecideApproval(r.t.Context(), o.who.member, o.approval, &ledger.Verdict{Approve: true}))
	return o
}

// admin toggles the switch, on one replica after another.
func (o *raced) admin(random *rand.Rand) {
	defer close(o.done)
	for n := range o.race.rounds {
		s := o.race.replicas[n%len(o.race.replicas)]
		time.Sleep(upTo(random, 2*time.Second))
		if _, err := s.ActivateKillSwitch(context.Background(), o.who.admin, "drill"); err != nil {
			o.race.t.Error(err)
			return
		}
		o.set(time.Now())
		time.Sleep(upTo(random, 2*time.Second))
		o.set(time.Time{})
		if _, err := s.DeactivateKillSwitch(context.Background(), o.who.admin); err != nil {
			o.race.t.Error(err)
			return
		}
	}
}

func (o *raced) set(stopped time.Time) {
	o.mu.Lock()
	o.stopped = stopped
	o.mu.Unlock()
}

// begin begins an action if its permission is still valid. What counts is the time at which the
// client reads its clock.
func (o *raced) begin(sent time.Time, good time.Duration) bool {
	now := time.Now()
	if now.Sub(sent) >= good {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.race.begun.Add(1)
	if !o.stopped.IsZero() && now.After(o.stopped) {
		o.race.lost.Add(1)
	}
	return true
}

func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return tick * time.Duration(random.Int64N(int64(most/tick)+1))
}

// racingClient counts every permission from the time at which it sent the request, by its own
// clock.
type racingClient struct {
	*raced
	service *service.Service
	chain   ledger.ChainID
	random  *rand.Rand
	act     int64 // the newest act number it has seen
}

func (c *racingClient) run() {
	for n := 0; ; n++ {
		select {
		case <-c.done:
			return
		default:
		}
		var err error
		switch c.random.IntN(5) {
		case 0:
			err = c.poll()
		default:
			err = c.ask(n)
		}
		if err != nil {
			c.race.t.Error(err)
			return
		}
		time.Sleep(upTo(c.random, 2*time.Second))
	}
}

// network delays a request and its answer.
func (c *racingClient) network(call func() error) (sent time.Time, err error) {
	slowest := c.race.slowest
	if c.random.IntN(3) > 0 {
		slowest = 4 * tick
	}
	there := upTo(c.random, slowest)
	back := min(upTo(c.random, slowest), slowest-there)
	sent = time.Now()
	time.Sleep(there)
	err = call()
	time.Sleep(back)
	return sent, err
}

// ask requests a decision, and requests it again if the permission arrived too late.
func (c *racingClient) ask(n int) error {
	for range 3 {
		var recorded *service.Recorded
		sent, err := c.network(func() (err error) {
			recorded, err = c.service.RecordEvent(context.Background(), c.who.agent, c.chain, step(c.race.t, "deploy", fmt.Sprint("step-", n)))
			return err
		})
		if err != nil {
			return err
		}
		current := recorded.Terms.Act >= c.act
		c.act = max(c.act, recorded.Terms.Act)
		if recorded.Event.Status != ledger.EventAllowed {
			return nil
		}
		if c.begin(sent, ledger.LeaseTime) {
			if lease := recorded.Terms.Lease; lease != nil && current {
				return c.spend(lease, sent, n)
			}
			return nil
		}
		c.race.late.Add(1)
	}
	return nil
}

// spend decides a few actions under a lease, and reports them.
func (c *racingClient) spend(lease *ledger.Lease, sent time.Time, n int) error {
	var keys []string
	for i := range 3 {
		time.Sleep(time.Duration(c.random.Int64N(int64(500 * time.Millisecond))))
		if !c.begin(sent, time.Duration(lease.Milliseconds)*time.Millisecond) {
			break
		}
		c.race.leased.Add(1)
		keys = append(keys, fmt.Sprintf("local-%d-%d", n, i))
	}
	if len(keys) == 0 {
		return nil
	}
	time.Sleep(time.Until(time.Now().Truncate(tick).Add(tick)))
	actions := reported(c.race.t, keys...)
	for _, action := range actions {
		action.LeaseID = lease.ID
	}
	var report *service.Report
	_, err := c.network(func() (err error) {
		report, err = c.service.ReportEvents(context.Background(), c.who.agent, c.chain, actions)
		return err
	})
	if err != nil {
		return err
	}
	for _, result := range report.Results {
		if result.Err != nil || result.Event.Decision.Violated() {
			return fmt.Errorf("what a lease covered is %+v: %w", result.Event.Decision, result.Err)
		}
	}
	return nil
}

// poll reads an approval that was given before.
func (c *racingClient) poll() error {
	var view *service.ApprovalView
	sent, err := c.network(func() (err error) {
		view, err = c.service.Approval(context.Background(), c.who.agent, c.approval, 0)
		return err
	})
	if err != nil {
		return err
	}
	if view.Now() == ledger.ApprovalApproved {
		c.begin(sent, ledger.LeaseTime)
	}
	return nil
}

// stopActivations is how often the switch is activated in simulated time.
const stopActivations = 10_000

// Once a stop has been answered, no client begins an action, wherever it was decided.
//
//countersign:race
func TestNoActionBeginsAfterAStop(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone=%v", alone), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, service.Config{Store: testdb.SQLite(t).Open(t), Clock: time.Now, Alone: alone, Delay: service.Delay})
				race := &stopRace{t: t, replicas: []*service.Service{s}, orgs: 100, rounds: stopActivations / 2 / 100 / (1 + 9*racing), slowest: 5 * time.Second}
				race.run()
				if lost := race.lost.Load(); lost > 0 {
					t.Errorf("%d of %d actions began after a stop was answered", lost, race.begun.Load())
				}
			})
		})
	}
}

// The race is real: a stop that does not wait loses it.
//
//countersign:race
func TestAStopThatDoesNotWaitIsOutrun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, service.Config{Store: testdb.SQLite(t).Open(t), Clock: time.Now})
		race := &stopRace{t: t, replicas: []*service.Service{s}, orgs: 20, rounds: 10, slowest: 5 * time.Second}
		race.run()
		t.Logf("%d began after a stop", race.lost.Load())
		if race.lost.Load() == 0 {
			t.Error("no action began after a stop that did not wait: the race shows nothing")
		}
	})
}

// The same holds in real time, with two replicas on one database.
//
//countersign:race
func TestNoActionBeginsAfterAStopOnReplicas(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	ring, _ := servicetest.NewRing(t)
	replica := func() *service.Service {
		return serve(t, service.Config{Store: db.Open(t), Keys: ring, Clock: time.Now, Committers: 2, Delay: service.Delay})
	}
	race := &stopRace{t: t, replicas: []*service.Service{replica(), replica()}, orgs: 10, rounds: nightly.Count(20, 300) / 10, slowest: 1500 * time.Millisecond}
	race.run()
	if lost := race.lost.Load(); lost > 0 {
		t.Errorf("%d of %d actions began after a stop was answered", lost, race.begun.Load())
	}
}
