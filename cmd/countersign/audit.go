package main

import (
	"errors"
	"fmt"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

type auditCommand struct {
	storage
	Org          string `help:"Audit this organization alone." env:"-" placeholder:"SLUG"`
	ReceiptsOnly bool   `help:"Check signatures and links, and leave the events alone." env:"-"`
	JSON         bool   `name:"json" help:"Print JSON." env:"-"`

	unwatched bool // whether organizations are missing could not be found out
}

// The verdicts on a whole store; those on an organization are the service's.
const auditUnreadable = "unreadable"

// auditResult is the verdict on every organization that was asked about.
type auditResult struct {
	Status        string        `json:"status"` // the worst of them
	Ledger        *ledgerAnswer `json:"ledger"` // null where it has no id, or one that somebody wrote
	Organizations []auditLine   `json:"organizations"`
}

type auditLine struct {
	*verify.AuditReport
	Error string `json:"error,omitempty"`
}

// Run walks the ledgers.
func (c *auditCommand) Run(p *process) (err error) {
	o, err := c.openEvidence(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	orgs, missing, err := c.scope(p, o)
	if err != nil {
		return unclear(err)
	}
	result := auditResult{Status: verify.AuditIntact}
	stored, err := o.ledger(p.ctx)
	if err != nil && !errors.Is(err, errForgedLedger) {
		return unclear(err)
	}
	result.Ledger = stored
	if err != nil {
		result.add(brokenLine("", err.Error()))
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

// scope is the organizations to walk, and those of which there is nothing left to
// walk.
func (c *auditCommand) scope(p *process, o *opened) (orgs []*ledger.Organization, missing []auditLine, err error) {
	missing, err = c.missing(p, o)
	if c.Org != "" {
		own, ownErr := o.store.OrganizationBySlug(p.ctx, c.Org)
		switch {
		case ownErr == nil:
			c.unwatched = err != nil // by what someone did to another one, perhaps
			return []*ledger.Organization{own}, missing, nil
		case !errors.Is(ownErr, store.ErrNotFound):
			return nil, nil, fmt.Errorf("could not read: %w", ownErr)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if c.Org == "" {
		if orgs, err = o.operator().Organizations(p.ctx); err != nil {
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

// missing are the organizations that receipts were given out of and that the
// database does not know: there is nothing left of them to walk.
func (c *auditCommand) missing(p *process, o *opened) ([]auditLine, error) {
	found, err := o.service.Rollbacks(p.ctx)
	if err != nil {
		return nil, fmt.Errorf("could not read: %w", err)
	}
	var lines []auditLine
	for _, rollback := range found {
		if rollback.OtherLedger || rollback.Missing && (c.Org == "" || c.Org == rollback.Organization) {
			lines = append(lines, brokenLine(rollback.Organization, rollbackText(rollback)))
		}
	}
	return lines, nil
}

// brokenLine is what the audit says of something that there is nothing to walk of; it
// concerns the whole ledger where it names no organization.
func brokenLine(organization, detail string) auditLine {
	return auditLine{AuditReport: &verify.AuditReport{
		Organization: organization, Status: verify.AuditBroken, NotChecked: []string{},
		Break: &ledger.Break{Check: ledger.CheckRollback, Detail: detail},
	}}
}

func (c *auditCommand) audit(p *process, o *opened, org *ledger.Organization) auditLine {
	bar := newProgress(p.errOutput, "auditing "+quoted(org.Slug, maxSlug))
	defer bar.clear()
	report, err := o.operator().AuditOrganization(p.ctx, org, verify.AuditOptions{ReceiptsOnly: c.ReceiptsOnly, Progress: bar.show})
	if err != nil {
		return auditLine{&verify.AuditReport{Organization: org.Slug, Status: auditUnreadable}, err.Error()}
	}
	if err := o.operator().ReportAudit(p.ctx, org.ID, report); err != nil {
		bar.clear()
		p.say("What was found in %s could not be kept: %v", quoted(org.Slug, maxSlug), err)
	}
	if o.heads.Blank() && report.Receipts > 0 {
		report.NotChecked = append(report.NotChecked, "rollback (no file of heads remembers anything)")
	}
	if c.unwatched {
		report.NotChecked = append(report.NotChecked, "missing organizations")
	}
	return auditLine{AuditReport: report}
}

func (r *auditResult) add(line auditLine) {
	r.Organizations = append(r.Organizations, line)
	// Tampering is established; what could not be read may yet turn out intact.
	if line.Status == verify.AuditBroken || r.Status == verify.AuditIntact {
		r.Status = line.Status
	}
}

func (r *auditResult) exit() error {
	switch r.Status {
	case verify.AuditIntact:
		return nil
	case verify.AuditBroken:
		return &exitError{code: exitFailed}
	default:
		return unclear(errors.New("could not read all of it: " + r.firstError()))
	}
}

func (r *auditResult) firstError() string {
	for _, line := range r.Organizations {
		if line.Error != "" {
			return line.Error
		}
	}
	return ""
}

func (c *auditCommand) print(p *process, result *auditResult) error {
	if c.JSON {
		return p.printJSON(result)
	}
	if result.Ledger != nil {
		p.say("ledger %s", result.Ledger)
	}
	for _, line := range result.Organizations {
		switch {
		case line.Organization == "":
			fmt.Fprintf(p.out, "the ledger: BROKEN at %s\n", breakText(line.Break))
		case line.Error != "":
			fmt.Fprintf(p.out, "%s: UNREADABLE\n", quoted(line.Organization, maxSlug))
		case line.Break != nil:
			fmt.Fprintf(p.out, "%s: BROKEN at %s\n", quoted(line.Organization, maxSlug), breakText(line.Break))
			if line.Further != nil {
				fmt.Fprintf(p.out, "%s: and BROKEN at %s\n", quoted(line.Organization, maxSlug), breakText(line.Further))
			}
			for _, chain := range line.PutBack {
				fmt.Fprintf(p.out, "%s: and BROKEN at %s\n", quoted(line.Organization, maxSlug), breakText(chain))
			}
		default:
			fmt.Fprintf(p.out, "%s: intact; checked %s%s\n", quoted(line.Organization, maxSlug), checked(line.AuditReport), unchecked(line.NotChecked))
		}
	}
	return nil
}

func checked(report *verify.AuditReport) string {
	return strings.Join([]string{
		count(report.Receipts, "receipt"),
		count(report.Chains, "chain"),
		count(report.Events, "event"),
		count(report.Acts, "act") + " in the audit log",
	}, ", ")
}

func breakText(found *ledger.Break) string {
	if found.ReceiptNumber == "" {
		return oneLine(fmt.Sprintf("%s: %s", found.Check, found.Detail))
	}
	return oneLine(fmt.Sprintf("%s (%s): %s", found.ReceiptNumber, found.Check, found.Detail))
}

func unchecked(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; not checked: " + strings.Join(names, ", ")
}
