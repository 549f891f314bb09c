package main

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/evidence"
	"countersign/internal/keyring"
)

type migrateCommand struct {
	storage
	TrustExisting bool `help:"Authenticate the rows of a database from before they were authenticated, as they are. Only once: later, a row without an authenticator is one that somebody changed." env:"-"`
	JSON          bool `name:"json" help:"Print JSON." env:"-"`
}

// Run brings the schema up to date, on a new store as well.
func (c *migrateCommand) Run(p *process) error {
	from, to, err := c.migrate(p.ctx)
	if err != nil {
		return err
	}
	trusted := 0
	if c.TrustExisting {
		if trusted, err = c.trust(p.ctx); err != nil {
			return err
		}
	}
	if c.JSON {
		return p.printJSON(struct {
			From    int64 `json:"from"`
			To      int64 `json:"to"`
			Trusted int   `json:"trusted_rows"`
		}{from, to, trusted})
	}
	if from == 0 {
		p.say("There was no schema: this is a new store.")
	}
	fmt.Fprintf(p.out, "schema version %d → %d\n", from, to)
	if c.TrustExisting {
		fmt.Fprintf(p.out, "%d rows were authenticated as they are\n", trusted)
	}
	return nil
}

func (c *migrateCommand) migrate(ctx context.Context) (from, to int64, err error) {
	db, err := c.open(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	from, latest, err := db.SchemaVersion(ctx)
	if err != nil {
		return 0, 0, err
	}
	if from > latest {
		return 0, 0, checkSchema(from, latest)
	}
	if err := db.Migrate(ctx); err != nil {
		return 0, 0, err
	}
	to, _, err = db.SchemaVersion(ctx)
	return from, to, err
}

// trust takes the rows over, and has the key file remember it: whoever can write the
// database must not be able to have it done again.
func (c *migrateCommand) trust(ctx context.Context) (taken int, err error) {
	o, err := c.openKeyed(ctx, "rows cannot be authenticated without it")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	trust := evidence.TrustAll
	if o.ring.SealedRows() {
		trust = evidence.TrustNumbers
	}
	if o.ring.SealedRows() && o.ring.NumberedRows() {
		return 0, errors.New("the rows of this database were authenticated before: one that has no authenticator now was changed by someone else; run countersign audit")
	}
	if taken, err = o.operator().TrustExisting(ctx, trust); err != nil {
		return taken, err
	}
	_, err = keyring.SealRows(c.keyFile())
	return taken, err
}
