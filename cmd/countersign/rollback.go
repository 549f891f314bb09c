package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"countersign/internal/service"
)

type rollbackCommands struct {
	Accept rollbackAcceptCommand `cmd:"" help:"Take the database as it is for the truth, and enter that into the audit log."`
}

type rollbackAcceptCommand struct {
	storage
	Org string `help:"Accept it for this organization alone; one that is missing goes by its id as well." env:"-" placeholder:"SLUG"`
	Yes bool   `help:"Do not ask." short:"y" env:"-"`
}

// Run shows what was lost, asks, and lets new receipts be made again.
func (c *rollbackAcceptCommand) Run(p *process) (err error) {
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	found, err := c.find(p, o)
	if err != nil || len(found) == 0 {
		return err
	}
	for _, rollback := range found {
		p.say("%s", rollbackText(rollback))
	}
	p.say("Receipts that were given out and are not in this database will not verify any more.")
	if !c.Yes {
		if err := p.confirm("Go on with this database?"); err != nil {
			return err
		}
	}
	if err := o.operator().AcceptRollbacks(p.ctx, found, o.heads.Accept); err != nil {
		return err
	}
	for _, rollback := range found {
		if rollback.Missing {
			fmt.Fprintf(p.out, "%s (%s) is not waited for any more\n", rollback.Organization, rollback.ID)
			continue
		}
		fmt.Fprintf(p.out, "%s goes on from %d receipts\n", rollback.Organization, rollback.Stored)
	}
	return nil
}

func (c *rollbackAcceptCommand) find(p *process, o *opened) ([]service.Rollback, error) {
	found, err := o.service.Rollbacks(p.ctx)
	if err != nil {
		return nil, unclear(fmt.Errorf("could not read: %w", err))
	}
	if c.Org != "" {
		found = slices.DeleteFunc(found, func(r service.Rollback) bool { return r.Organization != c.Org && r.ID != c.Org })
	}
	if len(found) == 0 {
		p.say("There is nothing to accept: the database holds what was acknowledged.")
	}
	return found, nil
}

func rollbackText(r service.Rollback) string {
	if r.Missing {
		return fmt.Sprintf("of %s (%s) %d receipts were acknowledged, and the database does not know that organization", r.Organization, r.ID, r.Acknowledged)
	}
	if r.Acknowledged == r.Stored {
		return fmt.Sprintf("the ledger of %s has %d receipts, and they are not those that were acknowledged", r.Organization, r.Stored)
	}
	return fmt.Sprintf("of %s %d receipts were acknowledged, and the database holds a ledger of %d", r.Organization, r.Acknowledged, r.Stored)
}

// rollbackTexts names the first few: a database that was put back concerns many at
// once.
func rollbackTexts(found []service.Rollback) string {
	const shown = 3
	var texts []string
	for _, rollback := range found[:min(shown, len(found))] {
		texts = append(texts, rollbackText(rollback))
	}
	if more := len(found) - shown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}
