package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/nightly"
	"countersign/internal/testdb"
)

// crashScenario is a way of bringing servers down under load, again and again.
// After each period, and so at the end, the store is held against what the
// servers acknowledged.
type crashScenario struct {
	args    []string // where the store is, for the server and for the audit alike
	servers int
	periods int
	rounds  int   // in each period
	span    int64 // at most so many requests between two rounds
	down    func(*crashServer) error
	// graceful: a request that was carried out must also have been answered.
	graceful bool
}

const crashClients = 8

// A server that is killed under load loses nothing that it acknowledged.
//
//countersign:norace its servers are processes, and a hundred times slower so
func TestKilledServersLoseNothing(t *testing.T) {
	t.Parallel()
	runCrashes(t, crashScenario{
		args: []string{"--data", t.TempDir()}, servers: 1,
		periods: nightly.Count(4, 40), rounds: 25, span: 30, down: (*crashServer).kill,
	})
}

// Replicas that are killed under load lose nothing that they acknowledged.
//
//countersign:norace its servers are processes, and a hundred times slower so
func TestKilledReplicasLoseNothing(t *testing.T) {
	t.Parallel()
	runCrashes(t, crashScenario{
		args: []string{"--database", testdb.EmptyPostgres(t).URL, "--keys", filepath.Join(t.TempDir(), "keys.json")}, servers: 2,
		periods: nightly.Count(3, 50), rounds: 10, span: 60, down: (*crashServer).kill,
	})
}

// A server that is stopped under load answers every request that it carried out.
//
//countersign:norace its servers are processes, and a hundred times slower so
func TestStoppedServersAnswerWhatTheyAccepted(t *testing.T) {
	t.Parallel()
	runCrashes(t, crashScenario{
		args: []string{"--data", t.TempDir()}, servers: 1,
		periods: 2, rounds: 5, span: 80, down: (*crashServer).stop, graceful: true,
	})
}

// crashRun is one run of a scenario.
type crashRun struct {
	crashScenario
	fleet    *crashFleet
	key      string
	seed     uint64
	random   *rand.Rand
	journal  crashJournal
	slowest  time.Duration // from signal to serving again
	ran      int           // periods
	finished crashFigures
}

const crashTimeout = 8 * time.Minute

func runCrashes(t *testing.T, scenario crashScenario) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), crashTimeout)
	defer cancel()
	r := &crashRun{crashScenario: scenario, fleet: newCrashFleet(scenario.args), seed: rand.Uint64()}
	r.random = rand.New(rand.NewPCG(r.seed, 0))
	t.Logf("seed %d", r.seed)
	t.Cleanup(r.fleet.dispose)
	began := time.Now()
	if err := r.run(ctx); err != nil {
		t.Fatal(err)
	}
	f := r.finished
	t.Logf("%d rounds in %s (slowest %s): %d requests answered, %d retries, %d of them found it done already, %d answered 503; %d chains, %d events, %d outcomes, %d receipts",
		r.ran*r.rounds, time.Since(began).Round(time.Millisecond), r.slowest.Round(time.Millisecond), r.fleet.answered.Load(),
		r.fleet.retried.Load(), f.alreadyDone, r.fleet.refused.Load(), f.chains, f.events, f.outcomes, f.receipts)
	if f.receipts == 0 || r.fleet.retried.Load() == 0 {
		t.Error("the load completed no chain, or no request had to be sent again: this run has shown nothing")
	}
	if !r.graceful && f.alreadyDone == 0 {
		t.Error("no retry found its request carried out: this run has not shown that such retries settle")
	}
}

func (r *crashRun) run(ctx context.Context) error {
	if err := r.firstStart(ctx); err != nil {
		return err
	}
	// Whether a server dies between its commit and its answer is chance: where none of the
	// periods had that, a few more are tried.
	for period := range extraPeriods * r.periods {
		whole := period >= r.periods-1 // from then on everything is looked at once more
		if err := r.period(ctx, period, whole); err != nil {
			return err
		}
		if whole && (r.graceful || r.finished.alreadyDone > 0) {
			return nil
		}
	}
	return nil
}

