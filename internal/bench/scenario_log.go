package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureLog times the way of a receipt into a signed checkpoint while chains are completed as fast
// as the server can.
func measureLog(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("checkpoints while %d connections complete chains of one organization", manyConnections),
		Notes: []string{fmt.Sprintf("from a completion's answer to a public checkpoint that includes its receipt, asked for every %s; the rate is that of the completions", lookEvery)},
	}
	named := func(_ context.Context, r *records) (*filled, error) { return &filled{org: r.org.Slug}, nil }
	err := b.onEachService(ctx, named, func(t *target) error {
		m, longest, err := b.timeCheckpoints(ctx, t)
		if err != nil {
			return err
		}
		s.Rows = append(s.Rows, summarize(t.name, []*Measurement{m}))
		s.Bars = append(s.Bars, atMost("the longest way into a checkpoint on "+t.name, 1, longest.Seconds(), "s"))
		return nil
	})
	return s, err
}

func (b *bench) timeCheckpoints(ctx context.Context, t *target) (m *Measurement, longest time.Duration, err error) {
	b.cores.pinSelf()
	defer b.cores.unpinSelf()
	ids, err := b.openChains(ctx, t)
	if err != nil {
		return nil, 0, err
	}
	w, err := b.watchLog(ctx, t)
	if err != nil {
		return nil, 0, err
	}
	defer w.connection.close()
	sealing := &queue{ids: ids}
	l := &load{server: t.server, connections: manyConnections, duration: longestRound}
	l.session = func(int) session {
		return &countedSession{newCompletionSession(t.apiKey, sealing), &w.answered}
	}
	var running errgroup.Group
	running.Go(func() error { return w.run(ctx) })
	running.Go(func() (err error) {
		defer w.complete.Store(true)
		m, err = l.drive(ctx)
		return err
	})
	if err := running.Wait(); err != nil {
		return nil, 0, err
	}
	times := w.times()
	m.P50, m.P99 = percentile(times, 50), percentile(times, 99)
	return m, times[len(times)-1], nil
}

// countedSession counts answers.
type countedSession struct {
	session
	answered *atomic.Int64
}

func (s *countedSession) step(c *connection) (bool, error) {
	counts, err := s.session.step(c)
	if err == nil {
		s.answered.Add(1)
	}
	return counts, err
}

// longestRound bounds the completions; those that are left after it do not count.
const longestRound = 5 * time.Minute

// lookEvery is how often a checkpoint is asked for: rarely enough to be no load.
const lookEvery = 10 * time.Millisecond

// logWatcher follows the size of a log.
type logWatcher struct {
	connection *connection
	request    []byte
	answered   atomic.Int64 // completions so far
	complete   atomic.Bool  // there will be no more
	looks      []look
}

// look is one answer: how many completions had been answered before it was asked for, and how many
// receipts its checkpoint has.
type look struct {
	asked, seen    time.Time
	answered, size int64
}

// watchLog opens the log of a target's only organization. A server opens it soon after it has
// started.
func (b *bench) watchLog(ctx context.Context, t *target) (*logWatcher, error) {
	key, err := b.operate(ctx, t, "log", "vkey", "--org", t.filled.org)
	for try := 0; err != nil; try++ {
		if try == 50 || ctx.Err() != nil {
			return nil, err
		}
		pause(ctx, 100*time.Millisecond)
		key, err = b.operate(ctx, t, "log", "vkey", "--org", t.filled.org)
	}
	origin, _, _ := strings.Cut(key, "+")
	c, err := dial(ctx, t.server.address)
	if err != nil {
		return nil, err
	}
	return &logWatcher{connection: c, request: request("GET", "/public/log/"+path.Base(origin)+"/checkpoint", "", "")}, nil
}

// run looks until a checkpoint has the receipts of all completions.
func (w *logWatcher) run(ctx context.Context) error {
	end := time.Now().Add(longestRound)
	if err := w.connection.expire(end); err != nil {
		return err
	}
	last := look{asked: time.Now()}
	for complete := false; !complete || last.size < last.answered; pause(ctx, lookEvery) {
		w.looks = append(w.looks, last)
		if err := ctx.Err(); err != nil {
			return err
		}
		complete = w.complete.Load() // before the answers are counted
		last = look{asked: time.Now(), answered: w.answered.Load()}
		body, err := w.connection.exchange(w.request)
		if err != nil {
			return err
		}
		last.seen = time.Now()
		if last.size, err = checkpointSize(body); err != nil {
			return err
		}
	}
	w.looks = append(w.looks, last)
	return nil
}

func checkpointSize(note []byte) (int64, error) {
	lines := bytes.SplitN(note, []byte("\n"), 3)
	if len(lines) < 3 {
		return 0, errors.New("the checkpoint has no size")
	}
	return strconv.ParseInt(string(lines[1]), 10, 64)
}

// times returns how long the receipt of each completion took into a checkpoint, sorted. Each is too
// long by up to the time between two looks: the completion is taken to be answered at the last look
// that does not count it.
func (w *logWatcher) times() []time.Duration {
	var times []time.Duration
	signed := 0
	for i := 1; i < len(w.looks); i++ {
		before, now := w.looks[i-1], w.looks[i]
		for w.looks[signed].size < now.answered {
			signed++
		}
		for range now.answered - before.answered {
			times = append(times, max(w.looks[signed].seen.Sub(before.asked), 0))
		}
	}
	slices.Sort(times)
	return times
}
