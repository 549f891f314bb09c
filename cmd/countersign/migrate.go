package main

import (
	"errors"
	"fmt"
)

type migrateCommand struct {
	storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run brings the schema up to date, on a new store as well.
func (c *migrateCommand) Run(p *process) (err error) {
	db, err := c.open(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	from, latest, err := db.SchemaVersion(p.ctx)
	if err != nil {
		return err
	}
	if from > latest {
		return checkSchema(from, latest)
	}
	if err := db.Migrate(p.ctx); err != nil {
		return err
	}
	to, _, err := db.SchemaVersion(p.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(struct {
			From int64 `json:"from"`
			To   int64 `json:"to"`
		}{from, to})
	}
	if from == 0 {
		p.say("There was no schema: this is a new store.")
	}
	fmt.Fprintf(p.out, "schema version %d → %d\n", from, to)
	return nil
}
