package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/verify"
)

type tamperingCommands struct {
	List        tamperingListCommand        `cmd:"" help:"List the tampering that nobody has acknowledged."`
	Acknowledge tamperingAcknowledgeCommand `cmd:"" help:"Say that a finding was looked at, and enter that into the audit log."`
}

type tamperingListCommand struct {
	storage
	Org  string `help:"List those of this organization alone." env:"-" placeholder:"SLUG"`
	All  bool   `help:"List acknowledged ones as well." env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// findingLine is a finding as the command line shows it.
type findingLine struct {
	ID             string  `json:"id"`
	Organization   string  `json:"organization"` // slug; the id of one that is gone, "" for none in particular
	Status         string  `json:"status"`       // "open" or "acknowledged"
	Check          string  `json:"check"`
	Kind           string  `json:"kind"`
	About          string  `json:"about"`
	FoundAt        *string `json:"found_at"` // null where the finding's own row was changed
	SeenAt         *string `json:"last_seen_at"`
	AcknowledgedAt *string `json:"acknowledged_at"`
	AcknowledgedBy string  `json:"acknowledged_by,omitempty"`
	Reason         string  `json:"reason,omitempty"`
}

func findingLineOf(f *service.Finding, slugs map[ledger.OrgID]string) findingLine {
	line := findingLine{ID: verify.FindingID(f.Name), Organization: slugs[f.Org], Status: "open"}
	if line.Organization == "" && f.Org != (ledger.OrgID{}) {
		line.Organization = f.Org.String()
	}
	if f.Tampered {
		changed := verify.FindingChanged(f.Name)
		line.Check, line.Kind, line.About = string(changed.Check), verify.AboutPlace, changed.Place
		return line
	}
	line.Check, line.Kind, line.About = f.Check, f.Kind, f.Subject
	line.FoundAt, line.SeenAt, line.AcknowledgedAt = moment(&f.FoundAt), moment(&f.SeenAt), moment(f.AcknowledgedAt)
	if !f.Open() {
		line.Status, line.AcknowledgedBy, line.Reason = "acknowledged", f.AcknowledgedBy, f.Reason
	}
	return line
}

func moment(at *ledger.Time) *string {
	if at == nil {
		return nil
	}
	text := at.String()
	return &text
}

// Run lists the findings.
func (c *tamperingListCommand) Run(p *process) (err error) {
	o, err := c.openEvidence(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	findings, err := o.operator().Findings(p.ctx, c.Org)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	if !c.All {
		findings = slices.DeleteFunc(findings, func(f *service.Finding) bool { return !f.Open() })
	}
	lines, err := findingLines(p, o, findings)
	if err != nil {
		return unclear(err)
	}
	return c.print(p, lines)
}

func findingLines(p *process, o *opened, findings []*service.Finding) ([]findingLine, error) {
	orgs, err := o.operator().Organizations(p.ctx)
	if err != nil {
		return nil, fmt.Errorf("could not read: %w", err)
	}
	slugs := make(map[ledger.OrgID]string, len(orgs))
	for _, org := range orgs {
		slugs[org.ID] = org.Slug
	}
	lines := []findingLine{} // never null
	for _, finding := range findings {
		lines = append(lines, findingLineOf(finding, slugs))
	}
	return lines, nil
}

func (c *tamperingListCommand) print(p *process, lines []findingLine) error {
	if c.JSON {
		return p.printJSON(lines)
	}
	if len(lines) == 0 {
		p.say("No tampering is known that nobody has acknowledged.")
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
		rows = append(rows, []string{quoted(line.ID, 12), quoted(line.Organization, maxSlug), found, quoted(line.Check, 40), quoted(line.About, 200), status})
	}
	return p.printTable([]string{"ID", "ORGANIZATION", "FOUND", "CHECK", "ABOUT", "STATUS"}, rows)
}

// maxSlug is how much is shown of a slug, in bytes. No slug is longer that the service
// has given.
const maxSlug = 64

// quoted is the beginning of a text that may have been written by anyone, without what
// would move a terminal's cursor.
func quoted(text string, most int) string {
	if text == "" {
		return "-"
	}
	shown := strconv.QuoteToASCII(text[:min(len(text), most)])
	return shown[1 : len(shown)-1]
}

type tamperingAcknowledgeCommand struct {
	storage
	ID     string `arg:"" optional:"" help:"The finding's id, or the beginning of it."`
	All    bool   `help:"Acknowledge all that are open." env:"-"`
	Org    string `help:"Look among the findings of this organization alone." env:"-" placeholder:"SLUG"`
	Reason string `help:"What was looked at, and what came of it; it stands in the audit log." env:"-" placeholder:"TEXT"`
	JSON   bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run acknowledges findings.
func (c *tamperingAcknowledgeCommand) Run(p *process) (err error) {
	if (c.ID == "") != c.All {
		return misused(errors.New("name one finding by its id, or all with --all"))
	}
	if c.Reason == "" {
		return misused(errors.New("say why with --reason: it stands in the audit log"))
	}
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	findings, err := o.operator().Findings(p.ctx, c.Org)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	if !c.All {
		one, err := service.FindingByID(findings, c.ID)
		if err != nil {
			return err
		}
		findings = []*service.Finding{one}
	}
	done, failed := c.acknowledge(p, o, findings)
	lines, err := findingLines(p, o, done)
	if err == nil {
		err = c.print(p, lines)
	}
	return errors.Join(err, failed)
}

// acknowledge goes on behind a finding that cannot be acknowledged: one organization
// whose log was changed keeps no other back.
func (c *tamperingAcknowledgeCommand) acknowledge(p *process, o *opened, findings []*service.Finding) (done []*service.Finding, err error) {
	var failed []error
	for _, finding := range findings {
		if !finding.Open() {
			continue
		}
		if err := o.operator().Acknowledge(p.ctx, finding, c.Reason); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", quoted(verify.FindingID(finding.Name), 12), err))
			continue
		}
		done = append(done, finding)
	}
	return done, errors.Join(failed...)
}

func (c *tamperingAcknowledgeCommand) print(p *process, lines []findingLine) error {
	for i := range lines {
		lines[i].Status, lines[i].Reason = "acknowledged", c.Reason
	}
	if c.JSON {
		return p.printJSON(lines)
	}
	if len(lines) == 0 {
		p.say("There was nothing to acknowledge.")
	}
	for _, line := range lines {
		fmt.Fprintf(p.out, "%s is acknowledged\n", quoted(line.ID, 12))
	}
	return nil
}
