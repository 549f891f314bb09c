package operate

import (
	"errors"
	"fmt"
	"slices"

	"countersign/internal/cli"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/verify"

	"github.com/google/uuid"
)

// RollbackCommands list and accept rollbacks.
type RollbackCommands struct {
	List   rollbackListCommand   `cmd:"" help:"List what was acknowledged and is missing from the database."`
	Accept rollbackAcceptCommand `cmd:"" help:"Accept the database as it is, and record that in the audit log."`
}

type rollbackAcceptCommand struct {
	cli.Storage
	Org  string `help:"Accept it only for this organization; a missing one can also be named by its id." env:"-" placeholder:"SLUG"`
	Yes  bool   `help:"Do not ask for confirmation." short:"y" env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run shows what was lost, asks for confirmation, and allows new receipts to be sealed.
func (c *rollbackAcceptCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForRecovery(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	found, err := c.find(p, o)
	if err != nil {
		return err
	}
	chains, err := findChains(p, o, c.Org)
	if err != nil {
		return err
	}
	_, forged := o.Ledger(p.Ctx)
	if len(found)+len(chains) == 0 && !errors.Is(forged, cli.ErrForgedLedger) {
		p.Notef("There is nothing to accept: the database has everything that was acknowledged.")
		return c.print(p, found, nil)
	}
	for _, rollback := range found {
		p.Notef("%s", cli.RollbackText(rollback))
	}
	if cli.AnyUnremembered(found) && c.Org != "" {
		return cli.Inconclusive(errors.New("nothing is remembered of any organization: accept it for all of them, without --org"))
	}
	if errors.Is(forged, cli.ErrForgedLedger) {
		p.Notef("The id of the ledger was changed outside the service; it is written again.")
	}
	listChains(p, chains)
	p.Notef("Receipts that were issued but are not in this database will no longer verify.")
	if !c.Yes {
		if err := p.Confirm("Continue with this database?"); err != nil {
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

// accept updates the heads file to the stored ledger, for what was shown to the operator.
func (c *rollbackAcceptCommand) accept(p *cli.Process, o *cli.Opened, found []verify.Rollback) error {
	if err := o.Operator().AcceptRollbacks(p.Ctx, found, func(org uuid.UUID, now keyring.Seen) error { return acceptHead(o, org, now) }); err != nil {
		return err
	}
	if c.Org != "" { // the others were not checked
		return nil
	}
	stored, err := o.Operator().AcceptLedger(p.Ctx, o.Heads.Ledger())
	if err != nil {
		return err
	}
	return o.Heads.AcceptLedger(stored.ID)
}

// print says what was accepted.
func (c *rollbackAcceptCommand) print(p *cli.Process, accepted []verify.Rollback, chains []rolledBackChain) error {
	if c.JSON {
		return p.PrintJSON(rollbackLines(accepted, chains))
	}
	for _, rollback := range accepted {
		if rollback.OtherLedger {
			fmt.Fprintf(p.Out, "the heads file now watches the ledger %s\n", rollback.ID)
			continue
		}
		if rollback.Missing {
			fmt.Fprintf(p.Out, "%s (%s) is no longer expected\n", cli.Quoted(rollback.Organization, cli.MaxSlug), rollback.ID)
			continue
		}
		fmt.Fprintf(p.Out, "%s continues from %s\n", cli.Quoted(rollback.Organization, cli.MaxSlug), cli.Count(rollback.Stored, "receipt"))
	}
	for _, chain := range chains {
		fmt.Fprintf(p.Out, "%s continues without what was acknowledged of the chain %s\n", cli.Quoted(chain.Organization, cli.MaxSlug), chain.Chain)
	}
	return nil
}

func (c *rollbackAcceptCommand) find(p *cli.Process, o *cli.Opened) ([]verify.Rollback, error) {
	found, err := o.Service.Rollbacks(p.Ctx)
	if err != nil {
		return nil, couldNotRead(err)
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

// known refuses an unknown name, because "nothing to accept" would be mistaken for good news about
// the intended organization.
func (c *rollbackAcceptCommand) known(p *cli.Process, o *cli.Opened) error {
	orgs, err := o.Operator().Organizations(p.Ctx)
	if err != nil {
		return couldNotRead(err)
	}
	if !slices.ContainsFunc(orgs, func(org *ledger.Organization) bool { return org.Slug == c.Org || org.ID.String() == c.Org }) {
		return cli.Inconclusive(noOrganization(c.Org))
	}
	return nil
}
