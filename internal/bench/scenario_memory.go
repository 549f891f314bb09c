package bench

import (
	"context"
	"fmt"
	"time"
)

const megabyte = 1e6

// measureMemory starts the service on a filled store and puts the load of
// events on it.
func measureMemory(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{Title: fmt.Sprintf("start and memory with %d events stored, then %d connections recording", b.Preload, manyConnections)}
	if b.Preload < 1_000_000 {
		s.Notes = append(s.Notes, "the bars are meant for 1,000,000 events: --preload 1000000")
	}
	events := func(ctx context.Context, r *records) (*filled, error) {
		return r.fill(ctx, (b.Preload+eventsPerChain-1)/eventsPerChain, eventsPerChain, false)
	}
	err := b.onEachService(ctx, events, func(t *target) error {
		idle, _ := memoryOf(t.server.pid())
		b.cores.pinSelf()
		defer b.cores.unpinSelf()
		l := b.eventLoad(t, manyConnections)
		l.duration = time.Duration(b.Rounds) * b.Duration
		m, err := l.drive(ctx)
		if err != nil {
			return err
		}
		_, peak := memoryOf(t.server.pid())
		s.Rows = append(s.Rows, summarize(t.name, []*Measurement{m}))
		s.addMemory(t.name, t.server.started, idle, peak)
		return nil
	})
	return s, err
}

// addMemory judges a server's start, and its memory where the system tells it.
func (s *Scenario) addMemory(name string, started time.Duration, idle, peak int64) {
	s.Bars = append(s.Bars, atMost("start on "+name, 1000, started.Seconds()*1e3, "ms"))
	if peak > 0 {
		s.Figures = append(s.Figures, Figure{"memory after the start on " + name, float64(idle) / megabyte, "MB"})
		s.Bars = append(s.Bars, atMost("highest memory under load on "+name, 150, float64(peak)/megabyte, "MB"))
	}
}
