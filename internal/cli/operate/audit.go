package operate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// AuditCommand is the audit command.
type AuditCommand struct {
	cli.Storage
	Org          string `help:"Audit only this organization." env:"-" placeholder:"SLUG"`
	ReceiptsOnly bool   `help:"Check only signatures and links, not the events." env:"-"`
	JSON         bool   `name:"json" help:"Print JSON." env:"-"`

	unwatched bool // the check for missing organizations failed
}

// auditUnreadable is the status of an organization that could not be read. The other statuses are
// those of package verify.
const auditUnreadable = "unreadable"

// AuditResult is the verdict on every audited organization.
type AuditResult struct {
	Status        string            `json:"status"` // the worst of them
	Ledger        *cli.LedgerAnswer `json:"ledger"` // null if it has no id or a forged one
	Organizations []auditLine       `json:"organizations"`
}

type auditLine struct {
	*verify.AuditReport
	Error string `json:"error,omitempty"`
}

// Run audits the ledgers.
func (c *AuditCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	orgs, missing, err := c.scope(p, o)
	if err != nil {
		return cli.Inconclusive(err)
	}
	result := AuditResult{Status: verify.AuditIntact}
	stored, err := o.Ledger(p.Ctx)
	if err != nil && !errors.Is(err, cli.ErrForgedLedger) {
		return cli.Inconclusive(err)
	}
	result.Ledger = stored
	switch {
	case err != nil:
		result.add(brokenLine("", err.Error()))
	case stored == nil && o.Heads != nil && o.Heads.Ledger() != uuid.Nil:
		result.add(brokenLine("", "the id of the ledger was deleted from the database: the next server to start writes it again"))
	}
	for _, org := range orgs {
		result.add(c.audit(p, o, org))
	}
	for _, line := range missing {
		result.add(line)
	}
	if err := c.print(p, &result); err != nil {
		return err
	}
	return result.exit()
}

