package operate

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// SigningKeysCommands are the commands for the keys that sign decisions.
type SigningKeysCommands struct {
	List    signingKeysListCommand    `cmd:"" help:"List the keys that sign decisions, including those of imported decisions."`
	Confirm signingKeysConfirmCommand `cmd:"" help:"Confirm that a historical key is genuine; what it signed is trusted from then on."`
	Retract signingKeysRetractCommand `cmd:"" help:"Retract the confirmation of a key."`
}

// SigningKeyLine is a signing key in the output.
type SigningKeyLine struct {
	ID        string `json:"key_id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	PublicKey string `json:"public_key"`
	CreatedAt string `json:"created_at"`
}

func signingKeyLineOf(key *service.SigningKey) SigningKeyLine {
	if key.Tampered {
		return SigningKeyLine{ID: key.ID.String(), Status: "tampered"}
	}
	return SigningKeyLine{key.ID.String(), key.Name, key.Status, base64.StdEncoding.EncodeToString(key.Public), key.CreatedAt.String()}
}

type signingKeysListCommand struct {
	cli.Storage
	Org  string `help:"Organization; needed only if there are several." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the keys.
func (c *signingKeysListCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	keys, err := o.Operator().SigningKeys(p.Ctx, c.Org)
	if err != nil {
		return couldNotRead(err)
	}
	lines, rows := make([]SigningKeyLine, len(keys)), make([][]string, len(keys))
	for i, key := range keys {
		lines[i] = signingKeyLineOf(key)
		rows[i] = []string{lines[i].ID, lines[i].Status, lines[i].PublicKey, lines[i].CreatedAt, lines[i].Name}
	}
	if c.JSON {
		return p.PrintJSON(lines)
	}
	return p.PrintTable([]string{"ID", "STATUS", "PUBLIC KEY", "CREATED", "NAME"}, rows)
}

// signingKeyChange is shared by the commands that change a key.
type signingKeyChange struct {
	cli.Storage
	ID   string `arg:"" help:"The key's id, as countersign signing-keys list shows it."`
	Org  string `help:"Organization; needed only if there are several." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

type signingKeysConfirmCommand struct{ signingKeyChange }

// Run confirms a key.
func (c *signingKeysConfirmCommand) Run(p *cli.Process) error {
	return c.change(p, (*service.Operator).ConfirmSigningKey)
}

type signingKeysRetractCommand struct{ signingKeyChange }

// Run retracts the confirmation of a key.
func (c *signingKeysRetractCommand) Run(p *cli.Process) error {
	return c.change(p, (*service.Operator).RetractSigningKey)
}

func (c *signingKeyChange) change(p *cli.Process, change func(*service.Operator, context.Context, string, ledger.SigningKeyID) (*service.SigningKey, error)) (err error) {
	id, err := ledger.ParseID(c.ID)
	if err != nil {
		return cli.Usage(errors.New("a key's id has 36 characters: digits, the letters a to f, and hyphens"))
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	key, err := change(o.Operator(), p.Ctx, c.Org, ledger.SigningKeyID{UUID: id})
	if err != nil {
		return namesNothing(err)
	}
	if c.JSON {
		return p.PrintJSON(signingKeyLineOf(key))
	}
	fmt.Fprintf(p.Out, "The key %s is %s.\n", key.ID, key.Status)
	return nil
}
