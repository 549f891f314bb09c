// Package bench measures the service against what the machine itself can do: a
// bare net/http server, the disk's fdatasync, raw hashing, and PostgreSQL's own
// pgbench. Machines differ and so do hours, so what it reports are ratios of
// figures taken in turns within one run.
//
// Servers are processes of their own: this program started once more. On Linux
// the server under load has one core and the load generator another.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Config says what to measure and how long.
type Config struct {
	// Executable is the program that is measured: the path of this binary.
	Executable string
	// Dir is where the temporary stores lie; its file system is measured too.
	Dir string
	// Postgres is the address of a PostgreSQL server, "" for none. The bench
	// works in databases of its own there and drops them.
	Postgres string
	// Scenarios names those to run; none means all.
	Scenarios []string
	Rounds    int
	Duration  time.Duration
	// Chains is how many chains each round may complete.
	Chains int
	// Receipts is how many sealed receipts the audit scans.
	Receipts int
	// Preload is how many events are stored before memory and start are measured.
	Preload int
	// Peers is a folder with the programs of other projects that scripts/bench-peers
	// builds, "" for none.
	Peers string
	// Builds are paths of other builds of this program, to be compared with the first of them.
	Builds []string
	// Waiters is how many clients wait for approvals at once.
	Waiters int
	// Keep leaves the temporary stores for inspection.
	Keep bool
	// Progress is told what is being measured; nil for nobody.
	Progress func(format string, args ...any)
}

const (
	maxRounds   = 101
	maxDuration = 10 * time.Minute
	maxPrepared = 100_000_000
	maxWaiters  = 50_000
)

// Validate refuses what cannot be measured.
func (c *Config) Validate() error {
	known := ScenarioNames()
	for _, name := range c.Scenarios {
		if !slices.Contains(known, name) {
			return fmt.Errorf("there is no scenario %q; choose from %s", name, strings.Join(known, ", "))
		}
	}
	switch {
	case c.Rounds < 1 || c.Rounds > maxRounds:
		return fmt.Errorf("rounds must be between 1 and %d", maxRounds)
	case c.Duration < 10*time.Millisecond || c.Duration > maxDuration:
		return fmt.Errorf("the duration of a round must be between 10ms and %s", maxDuration)
	case c.Chains < 1 || c.Receipts < 1 || c.Waiters < 1 || c.Preload < 0:
		return errors.New("chains, receipts and waiters must be at least 1, and preload at least 0")
	case len(c.Builds) > 0 && c.Chains < 2:
		return errors.New("builds are compared with at least 2 chains")
	case c.Waiters > maxWaiters:
		return fmt.Errorf("waiters must be at most %d", maxWaiters)
	case c.Chains > maxPrepared || c.Receipts > maxPrepared || c.Preload > maxPrepared:
		return fmt.Errorf("chains, receipts and preload must be at most %d", maxPrepared)
	}
	return nil
}

// scenario is one thing that is measured.
type scenario struct {
	name string
	run  func(context.Context, *bench) (*Scenario, error)
}

var scenarios = []scenario{
	{"events", measureEvents},
	{"latency", measureLatency},
	{"complete", measureCompletion},
	{"log", measureLog},
	{"verify", measureVerification},
	{"tokens", measureTokens},
	{"pgbench", measurePgbench},
	{"raw", measureRaw},
	{"audit", measureAudit},
	{"memory", measureMemory},
	{"decide", measureDecision},
	{"rules", measureRules},
	{"approvals", measureApprovals},
	{"neighbours", measureNeighbours},
	{"peers", measurePeers},
	{"builds", measureBuilds},
}

// ScenarioNames lists what can be measured.
func ScenarioNames() []string {
	names := make([]string, 0, len(scenarios))
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// bench is one run.
type bench struct {
	Config
	dir   string // removed at the end
	cores cores
}

// Run measures. It stops every process that it started and removes every file
// and database that it made, also when ctx ends first.
func Run(ctx context.Context, config Config) (_ *Report, err error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Progress == nil {
		config.Progress = func(string, ...any) {}
	}
	dir, err := os.MkdirTemp(config.Dir, "countersign-bench-")
	if err != nil {
		return nil, fmt.Errorf("temporary folder: %w", err)
	}
	b := &bench{Config: config, dir: dir, cores: availableCores()}
	defer func() { err = errors.Join(err, b.clean()) }()
	defer b.cores.unpinSelf()
	report := &Report{Machine: b.machine(), Rounds: config.Rounds, Duration: config.Duration.String()}
	for _, s := range scenarios {
		if !b.wants(s.name) {
			continue
		}
		b.Progress("%s", s.name)
		result, err := s.run(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("scenario %s: %w", s.name, errors.Join(err, context.Cause(ctx)))
		}
		result.Name = s.name
		report.Scenarios = append(report.Scenarios, result)
	}
	return report, nil
}

func (b *bench) wants(name string) bool {
	return len(b.Scenarios) == 0 || slices.Contains(b.Scenarios, name)
}

func (b *bench) clean() error {
	if b.Keep {
		b.Progress("kept: %s", b.dir)
		return nil
	}
	return os.RemoveAll(b.dir)
}

func (b *bench) machine() Machine {
	m := Machine{
		System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
		Cores: len(b.cores.all), Pinning: b.cores.describe(), Warnings: []string{},
	}
	if len(b.cores.all) < 2 {
		m.Warnings = append(m.Warnings, "server and load generator share one core: rates and ratios are not comparable with those of two")
	}
	if inMemory(b.dir) {
		m.Warnings = append(m.Warnings, "the temporary folder lies in memory, where nothing is durable: name a folder on a disk with --dir")
	}
	return m
}

// warmUp is how long a round runs before it counts.
func (b *bench) warmUp() time.Duration { return b.Duration / 10 }
