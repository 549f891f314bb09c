package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

type legacyUseCommand struct {
	storage
	Org  string `help:"List that of this organization alone." env:"-" placeholder:"SLUG"`
	Days int    `help:"How many days to list, today included." default:"90" env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// legacyUseLine is the use of a route on one day as the command line shows it.
type legacyUseLine struct {
	Organization *string `json:"organization"` // slug; the id of one that is gone, null where it is not known
	Day          string  `json:"day"`
	Route        string  `json:"route"`
	Requests     int64   `json:"requests"`
}

// maxLegacyDays is longer than anything is listed for.
const maxLegacyDays = 3660

// Run lists how often legacy routes were used.
func (c *legacyUseCommand) Run(p *process) (err error) {
	if c.Days < 1 || c.Days > maxLegacyDays {
		return misused(fmt.Errorf("--days must be from 1 to %d", maxLegacyDays))
	}
	o, err := c.openDirectory(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	uses, err := o.operator().LegacyUse(p.ctx, c.Org, c.Days)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	orgs, err := o.operator().Organizations(p.ctx)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	lines := legacyUseLines(uses, orgs)
	if c.JSON {
		return p.printJSON(lines)
	}
	if len(lines) == 0 {
		p.say("No legacy route was used in the last %s.", count(c.Days, "day"))
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
	return p.printTable([]string{"ORGANIZATION", "DAY", "ROUTE", "REQUESTS"}, rows)
}

func legacyUseLines(uses []*store.LegacyUse, orgs []*ledger.Organization) []legacyUseLine {
	slugs := make(map[ledger.OrgID]string, len(orgs))
	for _, org := range orgs {
		slugs[org.ID] = org.Slug
	}
	lines := make([]legacyUseLine, len(uses)) // never null
	for i, use := range uses {
		lines[i] = legacyUseLine{Day: use.Day.Std().Format(time.DateOnly), Route: use.Route, Requests: use.Requests}
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
