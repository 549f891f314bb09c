package operate

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"countersign/internal/cli"
	"countersign/internal/keyring"
)

type rotateSigningCommand struct {
	cli.Storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run adds a master key. It first checks that the current keys belong to the store: rotating a
// foreign key file would only be noticed when nothing verifies any more.
func (c *rotateSigningCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	previous := o.Ring.CurrentKey()
	rotated, err := keyring.Rotate(c.KeyFile(), rand.Reader, time.Now())
	if err != nil {
		return err
	}
	if err := o.Operator().AdoptKeys(p.Ctx, rotated); err != nil {
		return err
	}
	if err := o.Operator().RecordRotation(p.Ctx, previous, rotated.CurrentKey()); err != nil {
		return fmt.Errorf("the master key was rotated (do not rotate it again), but recording that failed: %w", err)
	}
	if c.JSON {
		return p.PrintJSON(struct {
			Current string   `json:"current"`
			Keys    []string `json:"keys"`
		}{rotated.CurrentKey(), rotated.IDs()})
	}
	fmt.Fprintf(p.Out, "new receipts are signed with %s; receipts signed with earlier keys (%d) still verify\n", rotated.CurrentKey(), len(rotated.IDs())-1)
	p.Notef("Back up %s now. Every server of this store needs the new file; a running one reads it within seconds.", c.KeyFile())
	return nil
}
