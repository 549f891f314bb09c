package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

type signingKeysCommands struct {
	List    signingKeysListCommand    `cmd:"" help:"List the keys that sign decisions, and those that signed imported ones."`
	Confirm signingKeysConfirmCommand `cmd:"" help:"Say that a historical key is what it claims to be: what it signed is trusted from then on."`
	Retract signingKeysRetractCommand `cmd:"" help:"Take back that a key was confirmed."`
}

// signingKeyLine is a signing key as the command line shows it.
type signingKeyLine struct {
	ID        string `json:"key_id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	PublicKey string `json:"public_key"`
	CreatedAt string `json:"created_at"`
}

func signingKeyLineOf(key *service.SigningKey) signingKeyLine {
	if key.Tampered {
		return signingKeyLine{ID: key.ID.String(), Status: "tampered"}
	}
	return signingKeyLine{key.ID.String(), key.Name, key.Status, base64.StdEncoding.EncodeToString(key.Public), key.CreatedAt.String()}
}

type signingKeysListCommand struct {
	storage
	Org  string `help:"Organization; needed where there are several." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the keys.
func (c *signingKeysListCommand) Run(p *process) (err error) {
	o, err := c.openEvidence(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	keys, err := o.operator().SigningKeys(p.ctx, c.Org)
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	lines, rows := make([]signingKeyLine, len(keys)), make([][]string, len(keys))
	for i, key := range keys {
		lines[i] = signingKeyLineOf(key)
		rows[i] = []string{lines[i].ID, lines[i].Status, lines[i].PublicKey, lines[i].CreatedAt, lines[i].Name}
	}
	if c.JSON {
		return p.printJSON(lines)
	}
	return p.printTable([]string{"ID", "STATUS", "PUBLIC KEY", "CREATED", "NAME"}, rows)
}

// signingKeyChange is what the commands have in common that change a key.
type signingKeyChange struct {
	storage
	ID   string `arg:"" help:"The key's id, as countersign signing-keys list shows it."`
	Org  string `help:"Organization; needed where there are several." env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

type signingKeysConfirmCommand struct{ signingKeyChange }

// Run confirms a key.
func (c *signingKeysConfirmCommand) Run(p *process) error {
	return c.change(p, (*service.Operator).ConfirmSigningKey)
}

type signingKeysRetractCommand struct{ signingKeyChange }

// Run takes back that a key was confirmed.
func (c *signingKeysRetractCommand) Run(p *process) error {
	return c.change(p, (*service.Operator).RetractSigningKey)
}

func (c *signingKeyChange) change(p *process, change func(*service.Operator, context.Context, string, ledger.SigningKeyID) (*service.SigningKey, error)) (err error) {
	id, err := ledger.ParseID(c.ID)
	if err != nil {
		return misused(errors.New("a key's id has 36 characters: digits, the letters a to f, and hyphens"))
	}
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	key, err := change(o.operator(), p.ctx, c.Org, ledger.SigningKeyID{UUID: id})
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(signingKeyLineOf(key))
	}
	fmt.Fprintf(p.out, "The key %s is %s.\n", key.ID, key.Status)
	return nil
}
