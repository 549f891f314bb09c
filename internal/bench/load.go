package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
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

// drive puts the load on the server. Any error of any request fails it.
func (l *load) drive(ctx context.Context) (*Measurement, error) {
	connections, err := l.connect(ctx)
	defer func() {
		for _, c := range connections {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range connections {
			c.close()
		}
	})
	defer stop()
	from := time.Now().Add(l.warmUp)
	workers := make([]*worker, len(connections))
	var running sync.WaitGroup
	for i, c := range connections {
		w := &worker{connection: c, session: l.session(i), from: from, end: from.Add(l.duration)}
		if err := c.expire(w.end); err != nil {
			return nil, fmt.Errorf("set deadline: %w", err)
		}
		workers[i] = w
		running.Go(w.run)
	}
	pause(ctx, l.warmUp)
	before, began := l.usage(), time.Now()
	running.Wait()
	used, took := l.usage().since(before), time.Since(began)
	if err := ctx.Err(); err != nil {
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
	err       error
}

// run goes on past the end until one request has counted: on a slow machine a
// round then takes longer, and does not end with nothing.
func (w *worker) run() {
	w.latencies = make([]time.Duration, 0, 4096)
	for {
		began := time.Now()
		if began.After(w.end) && len(w.latencies) > 0 {
			return
		}
		counts, err := w.session.step(w.connection)
		if errors.Is(err, errExhausted) {
			return
		}
		if err != nil {
			w.err = err
			return
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
	for i, w := range workers {
		if w.err != nil {
			return nil, fmt.Errorf("connection %d: %w", i, w.err)
		}
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
