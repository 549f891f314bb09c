package main

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

type orgsCommands struct {
	Create orgsCreateCommand `cmd:"" help:"Make an organization; its first admin key is printed once, alone on standard output."`
	List   orgsListCommand   `cmd:"" help:"List the organizations."`
}

type orgsCreateCommand struct {
	storage
	Slug string `arg:"" help:"Short name that stands in receipts and never changes: lower-case letters, digits, hyphens."`
	Name string `help:"Name for people; the slug without one." env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// orgLine is an organization as the command line shows it.
type orgLine struct {
	ID        string `json:"id"`
	Slug      string `json:"slug"`
	Name      string `json:"name"`
	CreatedAt string `json:"created_at"`
}

func lineOf(org *ledger.Organization) orgLine {
	return orgLine{org.ID.String(), org.Slug, org.Name, org.CreatedAt.String()}
}

// Run makes the organization, on a new store as well.
func (c *orgsCreateCommand) Run(p *process) (err error) {
	if err := errors.Join(ledger.CheckSlug(c.Slug), checkName(c.Name)); err != nil {
		return misused(err)
	}
	o, err := c.openWith(p.ctx, service.Config{}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if o.newKeys {
		p.say("New master keys were made: %s. Back them up, nothing can be verified without them.", c.keyFile())
	}
	org, key, err := o.operator().CreateOrganization(p.ctx, c.Slug, c.Name)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(struct {
			Organization orgLine `json:"organization"`
			Key          keyLine `json:"key"`
		}{lineOf(org), newKeyLine(key, o.service.Now())})
	}
	p.say("Organization %s is made. Its first admin key is shown once, here:", org.Slug)
	fmt.Fprintln(p.out, key.Text.Reveal())
	return nil
}

const longestName = 200

func checkName(name string) error {
	if utf8.RuneCountInString(name) > longestName || !utf8.ValidString(name) {
		return fmt.Errorf("a name is valid UTF-8 of at most %d characters", longestName)
	}
	return nil
}

type orgsListCommand struct {
	storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the organizations.
func (c *orgsListCommand) Run(p *process) (err error) {
	o, err := c.openDirectory(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	orgs, err := o.operator().Organizations(p.ctx)
	if err != nil {
		return unclear(err)
	}
	lines, rows := make([]orgLine, len(orgs)), make([][]string, len(orgs))
	for i, org := range orgs {
		lines[i] = lineOf(org)
		rows[i] = []string{lines[i].Slug, lines[i].Name, lines[i].CreatedAt, lines[i].ID}
	}
	if c.JSON {
		return p.printJSON(lines)
	}
	return p.printTable([]string{"SLUG", "NAME", "CREATED", "ID"}, rows)
}
