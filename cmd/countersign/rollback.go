package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/verify"
)

type rollbackCommands struct {
	List   rollbackListCommand   `cmd:"" help:"Show what the database lacks of what was acknowledged."`
	Accept rollbackAcceptCommand `cmd:"" help:"Take the database as it is for the truth, and enter that into the audit log."`
}

type rollbackAcceptCommand struct {
	storage
	Org  string `help:"Accept it for this organization alone; one that is missing goes by its id as well." env:"-" placeholder:"SLUG"`
	Yes  bool   `help:"Do not ask." short:"y" env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run shows what was lost, asks, and lets new receipts be made again.
func (c *rollbackAcceptCommand) Run(p *process) (err error) {
	o, err := c.openAcceptance(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	found, err := c.find(p, o)
	if err != nil {
		return err
	}
	chains, err := findChains(p, o, c.Org)
	if err != nil {
		return err
	}
	_, forged := o.ledger(p.ctx)
	if len(found)+len(chains) == 0 && !errors.Is(forged, errForgedLedger) {
		p.say("There is nothing to accept: the database holds what was acknowledged.")
		return c.print(p, found, nil)
	}
	for _, rollback := range found {
		p.say("%s", rollbackText(rollback))
	}
	if unrememberedIn(found) && c.Org != "" {
		return unclear(errors.New("nothing is remembered of any organization: accept it for all of them, without --org"))
	}
	if errors.Is(forged, errForgedLedger) {
		p.say("The id of the ledger was changed outside the service; it is written anew.")
	}
	sayChains(p, chains)
	p.say("Receipts that were given out and are not in this database will not verify any more.")
	if !c.Yes {
		if err := p.confirm("Go on with this database?"); err != nil {
			return err
		}
	}
	if err := c.accept(p, o, found); err != nil {
		return err
	}
	if err := acceptChains(p, o, chains, found); err != nil {
		return err
	}
	return c.print(p, found, chains)
}

// accept has the file of heads follow the ledger that is stored, as far as that was
// shown.
func (c *rollbackAcceptCommand) accept(p *process, o *opened, found []verify.Rollback) error {
	if err := o.operator().AcceptRollbacks(p.ctx, found, o.accept); err != nil {
		return err
	}
	if c.Org != "" { // the others have not been looked at
		return nil
	}
	stored, err := o.operator().AcceptLedger(p.ctx, o.heads.Ledger())
	if err != nil {
		return err
	}
	return o.heads.AcceptLedger(stored.ID)
}

func unrememberedIn(found []verify.Rollback) bool {
	return slices.ContainsFunc(found, func(r verify.Rollback) bool { return r.Unremembered })
}

// print says what was accepted.
func (c *rollbackAcceptCommand) print(p *process, accepted []verify.Rollback, chains []putBackChain) error {
	if c.JSON {
		return p.printJSON(rollbackLines(accepted, chains))
	}
	for _, rollback := range accepted {
		if rollback.OtherLedger {
			fmt.Fprintf(p.out, "the file of heads watches the ledger %s from now on\n", rollback.ID)
			continue
		}
		if rollback.Missing {
			fmt.Fprintf(p.out, "%s (%s) is not waited for any more\n", quoted(rollback.Organization, maxSlug), rollback.ID)
			continue
		}
		fmt.Fprintf(p.out, "%s goes on from %s\n", quoted(rollback.Organization, maxSlug), count(rollback.Stored, "receipt"))
	}
	for _, chain := range chains {
		fmt.Fprintf(p.out, "%s goes on without what was acknowledged of the chain %s\n", quoted(chain.Organization, maxSlug), chain.Chain)
	}
	return nil
}

func (c *rollbackAcceptCommand) find(p *process, o *opened) ([]verify.Rollback, error) {
	found, err := o.service.Rollbacks(p.ctx)
	if err != nil {
		return nil, unclear(fmt.Errorf("could not read: %w", err))
	}
	if c.Org == "" {
		return found, nil
	}
	found = slices.DeleteFunc(found, func(r verify.Rollback) bool { return r.Organization != c.Org && r.ID.String() != c.Org })
	if len(found) > 0 {
		return found, nil
	}
	return nil, c.known(p, o)
}

// known refuses a name that is nobody's: that there is nothing to accept would be
// taken for good news of the one that was meant.
func (c *rollbackAcceptCommand) known(p *process, o *opened) error {
	orgs, err := o.operator().Organizations(p.ctx)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	if !slices.ContainsFunc(orgs, func(org *ledger.Organization) bool { return org.Slug == c.Org || org.ID.String() == c.Org }) {
		return unclear(noOrganization(c.Org))
	}
	return nil
}

func noOrganization(name string) error {
	return fmt.Errorf("there is no organization %q; countersign orgs list shows those there are", name)
}

func acknowledged(n int64) string {
	if n == 1 {
		return "1 receipt was acknowledged"
	}
	return count(n, "receipt") + " were acknowledged"
}

func rollbackText(r verify.Rollback) string {
	switch {
	case r.OtherLedger:
		return "the file of heads watches another ledger than the one in this database"
	case r.Unremembered:
		return fmt.Sprintf("%s has %s, and no file of heads remembers which were acknowledged", quoted(r.Organization, maxSlug), count(r.Stored, "receipt"))
	case r.Missing:
		return fmt.Sprintf("of %s (%s) %s, and the database does not know that organization", quoted(r.Organization, maxSlug), r.ID, acknowledged(r.Acknowledged))
	case r.OfActsAlone():
		return fmt.Sprintf("of %s %s were acknowledged, and the database holds an audit log of %d", quoted(r.Organization, maxSlug), count(r.ActsAcknowledged, "act"), r.ActsStored)
	case r.Acknowledged == r.Stored:
		return fmt.Sprintf("the ledger of %s has %s, and not what was acknowledged", quoted(r.Organization, maxSlug), count(r.Stored, "receipt"))
	}
	return fmt.Sprintf("of %s %s, and the database holds a ledger of %d", quoted(r.Organization, maxSlug), acknowledged(r.Acknowledged), r.Stored)
}

// rollbackTexts names the first few: a database that was put back concerns many at
// once.
func rollbackTexts(found []verify.Rollback) string {
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

// rollbackRemedy says what to do.
func rollbackRemedy(found []verify.Rollback) string {
	if unrememberedIn(found) {
		return "import what another machine remembers with countersign heads import, put the file of heads back, or, if this database is the newest, run countersign rollback accept"
	}
	return "find the newer database, or, if this one was put back on purpose, run countersign rollback accept"
}
