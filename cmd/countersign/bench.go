package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"countersign/internal/bench"
	"countersign/internal/cli"
)

// benchCommand measures this binary and compares it with what the machine can do.
type benchCommand struct {
	Scenario []string      `help:"Scenarios to run, by name; the default is all of them." placeholder:"NAME"`
	Rounds   int           `help:"Rounds of each scenario; medians are reported." default:"5"`
	Duration time.Duration `help:"Duration of the load on each target in each round." default:"3s"`
	Postgres string        `help:"PostgreSQL server to also measure on; temporary databases are created there and dropped." placeholder:"URL"`
	Dir      string        `help:"Folder for temporary stores, on the disk to be measured; the default is the system's temporary folder." type:"existingdir"`
	Chains   int           `help:"Chains that each round may complete." default:"5000"`
	Receipts int           `help:"Receipts that the audit scans." default:"20000"`
	Waiters  int           `help:"Clients that wait for approvals concurrently." default:"2000"`
	Preload  int           `help:"Events stored before start and memory are measured." default:"0"`
	Peers    string        `help:"Folder with OPA and immudb as scripts/bench-peers builds them, to compare with." placeholder:"DIR" type:"existingdir"`
	Build    []string      `help:"Build of this program to compare with the first one that is given, in scenario builds; repeated." placeholder:"FILE" type:"existingfile"`
	JSON     string        `name:"json" help:"Also write the report to this file." placeholder:"FILE" type:"path"`
	Keep     bool          `help:"Keep the temporary stores."`
	Bare     string        `hidden:"" help:"Run the bare server that the service is compared with." type:"path"`
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
		Chains: c.Chains, Receipts: c.Receipts, Preload: c.Preload, Waiters: c.Waiters, Peers: c.Peers, Builds: c.Build, Keep: c.Keep,
	}
}

// Run measures and reports. A figure that misses its target is marked but is not a
// failure; a failed request is.
func (c *benchCommand) Run(p *cli.Process) error {
	if c.Bare != "" {
		return bench.ServeBare(p.Ctx, c.Bare, p.Err)
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	config := c.config()
	config.Executable = executable
	config.Progress = func(format string, args ...any) { fmt.Fprintf(p.Err, format+"\n", args...) }
	report, err := bench.Run(p.Ctx, config)
	if err != nil {
		return err
	}
	if err := report.WriteTable(p.Out); err != nil {
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
