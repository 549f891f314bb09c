package operate

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

type rollbackListCommand struct {
	cli.Storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run lists what was lost, and fails if there is anything.
func (c *rollbackListCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	found, err := o.Service.Rollbacks(p.Ctx)
	if err != nil {
		return couldNotRead(err)
	}
	chains, err := findChains(p, o, "")
	if err != nil {
		return err
	}
	if c.JSON {
		err = p.PrintJSON(rollbackLines(found, chains))
	} else {
		for _, rollback := range found {
			fmt.Fprintln(p.Out, cli.RollbackText(rollback))
		}
		for _, chain := range chains {
			fmt.Fprintln(p.Out, chain.text())
		}
	}
	if err == nil && len(found)+len(chains) > 0 {
		err = &cli.ExitError{Code: cli.ExitFailed}
	}
	return err
}

// rolledBackChain is a chain, or a budget counter, that differs from what was acknowledged.
type rolledBackChain struct {
	Organization string    `json:"organization"`
	ID           uuid.UUID `json:"organization_id"`
	Chain        string    `json:"chain_id,omitempty"`
	Counter      string    `json:"budget_counter_id,omitempty"`
	Receipt      string    `json:"receipt_id,omitempty"` // the chain's receipt
	Missing      bool      `json:"gone"`

	found *verify.ChainRollback
}

func (c *rolledBackChain) text() string {
	return fmt.Sprintf("%s: %s", cli.Quoted(c.Organization, cli.MaxSlug), c.found)
}

// findChains returns the chains that were rolled back, only those of one organization if it is
// named.
func findChains(p *cli.Process, o *cli.Opened, org string) ([]rolledBackChain, error) {
	found, err := o.Service.ChainRollbacks(p.Ctx)
	if err != nil {
		return nil, couldNotRead(err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	slugs, err := readSlugs(p, o)
	if err != nil {
		return nil, err
	}
	var chains []rolledBackChain
	for _, back := range found {
		chain := rolledBackChain{Organization: slugs[back.Org], ID: back.Org.UUID, Chain: back.Chain.String(), Missing: back.Missing, found: back}
		if ledger.IsCounterID(back.Chain.UUID) {
			chain.Chain, chain.Counter = "", chain.Chain
		}
		if chain.Organization == "" { // the organization is missing too
			chain.Organization = back.Org.String()
		}
		if back.Receipt != nil {
			chain.Receipt = back.Receipt.String()
		}
		if org == "" || org == chain.Organization || org == back.Org.String() {
			chains = append(chains, chain)
		}
	}
	return chains, nil
}

// acceptChains accepts the chains as they are, except those of organizations whose whole ledger was
// accepted.
func acceptChains(p *cli.Process, o *cli.Opened, chains []rolledBackChain, ledgers []verify.Rollback) error {
	accepted := make(map[uuid.UUID]bool, len(ledgers))
	for _, rollback := range ledgers {
		accepted[rollback.ID] = true
	}
	var left []*verify.ChainRollback
	for _, chain := range chains {
		if !accepted[chain.ID] {
			left = append(left, chain.found)
		}
	}
	return o.Operator().AcceptChains(p.Ctx, left, o.Chains.Accept)
}

// listChains prints the chains before the operator is asked for confirmation.
func listChains(p *cli.Process, chains []rolledBackChain) {
	for i := range chains {
		p.Notef("%s", chains[i].text())
	}
}

// rollbackLines returns everything that was found for JSON output: ledgers, then chains.
func rollbackLines(ledgers []verify.Rollback, chains []rolledBackChain) []any {
	lines := make([]any, 0, len(ledgers)+len(chains)) // an empty list, never null
	for _, rollback := range ledgers {
		lines = append(lines, rollback)
	}
	for _, chain := range chains {
		lines = append(lines, chain)
	}
	return lines
}

// acceptHead updates the records outside the database to an organization's stored ledger.
func acceptHead(o *cli.Opened, org uuid.UUID, now keyring.Seen) error {
	if err := o.Heads.Accept(org, now); err != nil {
		return err
	}
	return o.Chains.Accept(org)
}
