package operate

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/keyring"
	"countersign/internal/verify"
)

// HeadsCommands are the commands for the heads file.
type HeadsCommands struct {
	Show   headsShowCommand   `cmd:"" help:"Show what is remembered: the ledger, and for each organization how many receipts and acts were acknowledged."`
	Export headsExportCommand `cmd:"" help:"Export what is remembered, for heads import on another machine."`
	Import headsImportCommand `cmd:"" help:"Import what another machine remembers, so that a server here may seal."`
}

var errBlank = errors.New("nothing is remembered yet: the heads file is empty or missing; a server writes it, and --heads names another one")

type headsShowCommand struct {
	cli.Storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Help is shown below the flags.
func (headsShowCommand) Help() string { return "Example: countersign heads show --data ./data" }

// HeadsAnswer is the content of the heads file as heads show prints it.
type HeadsAnswer struct {
	File          string       `json:"file"`
	Ledger        *uuid.UUID   `json:"ledger"` // null in a file that predates ledger ids
	Organizations []headAnswer `json:"organizations"`
}

type headAnswer struct {
	Organization string    `json:"organization"` // "" if its name is unknown
	ID           uuid.UUID `json:"organization_id"`
	Receipts     int64     `json:"receipts"`
	Acts         int64     `json:"acts"`
}

// Run prints the content of the file.
func (c *headsShowCommand) Run(p *cli.Process) error {
	heads, err := c.OpenHeads()
	if err != nil {
		return err
	}
	answer := HeadsAnswer{File: c.HeadsFile(), Organizations: []headAnswer{}}
	if ledger := heads.Ledger(); ledger != uuid.Nil {
		answer.Ledger = &ledger
	}
	seen := heads.All()
	for _, id := range slices.SortedFunc(maps.Keys(seen), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		head := seen[id]
		answer.Organizations = append(answer.Organizations, headAnswer{head.Slug, id, head.Count, head.Acts.Count})
	}
	if c.JSON {
		return p.PrintJSON(answer)
	}
	if heads.Blank() {
		return cli.Inconclusive(errBlank)
	}
	if answer.Ledger != nil {
		p.Notef("%s watches the ledger %s", answer.File, answer.Ledger)
	}
	rows := make([][]string, len(answer.Organizations))
	for i, head := range answer.Organizations {
		rows[i] = []string{head.Organization, head.ID.String(), fmt.Sprint(head.Receipts), fmt.Sprint(head.Acts)}
	}
	return p.PrintTable([]string{"ORGANIZATION", "ID", "RECEIPTS", "ACTS"}, rows)
}

type headsExportCommand struct {
	cli.Storage
	Output string `help:"New file to write; the default is standard output." short:"o" type:"path" placeholder:"FILE" env:"-"`
	JSON   bool   `name:"json" help:"Print JSON: what was written where." env:"-"`
}

// Help is shown below the flags.
func (headsExportCommand) Help() string {
	return "Example: countersign heads export --output heads-export.json"
}

// Run exports the heads file.
func (c *headsExportCommand) Run(p *cli.Process) error {
	if c.JSON && c.Output == "" {
		return cli.Usage(errors.New("--json needs a file: name one with --output"))
	}
	heads, err := c.OpenHeads()
	if err != nil {
		return err
	}
	if heads.Blank() {
		return cli.Inconclusive(errBlank)
	}
	body, err := heads.Export()
	if err != nil {
		return err
	}
	if c.Output == "" {
		_, err = p.Out.Write(body)
		return err
	}
	if err := cli.WriteNew(c.Output, body); err != nil {
		return err
	}
	organizations := len(heads.All())
	if c.JSON {
		return p.PrintJSON(struct {
			File          string    `json:"file"`
			Ledger        uuid.UUID `json:"ledger"`
			Organizations int       `json:"organizations"`
		}{c.Output, heads.Ledger(), organizations})
	}
	fmt.Fprintf(p.Out, "what is remembered of %s was written to %s\n", cli.Count(organizations, "organization"), filepath.Clean(c.Output))
	return nil
}

type headsImportCommand struct {
	cli.Storage
	File string `arg:"" help:"File written by heads export on another machine; - for standard input." type:"path"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Help is shown below the flags.
func (headsImportCommand) Help() string {
	return `A running server picks it up within seconds.

Example: ssh replica-1 countersign heads export | countersign heads import -`
}

// Run merges the file into the heads file.
func (c *headsImportCommand) Run(p *cli.Process) (err error) {
	body, err := c.read(p)
	if err != nil {
		return cli.Inconclusive(err)
	}
	o, err := c.OpenForRecovery(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	watched, seen, err := o.Heads.Parse(body)
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("%s cannot be imported: %w; nothing was changed", c.File, err))
	}
	if watched, err = c.fits(p, o, watched, seen); err != nil {
		return fmt.Errorf("%s cannot be imported: %w; nothing was changed", c.File, err)
	}
	changed, err := o.Heads.Import(watched, seen)
	if err != nil {
		return fmt.Errorf("%s cannot be imported: %w; nothing was changed", c.File, err)
	}
	found, err := o.Service.Rollbacks(p.Ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(struct {
			Ledger        uuid.UUID         `json:"ledger"`
			Organizations int               `json:"organizations"`
			Changed       int               `json:"changed"`
			Rollbacks     []verify.Rollback `json:"rollbacks"`
		}{o.Heads.Ledger(), len(seen), changed, append([]verify.Rollback{}, found...)})
	}
	fmt.Fprintf(p.Out, "%s read, %d of them further ahead than the heads file was\n", cli.Count(len(seen), "organization"), changed)
	if len(found) > 0 {
		p.Notef("The database lacks what was acknowledged: %s. See countersign doctor.", cli.RollbackTexts(found))
	}
	return nil
}

// read reads the file up to the maximum size of a heads file.
func (c *headsImportCommand) read(p *cli.Process) ([]byte, error) {
	in := p.In
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	body, err := keyring.ReadHeads(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	return body, nil
}

// fits checks the imported heads against the database, and returns the ledger's id. It refuses
// heads of another ledger and of a diverged copy of this one.
func (*headsImportCommand) fits(p *cli.Process, o *cli.Opened, watched uuid.UUID, seen map[uuid.UUID]keyring.Seen) (uuid.UUID, error) {
	stored, err := o.Ledger(p.Ctx)
	if err != nil {
		return uuid.Nil, err
	}
	if stored != nil && watched != uuid.Nil && stored.ID != watched {
		return uuid.Nil, keyring.ErrOtherLedger
	}
	diverged, err := o.Operator().Diverged(p.Ctx, seen)
	if err != nil {
		return uuid.Nil, err
	}
	if len(diverged) > 0 {
		return uuid.Nil, fmt.Errorf("%w: receipt or act numbers of %s mean something else in this database; two copies of one ledger were served separately", keyring.ErrDiverged, cli.Quoted(diverged[0], cli.MaxSlug))
	}
	if stored != nil {
		return stored.ID, nil
	}
	named, err := o.Operator().AcceptLedger(p.Ctx, watched)
	if err != nil {
		return uuid.Nil, err
	}
	return named.ID, nil
}
