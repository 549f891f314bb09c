package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// crashFleet is the servers of one store and the moments at which they are
// brought down.
type crashFleet struct {
	args []string

	mu      sync.Mutex
	servers []*crashServer
	changed chan struct{} // closed and replaced whenever a server is
	turn    atomic.Uint64

	wire     atomic.Pointer[tripwire]
	answered atomic.Int64
	retried  atomic.Int64
	refused  atomic.Int64 // answered 503
}

// tripwire fires when as many requests were sent, or answered, as it was set to:
// progress says when to kill, never the clock.
type tripwire struct {
	event crashEvent
	left  atomic.Int64
	fired chan struct{}
}

// crashEvent is what a tripwire counts. Counting answers hits a server that has
// just answered a batch in part; counting requests hits it anywhere.
type crashEvent int

const (
	requestSent crashEvent = iota
	requestAnswered
)

func newCrashFleet(args []string) *crashFleet {
	return &crashFleet{args: args, changed: make(chan struct{})}
}

// start adds servers until there are as many as asked for.
func (f *crashFleet) start(ctx context.Context, size int) error {
	for {
		f.mu.Lock()
		enough := len(f.servers) >= size
		f.mu.Unlock()
		if enough {
			return nil
		}
		server, err := startCrashServer(ctx, f.args...)
		if err != nil {
			return err
		}
		f.replace(nil, server)
	}
}

// replace takes one server away and puts another in; either may be nil.
func (f *crashFleet) replace(old, fresh *crashServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = slices.DeleteFunc(f.servers, func(s *crashServer) bool { return s == old })
	if fresh != nil {
		f.servers = append(f.servers, fresh)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// restart brings a server down in the given manner and another one up.
func (f *crashFleet) restart(ctx context.Context, server *crashServer, down func(*crashServer) error) error {
	if err := down(server); err != nil {
		return err
	}
	f.replace(server, nil)
	fresh, err := startCrashServer(ctx, f.args...)
	if err != nil {
		return err
	}
	f.replace(nil, fresh)
	return nil
}

// stop ends all servers gracefully.
func (f *crashFleet) stop() error {
	var errs []error
	for _, server := range f.all() {
		errs = append(errs, server.stop())
		f.replace(server, nil)
	}
	return errors.Join(errs...)
}

func (f *crashFleet) all() []*crashServer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.servers)
}

func (f *crashFleet) dispose() {
	for _, server := range f.all() {
		server.dispose()
	}
}

// pick gives each caller in turn another server, and waits while there is none
// but the one to avoid.
func (f *crashFleet) pick(ctx context.Context, avoid *crashServer) (*crashServer, error) {
	for {
		f.mu.Lock()
		usable := slices.DeleteFunc(slices.Clone(f.servers), func(s *crashServer) bool { return s == avoid })
		changed := f.changed
		f.mu.Unlock()
		if len(usable) > 0 {
			return usable[f.turn.Add(1)%uint64(len(usable))], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// await returns when count events have happened from now on.
func (f *crashFleet) await(ctx context.Context, event crashEvent, count int64) error {
	wire := &tripwire{event: event, fired: make(chan struct{})}
	wire.left.Store(count)
	f.wire.Store(wire)
	defer f.wire.Store(nil)
	select {
	case <-wire.fired:
		return nil
	case <-time.After(crashProgressTimeout):
		return errors.New("the clients make no progress")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const crashProgressTimeout = time.Minute

func (f *crashFleet) happened(event crashEvent) {
	if event == requestAnswered {
		f.answered.Add(1)
	}
	if wire := f.wire.Load(); wire != nil && wire.event == event && wire.left.Add(-1) == 0 {
		close(wire.fired)
	}
}
