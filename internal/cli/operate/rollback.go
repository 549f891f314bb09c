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
	List   rollbackListCommand   `cmd:"" help:"Show what the database lacks of what was acknowledged."`
	Accept rollbackAcceptCommand `cmd:"" help:"Take the database as it is for the truth, and enter that into the audit log."`
}

type rollbackAcceptCommand struct {
	cli.Storage
	Org  string `help:"Accept it for this organization alone; one that is missing goes by its id as well." env:"-" placeholder:"SLUG"`
	Yes  bool   `help:"Do not ask." short:"y" env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run shows what was lost, asks, and lets new receipts be made again.
func (c *rollbackAcceptCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForRecovery(p)
	if err != nil {
		return cli.Inconclusive(err)
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
		p.Notef("There is nothing to accept: the database holds what was acknowledged.")
		return c.print(p, found, nil)
	}
	for _, rollback := range found {
		p.Notef("%s", cli.RollbackText(rollback))
	}
	if cli.AnyUnremembered(found) && c.Org != "" {
		return cli.Inconclusive(errors.New("nothing is remembered of any organization: accept it for all of them, without --org"))
	}
	if errors.Is(forged, cli.ErrForgedLedger) {
		p.Notef("The id of the ledger was changed outside the service; it is written anew.")
	}
	sayChains(p, chains)
	p.Notef("Receipts that were given out and are not in this database will not verify any more.")
	if !c.Yes {
		if err := p.Confirm("Go on with this database?"); err != nil {
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
func (c *rollbackAcceptCommand) accept(p *cli.Process, o *cli.Opened, found []verify.Rollback) error {
	if err := o.Operator().AcceptRollbacks(p.Ctx, found, func(org uuid.UUID, now keyring.Seen) error { return acceptHead(o, org, now) }); err != nil {
		return err
	}
	if c.Org != "" { // the others have not been looked at
		return nil
	}
	stored, err := o.Operator().AcceptLedger(p.Ctx, o.Heads.Ledger())
	if err != nil {
		return err
	}
	return o.Heads.AcceptLedger(stored.ID)
}

// print says what was accepted.
func (c *rollbackAcceptCommand) print(p *cli.Process, accepted []verify.Rollback, chains []putBackChain) error {
	if c.JSON {
		return p.PrintJSON(rollbackLines(accepted, chains))
	}
	for _, rollback := range accepted {
		if rollback.OtherLedger {
			fmt.Fprintf(p.Out, "the file of heads watches the ledger %s from now on\n", rollback.ID)
			continue
		}
		if rollback.Missing {
			fmt.Fprintf(p.Out, "%s (%s) is not waited for any more\n", cli.Quoted(rollback.Organization, cli.MaxSlug), rollback.ID)
			continue
		}
		fmt.Fprintf(p.Out, "%s goes on from %s\n", cli.Quoted(rollback.Organization, cli.MaxSlug), cli.Count(rollback.Stored, "receipt"))
	}
	for _, chain := range chains {
		fmt.Fprintf(p.Out, "%s goes on without what was acknowledged of the chain %s\n", cli.Quoted(chain.Organization, cli.MaxSlug), chain.Chain)
	}
	return nil
}

func (c *rollbackAcceptCommand) find(p *cli.Process, o *cli.Opened) ([]verify.Rollback, error) {
	found, err := o.Service.Rollbacks(p.Ctx)
	if err != nil {
		return nil, cli.Inconclusive(fmt.Errorf("could not read: %w", err))
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
func (c *rollbackAcceptCommand) known(p *cli.Process, o *cli.Opened) error {
	orgs, err := o.Operator().Organizations(p.Ctx)
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("could not read: %w", err))
	}
	if !slices.ContainsFunc(orgs, func(org *ledger.Organization) bool { return org.Slug == c.Org || org.ID.String() == c.Org }) {
		return cli.Inconclusive(noOrganization(c.Org))
	}
	return nil
}

func noOrganization(name string) error {
	return fmt.Errorf("there is no organization %q; countersign orgs list shows those there are", name)
}
