package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureBuilds compares what an event and a completion cost the server in several builds of
// this program. All builds get the same requests, in slices so short that an hour, or a second,
// in which the machine is slow weighs on all of them.
func measureBuilds(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{Title: fmt.Sprintf("builds of this program, %d connections, SQLite", manyConnections)}
	if len(b.Builds) == 0 {
		s.Notes = append(s.Notes, "not measured: no builds were given (--build)")
		return s, nil
	}
	s.Notes = append(s.Notes,
		openingNote,
		fmt.Sprintf("in each round every build gets the same requests in turn, in slices of %d events and %d completions", slicedEvents, slicedCompletions),
		"a ratio is the median over the rounds, with its 95 % confidence interval")
	b.cores.pinSelf()
	defer b.cores.unpinSelf()
	costs := make(map[string][][]float64, len(slicedLoads)) // by load, of each round, of each build
	for number := range b.Rounds {
		round, err := b.roundOfBuilds(ctx, number)
		if err != nil {
			return nil, err
		}
		for _, load := range slicedLoads {
			costs[load] = append(costs[load], round[load])
			b.Progress("  round %d: %s, ns: %.0f", number+1, load, round[load])
		}
	}
	for _, load := range slicedLoads {
		for i, program := range b.Builds {
			s.Figures = append(s.Figures, figuresOfBuild(load, program, costs[load], i)...)
		}
	}
	return s, nil
}

const (
	slicedEvents      = 1024
	slicedCompletions = 640
	slicedDuration    = 100 * time.Millisecond // roughly how long either takes
)

// slicedLoads are what is measured of each build, in the order in which it is.
var slicedLoads = []string{"event", "completion"}

// figuresOfBuild summarizes a build's costs in all rounds, and their ratios to the first build's.
func figuresOfBuild(load, program string, costs [][]float64, build int) []Figure {
	var own, ratios []float64
	for _, round := range costs {
		own = append(own, round[build])
		ratios = append(ratios, quotient(round[build], round[0]))
	}
	name := load + ", " + filepath.Base(program)
	figures := []Figure{{What: name, Value: median(own) / float64(time.Microsecond), Unit: "µs of CPU"}}
	if build > 0 {
		low, high := medianInterval(ratios)
		figures = append(figures, Figure{What: name, Value: median(ratios), Unit: fmt.Sprintf("times the first build's (%.3f to %.3f)", low, high)})
	}
	return figures
}

// roundOfBuilds measures every build once, on new servers with new stores: how a process happens
// to lie in memory is then not part of a build's cost. It returns nanoseconds by load and build.
func (b *bench) roundOfBuilds(ctx context.Context, number int) (_ map[string][]float64, err error) {
	builds := make([]*slicedBuild, len(b.Builds))
	defer func() {
		for _, build := range builds {
			if build != nil {
				err = errors.Join(err, build.end())
			}
		}
	}()
	for i := range b.Builds {
		i = (i + number) % len(b.Builds)
		if builds[i], err = b.startBuild(ctx, b.Builds[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Builds[i], err)
		}
	}
	round := make(map[string][]float64)
	count := max(1, int(b.Duration/slicedDuration))
	events := slicedEvents
	if b.Duration < slicedDuration {
		events = max(1, int(slicedEvents*b.Duration/slicedDuration))
	}
	if round[slicedLoads[0]], err = takeSlices(ctx, builds, count, events); err != nil {
		return nil, err
	}
	for _, build := range builds {
		if err := build.prepareCompletions(ctx, b); err != nil {
			return nil, err
		}
	}
	size := min(slicedCompletions, b.Chains/2)
	round[slicedLoads[1]], err = takeSlices(ctx, builds, b.Chains/size-1, size)
	return round, err
}

// afterwork is how long a server may go on working for requests that it has answered, on
// checkpoints and on transparency logs.
const afterwork = 500 * time.Millisecond

// takeSlices drives all builds in turn, and returns what a request has cost each of them, with what
// the server does for it later. The first slice warms up.
func takeSlices(ctx context.Context, builds []*slicedBuild, count, requests int) ([]float64, error) {
	costs := make([]float64, len(builds))
	for slice := range count + 1 {
		for i := range builds {
			i = (i + slice) % len(builds)
			if err := builds[i].drive(ctx, requests); err != nil {
				return nil, fmt.Errorf("%s: %w", builds[i].server.name, err)
			}
		}
		if slice > 0 && slice < count {
			continue
		}
		pause(ctx, afterwork)
		for i, build := range builds {
			costs[i] = float64(processorTime(build.server.pid())) - costs[i]
		}
	}
	for i := range costs {
		costs[i] /= float64(count * requests)
	}
	return costs, nil
}

// slicedBuild is a build under load, with connections that stay open between slices.
type slicedBuild struct {
	*target
	connections []*connection
	sessions    []session
	end         func() error
}

// startBuild serves a new store. Another build's store may look different, so the program itself
// makes it and its key.
func (b *bench) startBuild(ctx context.Context, program string) (_ *slicedBuild, err error) {
	p, err := b.newPlace(ctx, false)
	if err != nil {
		return nil, err
	}
	t := &target{name: program, place: p}
	if t.server, err = b.launchProgram(ctx, program, program, nil, "serve", "--data", p.dir, "--listen", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	build := &slicedBuild{target: t}
	build.end = func() error {
		for _, c := range build.connections {
			c.close()
		}
		return errors.Join(t.server.stop(), p.remove())
	}
	key, err := exec.CommandContext(ctx, program, "keys", "create", "--data", p.dir, "--org", "default", "--role", "agent", "--name", "bench").Output() //nolint:gosec // the user named it
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create a key: %w", err), build.end())
	}
	t.apiKey = strings.TrimSpace(string(key))
	l := &load{server: t.server, connections: manyConnections}
	if build.connections, err = l.connect(ctx); err != nil {
		return nil, errors.Join(err, build.end())
	}
	for i := range build.connections {
		build.sessions = append(build.sessions, newEventSession(t.apiKey, i))
	}
	return build, nil
}

// prepareCompletions opens the chains that the slices complete from now on.
func (s *slicedBuild) prepareCompletions(ctx context.Context, b *bench) error {
	ids, err := b.openChains(ctx, s.target)
	if err != nil {
		return err
	}
	left := &queue{ids: ids}
	for i := range s.sessions {
		s.sessions[i] = newCompletionSession(s.apiKey, left)
	}
	return nil
}

// drive makes so many requests that count.
func (s *slicedBuild) drive(ctx context.Context, requests int) error {
	var left atomic.Int64
	left.Store(int64(requests))
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer context.AfterFunc(ctx, func() { // the others must not wait for a server that fails
		for _, c := range s.connections {
			_ = c.expire(time.Now().Add(-patience)) // a connection that is closed waits for nothing
		}
	})()
	var running errgroup.Group
	for i, c := range s.connections {
		if err := c.expire(time.Now()); err != nil {
			return err
		}
		running.Go(func() error {
			for left.Add(-1) >= 0 {
				for counts := false; !counts; {
					var err error
					if counts, err = s.sessions[i].step(c); err != nil {
						fail(err)
						return err
					}
				}
			}
			return nil
		})
	}
	if running.Wait() != nil {
		return context.Cause(ctx)
	}
	return nil
}
