package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"countersign/internal/bench"
)

// benchCommand measures this binary against what the machine can do.
type benchCommand struct {
	Scenario []string      `help:"Scenarios to run, by name; the default is all of them." placeholder:"NAME"`
	Rounds   int           `help:"Rounds of each scenario; medians are reported." default:"5"`
	Duration time.Duration `help:"How long each target is under load in each round." default:"3s"`
	Postgres string        `help:"PostgreSQL server to measure on too; databases of its own are made there and dropped." placeholder:"URL"`
	Dir      string        `help:"Folder for temporary stores, on the disk to be measured; the default is the system's." type:"existingdir"`
	Chains   int           `help:"Chains that each round may complete." default:"5000"`
	Receipts int           `help:"Receipts that the audit scans." default:"20000"`
	Waiters  int           `help:"Clients that wait for approvals at once." default:"2000"`
	Preload  int           `help:"Events stored before start and memory are measured." default:"0"`
	JSON     string        `name:"json" help:"Also write the report to this file." placeholder:"FILE" type:"path"`
	Keep     bool          `help:"Keep the temporary stores."`
	Bare     string        `hidden:"" help:"Be the server that the service is compared with." type:"path"`
}

// Validate implements kong's check of a command.
func (c *benchCommand) Validate() error {
	if c.Bare != "" {
		return nil
	}
	config := c.config()
	return config.Validate()
}

func (c *benchCommand) config() bench.Config {
	return bench.Config{
		Dir: c.Dir, Postgres: c.Postgres, Scenarios: c.Scenario, Rounds: c.Rounds, Duration: c.Duration,
		Chains: c.Chains, Receipts: c.Receipts, Preload: c.Preload, Waiters: c.Waiters, Keep: c.Keep,
	}
}

// Run measures and reports. A figure that misses its bar is marked, and is no
// failure; a request that goes wrong is.
func (c *benchCommand) Run(p *process) error {
	if c.Bare != "" {
		return bench.ServeBare(p.ctx, c.Bare, p.errOutput)
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	config := c.config()
	config.Executable = executable
	config.Progress = func(format string, args ...any) { fmt.Fprintf(p.errOutput, format+"\n", args...) }
	report, err := bench.Run(p.ctx, config)
	if err != nil {
		return err
	}
	if err := report.WriteTable(p.out); err != nil {
		return err
	}
	if c.JSON == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.JSON, append(data, '\n'), 0o600)
}
