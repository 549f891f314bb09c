package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The targets' names.
const (
	bareName     = "bare net/http"
	sqliteName   = "SQLite"
	postgresName = "PostgreSQL"
	pgbenchName  = "pgbench"
	syncName     = "fdatasync"
)

// target is a server under load.
type target struct {
	name   string
	server *server
	apiKey string
	filled *filled

	place       *place
	environment []string // of the server
}

func (t *target) bare() bool { return t.filled == nil }

// stock fills a new store before its server starts.
type stock func(context.Context, *records) (*filled, error)

func nothing(context.Context, *records) (*filled, error) { return &filled{}, nil }

// startService makes a store with what stock puts there and serves it, every
// feature on. The returned function stops the server and removes the store.
func (b *bench) startService(ctx context.Context, name string, stock stock) (_ *target, end func() error, err error) {
	p, err := b.newPlace(ctx, name == postgresName)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove())
		}
	}()
	t := &target{name: name, place: p}
	if t.apiKey, t.filled, err = prepare(ctx, p, stock); err != nil {
		return nil, nil, err
	}
	// The address holds a password: the list of processes must not show it. The
	// public rate is for strangers, and would hold this one load to it.
	t.environment = []string{"COUNTERSIGN_METRICS_LISTEN=127.0.0.1:0"}
	if p.database != "" {
		t.environment = append(t.environment, "COUNTERSIGN_DATABASE="+p.database)
	}
	if len(t.filled.receipts) > 0 {
		// No server has acknowledged what stands there.
		if _, err := b.operate(ctx, t, "rollback", "accept", "--yes"); err != nil {
			return nil, nil, err
		}
	}
	t.server, err = b.launch(ctx, name, t.environment, "serve", "--data", p.dir, "--listen", "127.0.0.1:0", "--public-rate", "0")
	if err != nil {
		return nil, nil, err
	}
	if p.database != "" {
		if t.server.postmaster, err = postmasterOf(ctx, p.database); err != nil {
			return nil, nil, errors.Join(err, t.server.stop())
		}
	}
	return t, func() error { return errors.Join(t.server.stop(), p.remove()) }, nil
}

// operate runs one of this program's commands on a target's store, and returns what it prints.
func (b *bench) operate(ctx context.Context, t *target, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.Executable, append(arguments, "--data", t.place.dir)...) //nolint:gosec // this program itself
	cmd.Env = append(foreignEnvironment(), t.environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s on the store of %s: %w\n%s", strings.Join(arguments, " "), t.name, err, out)
	}
	return string(out), nil
}

// prepare uses all cores, and has let go of the store when it returns.
func prepare(ctx context.Context, p *place, stock stock) (apiKey string, filled *filled, err error) {
	r, err := openRecords(ctx, p)
	if err != nil {
		return "", nil, err
	}
	filled, err = stock(ctx, r)
	return r.agent.Text.Reveal(), filled, errors.Join(err, r.close())
}

// withRecords runs use with a new store that no server has.
func (b *bench) withRecords(ctx context.Context, name string, use func(*records) error) error {
	p, err := b.newPlace(ctx, name == postgresName)
	if err != nil {
		return err
	}
	_, _, err = prepare(ctx, p, func(_ context.Context, r *records) (*filled, error) { return nil, use(r) })
	return errors.Join(err, p.remove())
}

func (b *bench) startBare(ctx context.Context, like *target) (*target, error) {
	file := filepath.Join(b.dir, "answers.json")
	if err := sample(ctx, like, file); err != nil {
		return nil, err
	}
	server, err := b.launch(ctx, bareName, nil, "bench", "--bare", file)
	if err != nil {
		return nil, err
	}
	return &target{name: bareName, server: server, apiKey: like.apiKey}, nil
}

func (b *bench) serviceNames() []string {
	if b.Postgres == "" {
		return []string{sqliteName}
	}
	return []string{sqliteName, postgresName}
}

// withTargets runs use with the bare server and every service side by side. An
// idle server costs the others nothing.
func (b *bench) withTargets(ctx context.Context, stock stock, use func([]*target) error) (err error) {
	var services []*target
	var ends []func() error
	defer func() {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
	}()
	for _, name := range b.serviceNames() {
		t, end, err := b.startService(ctx, name, stock)
		if err != nil {
			return err
		}
		services, ends = append(services, t), append(ends, end)
	}
	bare, err := b.startBare(ctx, services[0])
	if err != nil {
		return err
	}
	ends = append(ends, bare.server.stop)
	b.Progress("  all servers answer")
	return use(append([]*target{bare}, services...))
}

