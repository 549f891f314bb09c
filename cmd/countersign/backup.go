package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"countersign/internal/store"
)

type backupCommand struct {
	storage
	File string `arg:"" help:"New file for the copy; one that exists is never written over." type:"path"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run copies the database. The keys are not in it, on purpose.
func (c *backupCommand) Run(p *process) (err error) {
	if !c.embedded() {
		return unclear(errors.New("this store is in PostgreSQL: back it up with pg_dump or pg_basebackup, and the key file apart from it"))
	}
	if info, err := os.Stat(filepath.Dir(c.File)); err != nil || !info.IsDir() {
		return unclear(fmt.Errorf("there is no folder %s: make it first, or name another file", filepath.Dir(c.File)))
	}
	db, err := c.openStore(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.Backup(p.ctx, c.File)
	if errors.Is(err, store.ErrExists) {
		return fmt.Errorf("%s exists already: name a new file", c.File)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(struct {
			File string `json:"file"`
		}{c.File})
	}
	fmt.Fprintf(p.out, "copied to %s\n", filepath.Clean(c.File))
	p.say("The key file %s is not in it: keep a copy of that too, elsewhere.", c.keyFile())
	return nil
}
