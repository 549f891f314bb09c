package main

import (
	"errors"
	"fmt"
	"time"

	"countersign/internal/keyring"
)

type rotateSigningCommand struct {
	storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run adds a master key. The keys that stand must be the store's own: a rotation
// of a foreign key file would only be noticed when nothing verifies any more.
func (c *rotateSigningCommand) Run(p *process) (err error) {
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	previous := o.ring.CurrentKey()
	rotated, err := keyring.Rotate(c.keyFile(), randomness, time.Now())
	if err != nil {
		return err
	}
	if err := o.operator().AdoptKeys(p.ctx, rotated); err != nil {
		return err
	}
	if err := o.operator().RecordRotation(p.ctx, previous, rotated.CurrentKey()); err != nil {
		return fmt.Errorf("the master key is rotated, and must not be rotated again for this: %w", err)
	}
	if c.JSON {
		return p.printJSON(struct {
			Current string   `json:"current"`
			Keys    []string `json:"keys"`
		}{rotated.CurrentKey(), rotated.IDs()})
	}
	fmt.Fprintf(p.out, "new receipts are signed under %s; receipts of earlier keys (%d) still verify\n", rotated.CurrentKey(), len(rotated.IDs())-1)
	p.say("Back up %s now. Every server of this store needs the new file; a running one reads it within seconds.", c.keyFile())
	return nil
}