// scope returns the organizations to audit, and lines for those that are missing altogether.
func (c *AuditCommand) scope(p *cli.Process, o *cli.Opened) (orgs []*ledger.Organization, missing []auditLine, err error) {
	missing, err = c.missing(p, o)
	if c.Org != "" {
		own, ownErr := o.Store.OrganizationBySlug(p.Ctx, c.Org)
		switch {
		case ownErr == nil:
			c.unwatched = err != nil // another organization may be the cause
			return []*ledger.Organization{own}, missing, nil
		case !errors.Is(ownErr, store.ErrNotFound):
			return nil, nil, fmt.Errorf("could not read: %w", ownErr)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if c.Org == "" {
		if orgs, err = o.Operator().Organizations(p.Ctx); err != nil {
			return nil, nil, fmt.Errorf("could not read: %w", err)
		}
	}
	switch {
	case len(orgs)+len(missing) > 0:
		return orgs, missing, nil
	case c.Org != "":
		return nil, nil, noOrganization(c.Org)
	}
	return nil, nil, errors.New("this store holds no organization: nothing was checked")
}

// missing returns a line for each organization that receipts were issued for but that is not in the
// database.
func (c *AuditCommand) missing(p *cli.Process, o *cli.Opened) ([]auditLine, error) {
	found, err := o.Service.Rollbacks(p.Ctx)
	if err != nil {
		return nil, fmt.Errorf("could not read: %w", err)
	}
	var lines []auditLine
	for _, rollback := range found {
		if rollback.OtherLedger || rollback.Missing && (c.Org == "" || c.Org == rollback.Organization) {
			lines = append(lines, brokenLine(rollback.Organization, cli.RollbackText(rollback)))
		}
	}
	return lines, nil
}

// brokenLine returns a line about something that cannot be walked. Without an organization it
// concerns the whole ledger.
func brokenLine(organization, detail string) auditLine {
	return auditLine{AuditReport: &verify.AuditReport{
		Organization: organization, Status: verify.AuditBroken, NotChecked: []string{},
		Break: &ledger.Break{Check: ledger.CheckRollback, Detail: detail},
	}}
}

func (c *AuditCommand) audit(p *cli.Process, o *cli.Opened, org *ledger.Organization) auditLine {
	bar := cli.NewProgress(p.Err, "auditing "+cli.Quoted(org.Slug, cli.MaxSlug))
	defer bar.Clear()
	report, err := o.Operator().AuditOrganization(p.Ctx, org, verify.AuditOptions{ReceiptsOnly: c.ReceiptsOnly, Progress: bar.Show})
	if err != nil {
		return auditLine{&verify.AuditReport{Organization: org.Slug, Status: auditUnreadable}, err.Error()}
	}
	if err := o.Operator().ReportAudit(p.Ctx, org.ID, report); err != nil {
		bar.Clear()
		p.Notef("The findings in %s could not be stored: %v", cli.Quoted(org.Slug, cli.MaxSlug), err)
	}
	if o.Heads.Blank() && report.Receipts > 0 {
		report.NotChecked = append(report.NotChecked, "rollback (the heads file is empty)")
	}
	if c.unwatched {
		report.NotChecked = append(report.NotChecked, "missing organizations")
	}
	return auditLine{AuditReport: report}
}

func (r *AuditResult) add(line auditLine) {
	r.Organizations = append(r.Organizations, line)
	// Tampering is certain; an organization that could not be read may still be intact.
	if line.Status == verify.AuditBroken || r.Status == verify.AuditIntact {
		r.Status = line.Status
	}
}

func (r *AuditResult) exit() error {
	switch r.Status {
	case verify.AuditIntact:
		return nil
	case verify.AuditBroken:
		return &cli.ExitError{Code: cli.ExitFailed}
	default:
		return cli.Inconclusive(errors.New("could not read all of it: " + r.firstError()))
	}
}

func (r *AuditResult) firstError() string {
	for _, line := range r.Organizations {
		if line.Error != "" {
			return line.Error
		}
	}
	return ""
}

func (c *AuditCommand) print(p *cli.Process, result *AuditResult) error {
	if c.JSON {
		return p.PrintJSON(result)
	}
	if result.Ledger != nil {
		p.Notef("ledger %s", result.Ledger)
	}
	for _, line := range result.Organizations {
		switch {
		case line.Organization == "":
			fmt.Fprintf(p.Out, "the ledger: BROKEN at %s\n", breakText(line.Break))
		case line.Error != "":
			fmt.Fprintf(p.Out, "%s: UNREADABLE\n", cli.Quoted(line.Organization, cli.MaxSlug))
		case line.Break != nil:
			fmt.Fprintf(p.Out, "%s: BROKEN at %s\n", cli.Quoted(line.Organization, cli.MaxSlug), breakText(line.Break))
			if line.Further != nil {
				fmt.Fprintf(p.Out, "%s: and BROKEN at %s\n", cli.Quoted(line.Organization, cli.MaxSlug), breakText(line.Further))
			}
			for _, chain := range line.RolledBack {
				fmt.Fprintf(p.Out, "%s: and BROKEN at %s\n", cli.Quoted(line.Organization, cli.MaxSlug), breakText(chain))
			}
		default:
			fmt.Fprintf(p.Out, "%s: intact; checked %s%s\n", cli.Quoted(line.Organization, cli.MaxSlug), checked(line.AuditReport), unchecked(line.NotChecked))
		}
	}
	return nil
}

func checked(report *verify.AuditReport) string {
	return strings.Join([]string{
		cli.Count(report.Receipts, "receipt"),
		cli.Count(report.Chains, "chain"),
		cli.Count(report.Events, "event"),
		cli.Count(report.Acts, "act") + " in the audit log",
	}, ", ")
}

func breakText(found *ledger.Break) string {
	if found.ReceiptNumber == "" {
		return cli.OneLine(fmt.Sprintf("%s: %s", found.Check, found.Detail))
	}
	return cli.OneLine(fmt.Sprintf("%s (%s): %s", found.ReceiptNumber, found.Check, found.Detail))
}

func unchecked(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; not checked: " + strings.Join(names, ", ")
}
