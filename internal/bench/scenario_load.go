package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	manyConnections = 64
	fewConnections  = 8
)

var openingNote = fmt.Sprintf("each connection works on a chain of its own and opens the next after %d events; opening is load, but no event", eventsPerChain)

// eventLoad is the load of one round of recording events.
func (b *bench) eventLoad(t *target, connections int) *load {
	return &load{
		server: t.server, connections: connections, warmUp: b.warmUp(), duration: b.Duration,
		session: func(i int) session { return newEventSession(t.apiKey, i) },
	}
}

func measureEvents(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("durable events, %d connections", manyConnections),
		Notes: []string{openingNote, "every event has an idempotency key"},
	}
	err := b.compare(ctx, s, nothing, func(ctx context.Context, t *target) (*Measurement, error) {
		return b.eventLoad(t, manyConnections).drive(ctx)
	})
	if err != nil {
		return nil, err
	}
	s.cpuBars("an event", 1.7)
	s.p99Bars()
	return s, nil
}

func measureLatency(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("durable events, %d connections", fewConnections),
		Notes: []string{openingNote, "fdatasync is measured in the same rounds on the same file system, after appends of 64 KiB"},
	}
	err := b.compare(ctx, s, nothing, func(ctx context.Context, t *target) (*Measurement, error) {
		if t.name == syncName {
			return b.timeSyncs(ctx)
		}
		return b.eventLoad(t, fewConnections).drive(ctx)
	}, &target{name: syncName})
	if err != nil {
		return nil, err
	}
	s.Bars = append(s.Bars, atMost("p50 on SQLite, times an fdatasync's", 10, against(s.row(sqliteName).Rounds, s.row(syncName).Rounds, p50Of), ""))
	return s, nil
}

// timeSyncs appends and syncs for a part of a round. Only the sync is timed.
func (b *bench) timeSyncs(ctx context.Context) (_ *Measurement, err error) {
	file, err := os.Create(filepath.Join(b.dir, "sync"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(file.Name()) }() // the folder goes in the end anyway
	defer func() { _ = file.Close() }()           // what it holds does not matter
	const enough = 10
	block := make([]byte, 64<<10)
	var times []time.Duration
	end := time.Now().Add(b.Duration / 3)
	for len(times) < enough || time.Now().Before(end) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := file.Write(block); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := syncData(file); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
	return measurementOf(times), nil
}

func measurementOf(times []time.Duration) *Measurement {
	m := &Measurement{Requests: len(times)}
	for _, took := range times {
		m.Elapsed += took
	}
	slices.Sort(times)
	m.P50, m.P99 = percentile(times, 50), percentile(times, 99)
	return m
}

const eventsPerCompletion = 10

func measureCompletion(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("completing chains of %d events, %d connections, one organization", eventsPerCompletion, manyConnections),
		Notes: []string{fmt.Sprintf("the server opens the chains and records their events before the clock starts; a round ends early when its %d are complete", b.Chains)},
	}
	err := b.compare(ctx, s, nothing, func(ctx context.Context, t *target) (*Measurement, error) {
		ids := &queue{ids: []string{idPlace}, endless: true}
		if !t.bare() {
			var err error
			if ids.ids, err = b.openChains(ctx, t); err != nil {
				return nil, err
			}
			ids.endless = false
		}
		l := &load{server: t.server, connections: manyConnections, duration: b.Duration}
		l.session = func(int) session { return newCompletionSession(t.apiKey, ids) }
		return l.drive(ctx)
	})
	if err != nil {
		return nil, err
	}
	s.cpuBars("a completion", 3)
	return s, nil
}

// openChains has the server itself open chains and record their events, as it
// would have for whoever completes them.
func (b *bench) openChains(ctx context.Context, t *target) ([]string, error) {
	const longEnough = 10 * time.Minute
	opened := &openedChains{}
	opened.left.Store(int64(b.Chains))
	l := &load{server: t.server, connections: manyConnections, duration: longEnough}
	l.session = func(i int) session { return &openingSession{newEventSession(t.apiKey, i), opened} }
	if _, err := l.drive(ctx); err != nil {
		return nil, err
	}
	return opened.ids, nil
}

const receiptsToCheck = 1000

func measureVerification(ctx context.Context, b *bench) (*Scenario, error) {
	count := receiptsToCheck
	if b.short() {
		count /= 10
	}
	s := &Scenario{
		Title: fmt.Sprintf("public receipt check, %d connections", manyConnections),
		Notes: []string{fmt.Sprintf("over %d receipts in turn; the limit on public requests is off", count)},
	}
	receipts := func(ctx context.Context, r *records) (*filled, error) {
		return r.fill(ctx, count, eventsPerCompletion, true)
	}
	err := b.compare(ctx, s, receipts, func(ctx context.Context, t *target) (*Measurement, error) {
		ids := &queue{ids: []string{idPlace}, endless: true}
		if !t.bare() {
			ids.ids = receiptTexts(t.filled.receipts)
		}
		l := &load{server: t.server, connections: manyConnections, warmUp: b.warmUp(), duration: b.Duration}
		l.session = func(int) session { return newCheckSession(ids) }
		return l.drive(ctx)
	})
	if err != nil {
		return nil, err
	}
	s.cpuBars("a receipt check", 1.7)
	s.p99Bars()
	return s, nil
}
