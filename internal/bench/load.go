package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// session is one connection's part of a load.
type session interface {
	// step makes one request and says whether it counts. errExhausted ends the
	// session.
	step(*connection) (counts bool, err error)
}

var errExhausted = errors.New("nothing left to ask for")

// load is a closed loop: each connection sends its next request when the last
// one has been answered.
type load struct {
	server      *server
	connections int
	warmUp      time.Duration // runs before it counts
	duration    time.Duration
	session     func(connection int) session
}

// drive puts the load on the server. The first request that fails ends it.
func (l *load) drive(ctx context.Context) (*Measurement, error) {
	connections, err := l.connect(ctx)
	closeAll := func() {
		for _, c := range connections {
			c.close()
		}
	}
	defer closeAll()
	if err != nil {
		return nil, err
	}
	running, ending := errgroup.WithContext(ctx) // which only Wait releases
	defer context.AfterFunc(ending, closeAll)()
	from := time.Now().Add(l.warmUp)
	workers := make([]*worker, len(connections))
	for i, c := range connections {
		w := &worker{connection: c, session: l.session(i), from: from, end: from.Add(l.duration)}
		workers[i] = w
		running.Go(func() error {
			if err := w.run(); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			return nil
		})
	}
	pause(ending, l.warmUp)
	before, began := l.usage(), time.Now()
	err = running.Wait()
	used, took := l.usage().since(before), time.Since(began)
	if err := cmp.Or(ctx.Err(), err); err != nil {
		return nil, err
	}
	m, err := gather(workers, from)
	if err != nil {
		return nil, err
	}
	m.ServerCPU = used.server.Seconds() / m.Elapsed.Seconds()
	m.BackendCPU = used.backends.Seconds() / m.Elapsed.Seconds()
	m.LoadCPU = used.load.Seconds() / m.Elapsed.Seconds()
	m.CoreShare = used.coreShare(took)
	return m, nil
}

func (l *load) connect(ctx context.Context) (connections []*connection, err error) {
	for range l.connections {
		c, err := dial(ctx, l.server.address)
		if err != nil {
			return connections, err
		}
		connections = append(connections, c)
	}
	return connections, nil
}

func (l *load) usage() usage {
	u := usage{
		server: processorTime(l.server.pid()), load: processorTime(os.Getpid()), cores: idleTimes(l.server.core),
	}
	if l.server.postmaster != 0 {
		u.backends = familyTime(l.server.postmaster)
	}
	return u
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// worker runs one session and keeps what it saw.
type worker struct {
	connection *connection
	session    session
	from, end  time.Time

	latencies []time.Duration
	others    int
	last      time.Time // when the last answer came
}

// run goes on past the end until one request has counted: on a slow machine a
// round then takes longer, and does not end with nothing.
func (w *worker) run() error {
	if err := w.connection.expire(w.end); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	w.latencies = make([]time.Duration, 0, 4096)
	for {
		began := time.Now()
		if began.After(w.end) && len(w.latencies) > 0 {
			return nil
		}
		counts, err := w.session.step(w.connection)
		if errors.Is(err, errExhausted) {
			return nil
		}
		if err != nil {
			return err
		}
		w.last = time.Now()
		switch {
		case began.Before(w.from):
		case counts:
			w.latencies = append(w.latencies, w.last.Sub(began))
		default:
			w.others++
		}
	}
}

func gather(workers []*worker, from time.Time) (*Measurement, error) {
	m := &Measurement{}
	var all []time.Duration
	last := from
	for _, w := range workers {
		all = append(all, w.latencies...)
		m.Others += w.others
		if w.last.After(last) {
			last = w.last
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no request was answered within the round: make it longer")
	}
	slices.Sort(all)
	m.Requests, m.Elapsed = len(all), last.Sub(from)
	m.P50, m.P99 = percentile(all, 50), percentile(all, 99)
	return m, nil
}
