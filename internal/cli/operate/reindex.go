package operate

import (
	"errors"
	"fmt"

	"countersign/internal/cli"
)

// ReindexCommand is the reindex command.
type ReindexCommand struct {
	cli.Storage
	Org  string `help:"Index only this organization." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// reindexed is the result for one organization.
type reindexed struct {
	Organization string `json:"organization"`
	Added        int64  `json:"added"`
}

// Run adds missing entries to the search index. A server may be running at the same time.
func (c *ReindexCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenWithKeys(p, "records cannot be authenticated without it")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	orgs, err := o.Operator().Organizations(p.Ctx)
	if err != nil {
		return err
	}
	lines := []reindexed{}
	for _, org := range orgs {
		if c.Org != "" && org.Slug != c.Org {
			continue
		}
		added, err := o.Service.Reindex(p.Ctx, org.ID)
		if err != nil {
			return err
		}
		lines = append(lines, reindexed{org.Slug, added})
	}
	if c.Org != "" && len(lines) == 0 {
		return cli.Inconclusive(noOrganization(c.Org))
	}
	if c.JSON {
		return p.PrintJSON(lines)
	}
	for _, line := range lines {
		entries := "1 missing entry"
		if line.Added != 1 {
			entries = fmt.Sprintf("%d missing entries", line.Added)
		}
		fmt.Fprintf(p.Out, "%s: added %s to the search index\n", line.Organization, entries)
	}
	return nil
}
