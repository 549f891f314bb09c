package operate

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// OrgsCommands are the commands for organizations.
type OrgsCommands struct {
	Create orgsCreateCommand `cmd:"" help:"Create an organization. Its first admin key is printed once, alone on standard output."`
	List   orgsListCommand   `cmd:"" help:"List the organizations."`
}

type orgsCreateCommand struct {
	cli.Storage
	Slug string `arg:"" help:"Short name that appears in receipts and never changes: lower-case letters, digits, hyphens."`
	Name string `help:"Display name; the default is the slug." env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// OrgLine is an organization in the output.
type OrgLine struct {
	ID        string `json:"id"`
	Slug      string `json:"slug"`
	Name      string `json:"name"`
	CreatedAt string `json:"created_at"`
}

func lineOf(org *ledger.Organization) OrgLine {
	return OrgLine{org.ID.String(), org.Slug, org.Name, org.CreatedAt.String()}
}

// Run creates the organization, and the store if there is none.
func (c *orgsCreateCommand) Run(p *cli.Process) (err error) {
	if err := errors.Join(ledger.CheckSlug(c.Slug), checkName(c.Name)); err != nil {
		return cli.Usage(err)
	}
	o, err := c.OpenOrCreate(p, service.Config{}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if o.NewKeys {
		p.Notef("New master keys were created: %s. Back them up: nothing can be verified without them.", c.KeyFile())
	}
	org, key, err := o.Operator().CreateOrganization(p.Ctx, c.Slug, c.Name)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(struct {
			Organization OrgLine `json:"organization"`
			Key          KeyLine `json:"key"`
		}{lineOf(org), newKeyLine(key, o.Service.Now())})
	}
	p.Notef("Organization %s was created. Its first admin key is shown once, here:", org.Slug)
	fmt.Fprintln(p.Out, key.Text.Reveal())
	return nil
}

const maxName = 200

// checkName refuses what the API refuses as a name.
func checkName(name string) error {
	if utf8.RuneCountInString(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("a name must be one line of valid UTF-8 without control characters, of at most %d characters", maxName)
	}
	return nil
}

type orgsListCommand struct {
	cli.Storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the organizations.
func (c *orgsListCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenWithoutKeys(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	orgs, err := o.Operator().Organizations(p.Ctx)
	if err != nil {
		return cli.Inconclusive(err)
	}
	lines, rows := make([]OrgLine, len(orgs)), make([][]string, len(orgs))
	for i, org := range orgs {
		lines[i] = lineOf(org)
		rows[i] = []string{lines[i].Slug, lines[i].Name, lines[i].CreatedAt, lines[i].ID}
	}
	if c.JSON {
		return p.PrintJSON(lines)
	}
	return p.PrintTable([]string{"SLUG", "NAME", "CREATED", "ID"}, rows)
}
