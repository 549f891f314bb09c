package operate

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// LegacyUseCommand is the legacy-use command.
type LegacyUseCommand struct {
	cli.Storage
	Org  string `help:"List only the use by this organization." env:"-" placeholder:"SLUG"`
	Days int    `help:"How many days to list, today included." default:"90" env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// LegacyUseLine is the use of a route on one day in the output.
type LegacyUseLine struct {
	Organization *string `json:"organization"` // slug, or the id if it does not exist, or null if it is unknown
	Day          string  `json:"day"`
	Route        string  `json:"route"`
	Requests     int64   `json:"requests"`
}

// maxLegacyDays is longer than uses are kept.
const maxLegacyDays = 3660

// Run lists how often legacy routes were used.
func (c *LegacyUseCommand) Run(p *cli.Process) (err error) {
	if c.Days < 1 || c.Days > maxLegacyDays {
		return cli.Usage(fmt.Errorf("--days must be from 1 to %d", maxLegacyDays))
	}
	o, err := c.OpenWithoutKeys(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	uses, err := o.Operator().LegacyUse(p.Ctx, c.Org, c.Days)
	if err != nil {
		return couldNotRead(err)
	}
	slugs, err := readSlugs(p, o)
	if err != nil {
		return err
	}
	lines := legacyUseLines(uses, slugs)
	if c.JSON {
		return p.PrintJSON(lines)
	}
	if len(lines) == 0 {
		p.Notef("No legacy route was used in the last %s.", cli.Count(c.Days, "day"))
		return nil
	}
	rows := make([][]string, len(lines))
	for i, line := range lines {
		organization := "(unknown)"
		if line.Organization != nil {
			organization = *line.Organization
		}
		rows[i] = []string{organization, line.Day, line.Route, strconv.FormatInt(line.Requests, 10)}
	}
	return p.PrintTable([]string{"ORGANIZATION", "DAY", "ROUTE", "REQUESTS"}, rows)
}

func legacyUseLines(uses []*store.LegacyUse, slugs map[ledger.OrgID]string) []LegacyUseLine {
	lines := make([]LegacyUseLine, len(uses)) // never null
	for i, use := range uses {
		lines[i] = LegacyUseLine{Day: use.Day.Std().Format(time.DateOnly), Route: use.Route, Requests: use.Requests}
		if use.Org != (ledger.OrgID{}) {
			name := slugs[use.Org]
			if name == "" {
				name = use.Org.String()
			}
			lines[i].Organization = &name
		}
	}
	return lines
}
