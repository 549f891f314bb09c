package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/keyring"
	"countersign/internal/verify"
)

type headsCommands struct {
	Show   headsShowCommand   `cmd:"" help:"Show what is remembered: the ledger, and for each organization how many receipts and acts were acknowledged."`
	Export headsExportCommand `cmd:"" help:"Write what is remembered, for heads import on another machine."`
	Import headsImportCommand `cmd:"" help:"Take over what another machine remembers, so that a server there may seal here."`
}

// openHeadsAlone reads the file of heads and the keys that it is authenticated with. It
// needs no database.
func (s *storage) openHeadsAlone() (*keyring.Heads, error) {
	ring, err := keyring.Open(s.keyFile())
	if errors.Is(err, keyring.ErrNotFound) {
		err = fmt.Errorf("%w: the file of heads cannot be read without it; name it with --keys", err)
	}
	if err != nil {
		return nil, err
	}
	return s.openHeads(ring)
}

var errBlank = errors.New("nothing is remembered yet: the file of heads is empty or not there; a server writes it, and --heads names another")

type headsShowCommand struct {
	storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Help is shown below the flags.
func (headsShowCommand) Help() string { return "Example: countersign heads show --data ./data" }

type headsAnswer struct {
	File          string       `json:"file"`
	Ledger        *uuid.UUID   `json:"ledger"` // null in a file from before ledgers had ids
	Organizations []headAnswer `json:"organizations"`
}

type headAnswer struct {
	Organization string    `json:"organization"` // "" where its name was never told
	ID           uuid.UUID `json:"organization_id"`
	Receipts     int64     `json:"receipts"`
	Acts         int64     `json:"acts"`
}

// Run prints the file's content.
func (c *headsShowCommand) Run(p *process) error {
	heads, err := c.openHeadsAlone()
	if err != nil {
		return unclear(err)
	}
	answer := headsAnswer{File: c.headsFile(), Organizations: []headAnswer{}}
	if ledger := heads.Ledger(); ledger != uuid.Nil {
		answer.Ledger = &ledger
	}
	seen := heads.All()
	for _, id := range slices.SortedFunc(maps.Keys(seen), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		head := seen[id]
		answer.Organizations = append(answer.Organizations, headAnswer{head.Slug, id, head.Count, head.Acts.Count})
	}
	if c.JSON {
		return p.printJSON(answer)
	}
	if heads.Blank() {
		return unclear(errBlank)
	}
	if answer.Ledger != nil {
		p.say("%s watches the ledger %s", answer.File, answer.Ledger)
	}
	rows := make([][]string, len(answer.Organizations))
	for i, head := range answer.Organizations {
		rows[i] = []string{head.Organization, head.ID.String(), fmt.Sprint(head.Receipts), fmt.Sprint(head.Acts)}
	}
	return p.printTable([]string{"ORGANIZATION", "ID", "RECEIPTS", "ACTS"}, rows)
}

type headsExportCommand struct {
	storage
	Output string `help:"New file to write; without one it goes to standard output." short:"o" type:"path" placeholder:"FILE" env:"-"`
	JSON   bool   `name:"json" help:"Print JSON: what was written where." env:"-"`
}

// Help is shown below the flags.
func (headsExportCommand) Help() string {
	return "Example: countersign heads export --output heads-export.json"
}

// Run writes what is remembered.
func (c *headsExportCommand) Run(p *process) error {
	if c.JSON && c.Output == "" {
		return misused(errors.New("--json says what was written to a file: name one with --output"))
	}
	heads, err := c.openHeadsAlone()
	if err != nil {
		return unclear(err)
	}
	if heads.Blank() {
		return unclear(errBlank)
	}
	body, err := heads.Export()
	if err != nil {
		return err
	}
	if c.Output == "" {
		_, err = p.out.Write(body)
		return err
	}
	if err := writeNew(c.Output, body); err != nil {
		return err
	}
	organizations := len(heads.All())
	if c.JSON {
		return p.printJSON(struct {
			File          string    `json:"file"`
			Ledger        uuid.UUID `json:"ledger"`
			Organizations int       `json:"organizations"`
		}{c.Output, heads.Ledger(), organizations})
	}
	fmt.Fprintf(p.out, "what is remembered of %s was written to %s\n", count(organizations, "organization"), filepath.Clean(c.Output))
	return nil
}

// writeNew writes a file that is not there yet.
func writeNew(path string, body []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the operator names the file
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists already: name a new file", path)
	}
	if err != nil {
		return err
	}
	_, err = file.Write(body)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

type headsImportCommand struct {
	storage
	File string `arg:"" help:"File that heads export has written on another machine; - for standard input." type:"path"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Help is shown below the flags.
func (headsImportCommand) Help() string {
	return `A running server takes it up within seconds.

Example: ssh replica-1 countersign heads export | countersign heads import -`
}

// Run merges the file into what is remembered here.
func (c *headsImportCommand) Run(p *process) (err error) {
	body, err := c.read(p)
	if err != nil {
		return unclear(err)
	}
	o, err := c.openAcceptance(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	watched, seen, err := o.heads.Parse(body)
	if err != nil {
		return unclear(fmt.Errorf("%s cannot be imported: %w; nothing was changed", c.File, err))
	}
	if watched, err = c.fits(p, o, watched, seen); err != nil {
		return fmt.Errorf("%s cannot be imported: %w; nothing was changed", c.File, err)
	}
	changed, err := o.heads.Import(watched, seen)
	if err != nil {
		return fmt.Errorf("%s cannot be imported: %w; nothing was changed", c.File, err)
	}
	found, err := o.service.Rollbacks(p.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(struct {
			Ledger        uuid.UUID         `json:"ledger"`
			Organizations int               `json:"organizations"`
			Changed       int               `json:"changed"`
			Rollbacks     []verify.Rollback `json:"rollbacks"`
		}{o.heads.Ledger(), len(seen), changed, append([]verify.Rollback{}, found...)})
	}
	fmt.Fprintf(p.out, "%s read, %d of them went further than what was remembered here\n", count(len(seen), "organization"), changed)
	if len(found) > 0 {
		p.say("The database does not hold what was acknowledged: %s. See countersign doctor.", rollbackTexts(found))
	}
	return nil
}

// read reads the file up to the size that one can have.
func (c *headsImportCommand) read(p *process) ([]byte, error) {
	in := p.in
	if filepath.Base(c.File) != "-" {
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

// fits holds what is imported against the database: of another ledger, or of a copy of
// this one that went its own way, it is not taken over. It returns the ledger.
func (*headsImportCommand) fits(p *process, o *opened, watched uuid.UUID, seen map[uuid.UUID]keyring.Seen) (uuid.UUID, error) {
	stored, err := o.ledger(p.ctx)
	if err != nil {
		return uuid.Nil, err
	}
	if stored != nil && watched != uuid.Nil && stored.ID != watched {
		return uuid.Nil, keyring.ErrOtherLedger
	}
	diverged, err := o.operator().Diverged(p.ctx, seen)
	if err != nil {
		return uuid.Nil, err
	}
	if len(diverged) > 0 {
		return uuid.Nil, fmt.Errorf("%w: receipt or act numbers of %s stand for something else in this database; two copies of one ledger were served apart", keyring.ErrDiverged, quoted(diverged[0], maxSlug))
	}
	if stored != nil {
		return stored.ID, nil
	}
	named, err := o.operator().AcceptLedger(p.ctx, watched)
	if err != nil {
		return uuid.Nil, err
	}
	return named.ID, nil
}
