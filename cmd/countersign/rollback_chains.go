package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

// accept has the memory outside the database follow an organization's ledger.
func (o *opened) accept(org uuid.UUID, now keyring.Seen) error {
	if err := o.heads.Accept(org, now); err != nil {
		return err
	}
	return o.chains.Accept(org)
}

type rollbackListCommand struct {
	storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run shows what was lost, and fails where anything was.
func (c *rollbackListCommand) Run(p *process) (err error) {
	o, err := c.openEvidence(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	found, err := o.service.Rollbacks(p.ctx)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	chains, err := findChains(p, o, "")
	if err != nil {
		return err
	}
	if c.JSON {
		err = p.printJSON(rollbackLines(found, chains))
	} else {
		for _, rollback := range found {
			fmt.Fprintln(p.out, rollbackText(rollback))
		}
		for _, chain := range chains {
			fmt.Fprintln(p.out, chain.text())
		}
	}
	if err == nil && len(found)+len(chains) > 0 {
		err = &exitError{code: exitFailed}
	}
	return err
}

// putBackChain is a chain, or the counter of a budget, that is not the one that was
// acknowledged.
type putBackChain struct {
	Organization string    `json:"organization"`
	ID           uuid.UUID `json:"organization_id"`
	Chain        string    `json:"chain_id,omitempty"`
	Counter      string    `json:"budget_counter_id,omitempty"`
	Receipt      string    `json:"receipt_id,omitempty"` // under which it was sealed
	Gone         bool      `json:"gone"`

	found *verify.ChainRollback
}

func (c *putBackChain) text() string {
	return fmt.Sprintf("%s: %s", quoted(c.Organization, maxSlug), c.found)
}

// findChains finds the chains that were put back, those of one organization where it is
// named.
func findChains(p *process, o *opened, org string) ([]putBackChain, error) {
	found, err := o.service.ChainRollbacks(p.ctx)
	if err != nil {
		return nil, unclear(fmt.Errorf("could not read: %w", err))
	}
	if len(found) == 0 {
		return nil, nil
	}
	orgs, err := o.operator().Organizations(p.ctx)
	if err != nil {
		return nil, unclear(fmt.Errorf("could not read: %w", err))
	}
	slugs := make(map[ledger.OrgID]string, len(orgs))
	for _, org := range orgs {
		slugs[org.ID] = org.Slug
	}
	var chains []putBackChain
	for _, back := range found {
		chain := putBackChain{Organization: slugs[back.Org], ID: back.Org.UUID, Chain: back.Chain.String(), Gone: back.Gone, found: back}
		if ledger.IsCounterID(back.Chain.UUID) {
			chain.Chain, chain.Counter = "", chain.Chain
		}
		if chain.Organization == "" { // it is gone as well
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

// acceptChains has the chains taken as they are, but for those of organizations whose
// whole ledger was accepted.
func acceptChains(p *process, o *opened, chains []putBackChain, ledgers []verify.Rollback) error {
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
	return o.operator().AcceptChains(p.ctx, left, o.chains.Accept)
}

// sayChains names the chains before anybody is asked.
func sayChains(p *process, chains []putBackChain) {
	for i := range chains {
		p.say("%s", chains[i].text())
	}
}

// rollbackLines is all that was found, for a program to read: ledgers, then chains.
func rollbackLines(ledgers []verify.Rollback, chains []putBackChain) []any {
	lines := make([]any, 0, len(ledgers)+len(chains)) // an empty list, never null
	for _, rollback := range ledgers {
		lines = append(lines, rollback)
	}
	for _, chain := range chains {
		lines = append(lines, chain)
	}
	return lines
}

// chainTexts names the first few.
func chainTexts(found []*verify.ChainRollback) string {
	const shown = 3
	var texts []string
	for _, back := range found[:min(shown, len(found))] {
		texts = append(texts, back.String())
	}
	if more := len(found) - shown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// keepChains takes up what an operator has accepted, and then writes down how far open
// chains have come. A server that cannot serves all the same.
func (s *server) keepChains() {
	err := s.opened.chains.Reload()
	if err == nil {
		err = s.opened.chains.Flush()
	}
	if s.files.note(&s.files.chains, err) {
		s.log.Warn("open chains are remembered in memory alone: one that is put back while this server does not run would not be noticed", "error", err)
	}
}
