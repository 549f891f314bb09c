package operate

import (
	"errors"
	"fmt"

	"countersign/internal/cli"
	"countersign/internal/evidence"
	"countersign/internal/keyring"
)

// MigrateCommand is the migrate command.
type MigrateCommand struct {
	cli.Storage
	TrustExisting bool `help:"Authenticate the existing rows of a database that predates row authentication. It works once: later, a row without an authenticator counts as changed." env:"-"`
	JSON          bool `name:"json" help:"Print JSON." env:"-"`
}

// Run migrates the schema, or creates it in a new store.
func (c *MigrateCommand) Run(p *cli.Process) error {
	from, to, err := c.migrate(p)
	if err != nil {
		return err
	}
	trusted := 0
	if c.TrustExisting {
		if trusted, err = c.trust(p); err != nil {
			return err
		}
	}
	if c.JSON {
		return p.PrintJSON(struct {
			From    int64 `json:"from"`
			To      int64 `json:"to"`
			Trusted int   `json:"trusted_rows"`
		}{from, to, trusted})
	}
	if from == 0 {
		p.Notef("There was no schema; this is a new store.")
	}
	fmt.Fprintf(p.Out, "schema version %d → %d\n", from, to)
	if c.TrustExisting {
		fmt.Fprintf(p.Out, "authenticated %s as found\n", cli.Count(trusted, "row"))
	}
	return nil
}

func (c *MigrateCommand) migrate(p *cli.Process) (from, to int64, err error) {
	db, err := c.Open(p)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	from, latest, err := db.SchemaVersion(p.Ctx)
	if err != nil {
		return 0, 0, err
	}
	if from > latest {
		return 0, 0, cli.CheckSchema(from, latest)
	}
	if err := db.Migrate(p.Ctx); err != nil {
		return 0, 0, err
	}
	to, _, err = db.SchemaVersion(p.Ctx)
	return from, to, err
}

// trust seals the rows and records that in the key file, so that an attacker with access to the
// database cannot have it done again.
func (c *MigrateCommand) trust(p *cli.Process) (taken int, err error) {
	o, err := c.OpenWithKeys(p, "rows cannot be authenticated without it")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	trust := evidence.TrustAll
	if o.Ring.SealedRows() {
		trust = evidence.TrustNumbers
	}
	if o.Ring.SealedRows() && o.Ring.NumberedRows() {
		return 0, errors.New("the rows of this database were authenticated before: one that has no authenticator now was changed by someone else; run countersign audit")
	}
	if taken, err = o.Operator().TrustExisting(p.Ctx, trust); err != nil {
		return taken, err
	}
	_, err = keyring.SealRows(c.KeyFile())
	return taken, err
}
