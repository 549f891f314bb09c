package main

import (
	"errors"
	"fmt"
	"os"

	"countersign/internal/service"
)

type importCommands struct {
	Approvals importApprovalsCommand `cmd:"" help:"Import approvals that were decided and signed elsewhere: JSON lines, all of them or none."`
}

type importApprovalsCommand struct {
	storage
	File string `arg:"" help:"File of JSON lines, each of decision_record, signature and public_key; - for standard input."`
	Org  string `help:"Organization that keeps them; needed where there are several." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// importLine is an import as the command line shows it.
type importLine struct {
	ID       string           `json:"import_id,omitempty"`
	Imported int              `json:"imported"`
	Known    int              `json:"already_imported"`
	Keys     []signingKeyLine `json:"new_signing_keys"`
}

// Run imports the approvals.
func (c *importApprovalsCommand) Run(p *process) (err error) {
	in := p.in
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return unclear(fmt.Errorf("could not read: %w", err))
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	done, err := o.operator().ImportApprovals(p.ctx, c.Org, in)
	if err != nil {
		return err
	}
	return c.print(p, done)
}

func (c *importApprovalsCommand) print(p *process, done *service.Import) error {
	keys := make([]signingKeyLine, len(done.Keys)) // never null
	for i, key := range done.Keys {
		keys[i] = signingKeyLineOf(key)
	}
	if c.JSON {
		line := importLine{Imported: done.Imported, Known: done.Known, Keys: keys}
		if done.Imported > 0 {
			line.ID = done.ID.String()
		}
		return p.printJSON(line)
	}
	fmt.Fprintf(p.out, "Imported %s; %d were there already.\n", count(done.Imported, "approval"), done.Known)
	for _, key := range keys {
		fmt.Fprintf(p.out, "New historical key %s: %s\n", key.ID, key.PublicKey)
	}
	if len(keys) > 0 {
		p.say("Compare each public key with what its owner says it is, and confirm it: countersign signing-keys confirm KEY_ID")
	}
	return nil
}