// onEachService runs use with each service in turn, on a store of its own.
func (b *bench) onEachService(ctx context.Context, stock stock, use func(*target) error) error {
	for _, name := range b.serviceNames() {
		if err := b.onService(ctx, name, stock, use); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) onService(ctx context.Context, name string, stock stock, use func(*target) error) error {
	t, end, err := b.startService(ctx, name, stock)
	if err != nil {
		return err
	}
	return errors.Join(use(t), end())
}

// measure measures one target once.
type measure func(context.Context, *target) (*Measurement, error)

// rounds measures every target in turn, over and over, and adds a row for each.
func (b *bench) rounds(ctx context.Context, targets []*target, s *Scenario, one measure) error {
	b.cores.pinSelf()
	defer b.cores.unpinSelf()
	return b.takeRounds(ctx, targets, s, one)
}

// compare measures the bare server, every service and what else there is in the same
// rounds, and fills in the ratios to the bare server.
func (b *bench) compare(ctx context.Context, s *Scenario, stock stock, one measure, others ...*target) error {
	err := b.withTargets(ctx, stock, func(targets []*target) error {
		return b.rounds(ctx, append(targets, others...), s, one)
	})
	if err == nil {
		s.compareWithBare()
	}
	return err
}

// roundsAtMost bounds how many rounds of a measurement are taken if some are dropped.
func (b *bench) roundsAtMost() int {
	const times = 3
	if b.short() {
		return b.Rounds
	}
	return times * b.Rounds
}

// takeRounds drops a round in which a server had too little of its core, for all
// targets, and takes another in its place.
func (b *bench) takeRounds(ctx context.Context, targets []*target, s *Scenario, one measure) error {
	most := b.roundsAtMost()
	var kept, dropped []round
	for len(kept) < b.Rounds && len(kept)+len(dropped) < most {
		var measured round
		for _, t := range targets {
			m, err := one(ctx, t)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			b.Progress("  round %d, %s: %s a request, %.0f/s", len(kept)+1, t.name, latency(time.Duration(m.cost())), m.rate())
			measured = append(measured, m)
		}
		if measured.starved() {
			b.Progress("  dropped: a server had less than %.0f %% of its core", 100*leastShare)
			dropped = append(dropped, measured)
		} else {
			kept = append(kept, measured)
		}
	}
	s.addRows(targets, kept, dropped, b.Rounds)
	return nil
}

// round is one measurement of each target.
type round []*Measurement

func (r round) starved() bool { return slices.ContainsFunc(r, (*Measurement).starved) }

// share is the least that a server had of its core.
func (r round) share() float64 {
	least := 1.0
	for _, m := range r {
		if m.CoreShare != 0 {
			least = min(least, m.CoreShare)
		}
	}
	return least
}

// addRows makes a row of each target's rounds. If every round was dropped, the best of
// them count all the same, as many as were wanted, and a note says what they are worth.
func (s *Scenario) addRows(targets []*target, kept, dropped []round, wanted int) {
	switch count := len(kept) + len(dropped); {
	case len(kept) == 0:
		slices.SortStableFunc(dropped, func(a, b round) int { return cmp.Compare(b.share(), a.share()) })
		kept, dropped = dropped[:wanted], dropped[wanted:]
		s.Notes = append(s.Notes, fmt.Sprintf("in each of %d rounds a server had less than %.0f %% of its core: these are the %d best, on a busy machine", count, 100*leastShare, wanted))
	case len(dropped) > 0:
		s.Notes = append(s.Notes, fmt.Sprintf("%d of %d rounds dropped: a server had less than %.0f %% of its core", len(dropped), count, 100*leastShare))
	}
	for i, t := range targets {
		var rounds []*Measurement
		for _, measured := range kept {
			rounds = append(rounds, measured[i])
		}
		row := summarize(t.name, rounds)
		row.Dropped = len(dropped)
		s.Rows = append(s.Rows, row)
	}
}

// row finds a target's row; nil where it was not measured.
func (s *Scenario) row(target string) *Row {
	for _, row := range s.Rows {
		if row.Target == target {
			return row
		}
	}
	return nil
}

// compareWithBare fills in the ratios.
func (s *Scenario) compareWithBare() {
	bare := s.row(bareName)
	for _, row := range s.Rows {
		if row != bare && row.Target != syncName {
			row.CPURatio = against(row.Rounds, bare.Rounds, (*Measurement).cost)
			row.Ratio = against(row.Rounds, bare.Rounds, (*Measurement).rate)
		}
	}
}

// cpuBars are what a request may cost each service, times the bare server's. There
// are none where the system does not tell processor times.
func (s *Scenario) cpuBars(what string, most float64) {
	for _, row := range s.Rows {
		if row.CPURatio > 0 {
			s.Bars = append(s.Bars, atMost("CPU of "+what+" on "+row.Target+", times the bare server's", most, row.CPURatio, ""))
		}
	}
}

// p99Bars are what each service's p99 may be, times the bare server's.
func (s *Scenario) p99Bars() {
	bare := s.row(bareName)
	for _, row := range s.Rows {
		if row != bare {
			s.Bars = append(s.Bars, atMost("p99 on "+row.Target+", times the bare server's", 2, against(row.Rounds, bare.Rounds, p99Of), ""))
		}
	}
}
