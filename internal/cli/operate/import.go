package operate

import (
	"errors"
	"fmt"
	"os"

	"countersign/internal/cli"
	"countersign/internal/service"
)

// ImportCommands are the import commands.
type ImportCommands struct {
	Approvals importApprovalsCommand `cmd:"" help:"Import approvals that were decided and signed elsewhere: JSON lines, all of them or none."`
}

type importApprovalsCommand struct {
	cli.Storage
	File string `arg:"" help:"File of JSON lines, each with decision_record, signature and public_key; - for standard input."`
	Org  string `help:"Organization to import into; needed only if there are several." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// ImportLine is the output of an import.
type ImportLine struct {
	ID       string           `json:"import_id,omitempty"`
	Imported int              `json:"imported"`
	Known    int              `json:"already_imported"`
	Keys     []SigningKeyLine `json:"new_signing_keys"`
}

// Run imports the approvals.
func (c *importApprovalsCommand) Run(p *cli.Process) (err error) {
	in := p.In
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return cli.Inconclusive(fmt.Errorf("could not read: %w", err))
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if _, err := o.Operator().Organization(p.Ctx, c.Org); err != nil {
		return namesNothing(err)
	}
	done, err := o.Operator().ImportApprovals(p.Ctx, c.Org, in)
	if err != nil {
		return err
	}
	return c.print(p, done)
}

func (c *importApprovalsCommand) print(p *cli.Process, done *service.Import) error {
	keys := make([]SigningKeyLine, len(done.Keys)) // never null
	for i, key := range done.Keys {
		keys[i] = signingKeyLineOf(key)
	}
	if c.JSON {
		line := ImportLine{Imported: done.Imported, Known: done.Known, Keys: keys}
		if done.Imported > 0 {
			line.ID = done.ID.String()
		}
		return p.PrintJSON(line)
	}
	fmt.Fprintf(p.Out, "Imported %s; %d were there already.\n", cli.Count(done.Imported, "approval"), done.Known)
	for _, key := range keys {
		fmt.Fprintf(p.Out, "New historical key %s: %s\n", key.ID, key.PublicKey)
	}
	if len(keys) > 0 {
		p.Notef("Compare each public key with the one that its owner names, and confirm it: countersign signing-keys confirm KEY_ID")
	}
	return nil
}