// extraPeriods is how many times as many periods may be tried.
const extraPeriods = 4

// period brings servers down under load and looks at what was acknowledged in it, or at
// everything.
func (r *crashRun) period(ctx context.Context, number int, whole bool) error {
	r.ran++
	fresh := len(r.journal.all())
	if whole {
		fresh = 0
	}
	if err := r.fleet.start(ctx, r.servers); err != nil {
		return err
	}
	if err := r.underLoad(ctx, number); err != nil {
		return fmt.Errorf("period %d: %w", number, err)
	}
	if err := r.check(ctx, r.journal.all()[fresh:]); err != nil {
		return fmt.Errorf("after period %d: %w", number, err)
	}
	return nil
}

// firstStart makes the store and learns the key that is shown once.
func (r *crashRun) firstStart(ctx context.Context) error {
	server, err := startCrashServer(ctx, r.args...)
	if err != nil {
		return err
	}
	if err := server.stop(); err != nil {
		return err
	}
	r.key, err = server.firstKey()
	return err
}

// underLoad brings servers down while clients work, then lets the clients settle
// what they have under way.
func (r *crashRun) underLoad(ctx context.Context, period int) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var stop atomic.Bool
	shared, err := r.worker(period, crashClients, nil, &stop).openChain(ctx, fmt.Sprintf("shared-%d", period))
	if err != nil {
		return err
	}
	var working sync.WaitGroup
	for i := range crashClients {
		worker := r.worker(period, i, shared, &stop)
		working.Go(func() {
			if err := worker.run(ctx); err != nil {
				fail(err)
			}
		})
	}
	err = r.bringDown(ctx)
	stop.Store(true)
	if err != nil {
		fail(err)
	}
	working.Wait()
	return context.Cause(ctx)
}

func (r *crashRun) worker(period, number int, shared *journaledChain, stop *atomic.Bool) *crashWorker {
	random := rand.New(rand.NewPCG(r.seed, uint64(1+period*(crashClients+1)+number)))
	return &crashWorker{
		crashClient: newCrashClient(r.fleet, r.key, random),
		name:        fmt.Sprintf("worker-%d-%d", period, number),
		journal:     &r.journal, shared: shared, stop: stop,
	}
}

func (r *crashRun) bringDown(ctx context.Context) error {
	for range r.rounds {
		event := crashEvent(r.random.IntN(2))
		if err := r.fleet.await(ctx, event, 1+r.random.Int64N(r.span)); err != nil {
			return err
		}
		servers := r.fleet.all()
		began := time.Now()
		if err := r.fleet.restart(ctx, servers[r.random.IntN(len(servers))], r.down); err != nil {
			return err
		}
		r.slowest = max(r.slowest, time.Since(began))
	}
	return nil
}

// check looks at the store at rest: with the audit, and through the API of a
// server of its own.
func (r *crashRun) check(ctx context.Context, withEvents []*journaledChain) error {
	if err := r.fleet.stop(); err != nil {
		return err
	}
	var output bytes.Buffer
	if code := run(ctx, append([]string{"audit"}, r.args...), nil, &output, &output); code != 0 {
		return fmt.Errorf("the audit ended with %d:\n%s", code, output.String())
	}
	if err := r.fleet.start(ctx, 1); err != nil {
		return err
	}
	reader := newCrashClient(r.fleet, r.key, r.random)
	defer reader.close()
	figures, err := crashCheckJournal(ctx, reader, &r.journal, withEvents)
	if err != nil {
		return err
	}
	if r.graceful && figures.alreadyDone > 0 {
		return fmt.Errorf("%d requests were carried out and never answered by a server that was only asked to stop", figures.alreadyDone)
	}
	r.finished = *figures
	return nil
}
