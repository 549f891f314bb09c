package operate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// TamperingCommands list and acknowledge findings of tampering.
type TamperingCommands struct {
	List        tamperingListCommand        `cmd:"" help:"List the findings of tampering that nobody has acknowledged."`
	Acknowledge tamperingAcknowledgeCommand `cmd:"" help:"Acknowledge a finding that was investigated, and record that in the audit log."`
}

type tamperingListCommand struct {
	cli.Storage
	Org  string `help:"List only those of this organization." env:"-" placeholder:"SLUG"`
	All  bool   `help:"List acknowledged findings too." env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// FindingLine is a finding in the output.
type FindingLine struct {
	ID             string  `json:"id"`
	Organization   string  `json:"organization"` // slug, or the id if it does not exist, or "" for no particular one
	Status         string  `json:"status"`       // "open" or "acknowledged"
	Check          string  `json:"check"`
	Kind           string  `json:"kind"`
	About          string  `json:"about"`
	FoundAt        *string `json:"found_at"` // null if the finding's row was changed
	SeenAt         *string `json:"last_seen_at"`
	AcknowledgedAt *string `json:"acknowledged_at"`
	AcknowledgedBy string  `json:"acknowledged_by,omitempty"`
	Reason         string  `json:"reason,omitempty"`
}

func findingLineOf(f *service.Finding, slugs map[ledger.OrgID]string) FindingLine {
	line := FindingLine{ID: verify.FindingID(f.Name), Organization: slugs[f.Org], Status: "open"}
	if line.Organization == "" && f.Org != (ledger.OrgID{}) {
		line.Organization = f.Org.String()
	}
	if f.Tampered {
		changed := verify.FindingChanged(f.Name)
		line.Check, line.Kind, line.About = string(changed.Check), verify.AboutPlace, changed.Place
		return line
	}
	line.Check, line.Kind, line.About = f.Check, f.Kind, f.Subject
	line.FoundAt, line.SeenAt, line.AcknowledgedAt = cli.TimeText(&f.FoundAt), cli.TimeText(&f.SeenAt), cli.TimeText(f.AcknowledgedAt)
	if !f.Open() {
		line.Status, line.AcknowledgedBy, line.Reason = "acknowledged", f.AcknowledgedBy, f.Reason
	}
	return line
}

// Run lists the findings.
func (c *tamperingListCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	findings, err := o.Operator().Findings(p.Ctx, c.Org)
	if err != nil {
		return couldNotRead(err)
	}
	if !c.All {
		findings = slices.DeleteFunc(findings, func(f *service.Finding) bool { return !f.Open() })
	}
	lines, err := findingLines(p, o, findings)
	if err != nil {
		return err
	}
	return c.print(p, lines)
}

func findingLines(p *cli.Process, o *cli.Opened, findings []*service.Finding) ([]FindingLine, error) {
	slugs, err := readSlugs(p, o)
	if err != nil {
		return nil, err
	}
	lines := []FindingLine{} // never null
	for _, finding := range findings {
		lines = append(lines, findingLineOf(finding, slugs))
	}
	return lines, nil
}

func (c *tamperingListCommand) print(p *cli.Process, lines []FindingLine) error {
	if c.JSON {
		return p.PrintJSON(lines)
	}
	if len(lines) == 0 {
		p.Notef("There are no unacknowledged findings.")
		return nil
	}
	rows := make([][]string, 0, len(lines))
	for _, line := range lines {
		found := "-"
		if line.FoundAt != nil {
			found = *line.FoundAt
		}
		status := line.Status
		if line.Reason != "" {
			status += ": " + strconv.Quote(line.Reason)
		}
		rows = append(rows, []string{cli.Quoted(line.ID, 12), cli.Quoted(line.Organization, cli.MaxSlug), found, cli.Quoted(line.Check, 40), cli.Quoted(line.About, 200), status})
	}
	return p.PrintTable([]string{"ID", "ORGANIZATION", "FOUND", "CHECK", "ABOUT", "STATUS"}, rows)
}

type tamperingAcknowledgeCommand struct {
	cli.Storage
	ID     string `arg:"" optional:"" help:"The finding's id, or the beginning of it."`
	All    bool   `help:"Acknowledge all open findings." env:"-"`
	Org    string `help:"Consider only the findings of this organization." env:"-" placeholder:"SLUG"`
	Reason string `help:"What was investigated, and the result; recorded in the audit log." env:"-" placeholder:"TEXT"`
	JSON   bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run acknowledges findings.
func (c *tamperingAcknowledgeCommand) Run(p *cli.Process) (err error) {
	if (c.ID == "") != c.All {
		return cli.Usage(errors.New("name a finding by its id, or give --all"))
	}
	if c.Reason == "" {
		return cli.Usage(errors.New("give a reason with --reason: it is recorded in the audit log"))
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	findings, err := o.Operator().Findings(p.Ctx, c.Org)
	if err != nil {
		return couldNotRead(err)
	}
	if !c.All {
		one, err := service.FindingByID(findings, c.ID)
		if err != nil {
			return namesNothing(err)
		}
		findings = []*service.Finding{one}
	}
	done, failed := c.acknowledge(p, o, findings)
	return errors.Join(c.printStored(p, o, done), failed)
}

// acknowledge continues after a finding that cannot be acknowledged, so that one organization with
// a changed log does not affect others.
func (c *tamperingAcknowledgeCommand) acknowledge(p *cli.Process, o *cli.Opened, findings []*service.Finding) (done []store.FindingRef, err error) {
	var failed []error
	for _, finding := range findings {
		if !finding.Open() {
			continue
		}
		if err := o.Operator().Acknowledge(p.Ctx, finding, c.Reason); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", cli.Quoted(verify.FindingID(finding.Name), 12), err))
			continue
		}
		done = append(done, finding.Ref())
	}
	return done, errors.Join(failed...)
}

// printStored prints the acknowledged findings as they are stored now, like the list command.
func (c *tamperingAcknowledgeCommand) printStored(p *cli.Process, o *cli.Opened, done []store.FindingRef) error {
	findings, err := o.Operator().Findings(p.Ctx, c.Org)
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("%s acknowledged, but could not read: %w", cli.Count(len(done), "finding"), err))
	}
	findings = slices.DeleteFunc(findings, func(f *service.Finding) bool { return !slices.Contains(done, f.Ref()) })
	lines, err := findingLines(p, o, findings)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(lines)
	}
	if len(done) == 0 {
		p.Notef("There was nothing to acknowledge.")
	}
	for _, line := range lines {
		fmt.Fprintf(p.Out, "%s is acknowledged\n", cli.Quoted(line.ID, 12))
	}
	return nil
}
