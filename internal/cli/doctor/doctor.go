package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"countersign/internal/cli"
)

// Command is the doctor command.
type Command struct {
	cli.Storage
	cli.MailFlags
	cli.SSOFlags
	cli.SlackFlags
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// finding is the result of one check. A warning deserves attention but does not fail.
type finding struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "ok", "failed", "warning" or "skipped"
	Detail string `json:"detail"`
}

const (
	findingOK      = "ok"
	findingFailed  = "failed"
	findingWarning = "warning"
	findingSkipped = "skipped"
)

func ok(format string, args ...any) finding {
	return finding{Status: findingOK, Detail: fmt.Sprintf(format, args...)}
}

func failed(format string, args ...any) finding {
	return finding{Status: findingFailed, Detail: fmt.Sprintf(format, args...)}
}

func warning(format string, args ...any) finding {
	return finding{Status: findingWarning, Detail: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) finding {
	return finding{Status: findingSkipped, Detail: fmt.Sprintf(format, args...)}
}

// examination is one run of the doctor. It changes nothing: it creates no files and only reads the
// database.
type examination struct {
	process  *cli.Process
	storage  *cli.Storage
	mail     *cli.MailFlags
	sso      *cli.SSOFlags
	slackApp *cli.SlackFlags
	now      func() time.Time
	findings []finding
}

type check struct {
	name string
	run  func(context.Context) finding
}

func (e *examination) run(ctx context.Context) {
	for _, check := range e.checks() {
		found := check.run(ctx)
		found.Name = check.name
		e.findings = append(e.findings, found)
	}
}

func (e *examination) checks() []check {
	shared := []check{
		{"key file", e.keyFile},
		{"schema", e.schema},
		{"keys belong to store", e.keysBelong},
		{"ledger", e.ledger},
		{"rollback", e.rollback},
		{"tampering", e.tampering},
		{"escalation", e.escalation},
		{"policies", e.policies},
		{"single sign-on", e.singleSignOn},
		{"Slack", e.slack},
		{"clock", e.clock},
	}
	if e.storage.Embedded() {
		return append([]check{
			{"data folder", e.dataFolder}, {"disk space", e.diskSpace}, {"write-ahead log", e.writeAheadLog}, {"server", e.serverRuns},
			{"SQLite version", e.sqliteVersion}, {"database integrity", e.integrity},
		}, shared...)
	}
	return append([]check{{"PostgreSQL durability", e.postgresDurability}, {"server", e.replicasRun}}, shared...)
}

// Run examines the installation.
func (c *Command) Run(p *cli.Process) error {
	e := &examination{process: p, storage: &c.Storage, mail: &c.MailFlags, sso: &c.SSOFlags, slackApp: &c.SlackFlags, now: time.Now}
	e.run(p.Ctx)
	if err := c.print(p, e.findings); err != nil {
		return err
	}
	for _, found := range e.findings {
		if found.Status == findingFailed {
			return &cli.ExitError{Code: cli.ExitFailed}
		}
	}
	return nil
}

func (c *Command) print(p *cli.Process, findings []finding) error {
	if c.JSON {
		return p.PrintJSON(findings)
	}
	marks := map[string]string{findingOK: "✓", findingFailed: "✗", findingWarning: "!", findingSkipped: "·"}
	for _, found := range groupSkipped(findings) {
		fmt.Fprintf(p.Out, "%s %-22s %s\n", marks[found.Status], found.Name, found.Detail)
	}
	fmt.Fprintln(p.Out, summary(findings))
	return nil
}

// groupSkipped combines the checks that were skipped for the same reason into one line.
func groupSkipped(findings []finding) []finding {
	skippedFor := make(map[string][]string)
	for _, found := range findings {
		if found.Status == findingSkipped {
			skippedFor[found.Detail] = append(skippedFor[found.Detail], found.Name)
		}
	}
	var lines []finding
	for _, found := range findings {
		names := skippedFor[found.Detail]
		switch {
		case found.Status != findingSkipped || len(names) == 1:
			lines = append(lines, found)
		case found.Name == names[0]:
			lines = append(lines, finding{"not checked", findingSkipped, found.Detail + ": " + strings.Join(names, ", ")})
		default: // included in the line of the first
		}
	}
	return lines
}

func summary(findings []finding) string {
	counts := make(map[string]int)
	for _, found := range findings {
		counts[found.Status]++
	}
	text := fmt.Sprintf("%d of %d checks passed", counts[findingOK], len(findings))
	for _, status := range []string{findingFailed, findingWarning, findingSkipped} {
		if counts[status] > 0 {
			text += fmt.Sprintf(", %d %s", counts[status], status)
		}
	}
	return text
}
