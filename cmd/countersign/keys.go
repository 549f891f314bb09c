package main

import (
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

type keysCommands struct {
	Create        keysCreateCommand    `cmd:"" help:"Issue an API key, printed once, alone on standard output."`
	List          keysListCommand      `cmd:"" help:"List an organization's API keys."`
	Revoke        keysRevokeCommand    `cmd:"" help:"End an API key; it stops at the next request."`
	SignIn        keysSignInCommand    `cmd:"" help:"Make a one-time link that signs a browser in as an API key."`
	RotateSigning rotateSigningCommand `cmd:"" help:"Add a master key for new signatures; old ones still verify. A running server picks it up by itself."`
}

// organizationFlag names the organization that a command is about.
type organizationFlag struct {
	Org string `help:"The organization's slug; needed only where there are several." env:"-" placeholder:"SLUG"`
}

// keyLine is an API key as the command line shows it.
type keyLine struct {
	ID        string  `json:"key_id"`
	Name      string  `json:"name"`
	Role      string  `json:"role"`
	Hint      string  `json:"hint"`
	Status    string  `json:"status"`
	CreatedAt string  `json:"created_at"`
	RevokedAt *string `json:"revoked_at"`
	Key       string  `json:"key,omitempty"` // on creation alone
}

func keyLineOf(key *ledger.KeyRecord) keyLine {
	line := keyLine{
		ID: key.ID.String(), Name: key.Name, Role: string(key.Role), Hint: key.Hint, Status: "active",
		CreatedAt: key.CreatedAt.String(), RevokedAt: timeText(key.RevokedAt),
	}
	if !key.Active() {
		line.Status = "revoked"
	}
	return line
}

func newKeyLine(key *service.NewKey) keyLine {
	line := keyLineOf(key.Record)
	line.Key = key.Text.Reveal()
	return line
}

type keysCreateCommand struct {
	storage
	organizationFlag
	Role string `help:"What the key may do: ${enum}." enum:"agent,member,admin" required:"" env:"-"`
	Name string `help:"Name to tell keys apart by." env:"-"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run issues the key.
func (c *keysCreateCommand) Run(p *process) (err error) {
	if err := checkName(c.Name); err != nil {
		return misused(err)
	}
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	key, err := o.operator().CreateKey(p.ctx, c.Org, &service.KeyRequest{Name: c.Name, Role: ledger.Role(c.Role)})
	if err != nil {
		return namesNothing(err)
	}
	if c.JSON {
		return p.printJSON(newKeyLine(key))
	}
	p.say("The key with the id " + key.Record.ID.String() + " is shown once, here:")
	fmt.Fprintln(p.out, key.Text.Reveal())
	return nil
}

type keysListCommand struct {
	storage
	organizationFlag
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the keys, never their texts.
func (c *keysListCommand) Run(p *process) (err error) {
	o, err := c.openDirectory(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	keys, err := o.operator().Keys(p.ctx, c.Org)
	if err != nil {
		return unclear(err)
	}
	lines, rows := make([]keyLine, len(keys)), make([][]string, len(keys))
	for i, key := range keys {
		line := keyLineOf(key)
		lines[i] = line
		rows[i] = []string{line.ID, line.Name, line.Role, line.Hint, line.Status, line.CreatedAt}
	}
	if c.JSON {
		return p.printJSON(lines)
	}
	return p.printTable([]string{"KEY ID", "NAME", "ROLE", "HINT", "STATUS", "CREATED"}, rows)
}

// keyArgument names one API key by its record's id.
type keyArgument struct {
	KeyID string `arg:"" name:"key_id" help:"The key's id, as keys list shows it; not the key itself."`
}

func (k *keyArgument) parse() (ledger.KeyID, error) {
	id, err := ledger.ParseID(k.KeyID)
	if err != nil {
		return ledger.KeyID{}, misused(fmt.Errorf("%w: give the key's id, as countersign keys list shows it", err))
	}
	return ledger.KeyID{UUID: id}, nil
}

type keysRevokeCommand struct {
	storage
	organizationFlag
	keyArgument
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run ends the key. Repeating it changes nothing.
func (c *keysRevokeCommand) Run(p *process) (err error) {
	id, err := c.parse()
	if err != nil {
		return err
	}
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	key, err := o.operator().RevokeKey(p.ctx, c.Org, id)
	if err != nil {
		return noSuchKey(err, c.Org)
	}
	if c.JSON {
		return p.printJSON(keyLineOf(key))
	}
	fmt.Fprintf(p.out, "revoked %s (%s)\n", key.Hint, key.RevokedAt)
	return nil
}

// noSuchKey says where the ids are to be found.
func noSuchKey(err error, slug string) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return unclear(errors.New("there is no key with that id; " + listKeys(slug) + " shows those there are"))
	}
	return namesNothing(err)
}

// namesNothing tells a name on the command line that leads nowhere, or to several,
// from a failure.
func namesNothing(err error) error {
	var own *ledger.Error
	if errors.As(err, &own) && (own.Code == ledger.CodeNotFound || own.Code == ledger.CodeInvalid) {
		return unclear(err)
	}
	return err
}

// listKeys is the command that shows an organization's keys.
func listKeys(slug string) string {
	if slug == "" {
		return "countersign keys list"
	}
	return "countersign keys list --org " + slug
}
