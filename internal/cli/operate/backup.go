package operate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"countersign/internal/cli"
	"countersign/internal/store"
)

// BackupCommand is the backup command.
type BackupCommand struct {
	cli.Storage
	File string `arg:"" help:"New file for the copy; an existing file is never overwritten." type:"path"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run copies the database. The keys are deliberately not part of it.
func (c *BackupCommand) Run(p *cli.Process) (err error) {
	if !c.Embedded() {
		return cli.Inconclusive(errors.New("this store is in PostgreSQL: back it up with pg_dump or pg_basebackup, and the key file separately"))
	}
	if info, err := os.Stat(filepath.Dir(c.File)); err != nil || !info.IsDir() {
		return cli.Inconclusive(fmt.Errorf("there is no folder %s: make it first, or name another file", filepath.Dir(c.File)))
	}
	db, err := c.OpenStore(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.Backup(p.Ctx, c.File)
	if errors.Is(err, store.ErrExists) {
		return fmt.Errorf("%s already exists: name a new file", c.File)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(struct {
			File string `json:"file"`
		}{c.File})
	}
	fmt.Fprintf(p.Out, "copied to %s\n", filepath.Clean(c.File))
	p.Notef("The key file %s is not included: keep a copy of it too, elsewhere.", c.KeyFile())
	return nil
}
