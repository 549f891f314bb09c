package operate

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// KeysCommands are the commands for API keys and the master key.
type KeysCommands struct {
	Create        keysCreateCommand    `cmd:"" help:"Create an API key. It is printed once, alone on standard output."`
	List          keysListCommand      `cmd:"" help:"List an organization's API keys."`
	Update        keysUpdateCommand    `cmd:"" help:"Change who an API key is for: who signs in as it by single sign-on, and who decides with it in Slack."`
	Rotate        keysRotateCommand    `cmd:"" help:"Replace an API key's secret. It is printed once, alone on standard output; the id stays the same."`
	Revoke        keysRevokeCommand    `cmd:"" help:"Revoke an API key; it fails at its next request."`
	SignIn        keysSignInCommand    `cmd:"" help:"Create a one-time link that signs a browser in as an API key."`
	RotateSigning rotateSigningCommand `cmd:"" help:"Add a master key for new signatures; old signatures still verify. A running server picks it up automatically."`
}

// organizationFlag selects the organization of a command.
type organizationFlag struct {
	Org string `help:"The organization's slug; needed only if there are several." env:"-" placeholder:"SLUG"`
}

// KeyLine is an API key in the output.
type KeyLine struct {
	ID                string   `json:"key_id"`
	Name              string   `json:"name"`
	Role              string   `json:"role"`
	Hint              string   `json:"hint"`
	Status            string   `json:"status"`
	Agents            []string `json:"agents"`
	Owner             *string  `json:"owner"`
	SignInAs          *string  `json:"sign_in_as"`
	SlackMember       *string  `json:"slack_member"`
	CreatedAt         string   `json:"created_at"`
	ExpiresAt         *string  `json:"expires_at"`
	LastUsedAt        *string  `json:"last_used_at"`
	PreviousExpiresAt *string  `json:"previous_expires_at"`
	RevokedAt         *string  `json:"revoked_at"`
	Key               string   `json:"key,omitempty"` // only on creation and rotation
}

func keyLineOf(key *ledger.KeyRecord, now ledger.Time) KeyLine {
	line := KeyLine{
		ID: key.ID.String(), Name: key.Name, Role: string(key.Role), Hint: key.Hint, Status: string(key.Status(now)),
		Agents: append([]string{}, key.Agents...), CreatedAt: key.CreatedAt.String(), ExpiresAt: cli.TimeText(key.ExpiresAt),
		LastUsedAt: cli.TimeText(key.LastUsedAt), RevokedAt: cli.TimeText(key.RevokedAt),
	}
	if key.Owner != "" {
		line.Owner = &key.Owner
	}
	if key.SignInAs != "" {
		line.SignInAs = &key.SignInAs
	}
	if key.SlackMember != "" {
		line.SlackMember = &key.SlackMember
	}
	if key.Previous != nil {
		line.PreviousExpiresAt = cli.TimeText(&key.Previous.ExpiresAt)
	}
	return line
}

func newKeyLine(key *service.NewKey, now ledger.Time) KeyLine {
	line := keyLineOf(key.Record, now)
	line.Key = key.Text.Reveal()
	return line
}

type keysCreateCommand struct {
	cli.Storage
	organizationFlag
	Role        string   `help:"What the key may do: ${enum}." enum:"agent,member,admin" required:"" env:"-"`
	Name        string   `help:"Name of the key." env:"-"`
	Agent       []string `help:"An agent that the key may record for; repeat it for several. The default is any agent." placeholder:"NAME" sep:"none" env:"-"`
	Owner       string   `help:"Who is responsible for the key, such as an e-mail address." env:"-"`
	SignInAs    string   `help:"Identity that signs in as the key by single sign-on, such as an e-mail address." placeholder:"IDENTITY" env:"-"`
	SlackMember string   `help:"Slack member who decides approvals with the key: team id and member id." placeholder:"TEAM/USER" env:"-"`
	Expires     string   `help:"When the key expires: a time such as 2030-01-31T00:00:00Z, or a span from now such as 90d or 12h. The default is never." placeholder:"WHEN" env:"-"`
	JSON        bool     `name:"json" help:"Print JSON." env:"-"`
}

// Run creates the key.
func (c *keysCreateCommand) Run(p *cli.Process) (err error) {
	if err := checkName(c.Name); err != nil {
		return cli.Usage(err)
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	request, err := c.request(o.Service.Now())
	if err != nil {
		return err
	}
	key, err := o.Operator().CreateKey(p.Ctx, c.Org, request)
	if err != nil {
		return namesNothing(flagFault(err))
	}
	return showKey(p, key, o.Service.Now(), c.JSON)
}

// showKey prints a key's text, which is possible only on creation and rotation.
func showKey(p *cli.Process, key *service.NewKey, now ledger.Time, asJSON bool) error {
	if asJSON {
		return p.PrintJSON(newKeyLine(key, now))
	}
	p.Notef("The key with the id " + key.Record.ID.String() + " is shown once, here:")
	fmt.Fprintln(p.Out, key.Text.Reveal())
	return nil
}

type keysListCommand struct {
	cli.Storage
	organizationFlag
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the keys without their texts.
func (c *keysListCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	keys, err := o.Operator().Keys(p.Ctx, c.Org)
	if err != nil {
		return cli.Inconclusive(err)
	}
	lines, rows := make([]KeyLine, len(keys)), make([][]string, len(keys))
	for i, key := range keys {
		line := keyLineOf(key, o.Service.Now())
		lines[i] = line
		rows[i] = []string{
			line.ID, cmp.Or(line.Name, "-"), line.Role, line.Hint, line.Status, cmp.Or(key.Owner, "-"), cmp.Or(key.SignInAs, "-"), cmp.Or(key.SlackMember, "-"), cmp.Or(strings.Join(key.Agents, ", "), "any"),
			orDash(line.ExpiresAt), oldSecretEnds(key, o.Service.Now()), orDash(line.LastUsedAt), line.CreatedAt,
		}
	}
	if c.JSON {
		return p.PrintJSON(lines)
	}
	return p.PrintTable([]string{"KEY ID", "NAME", "ROLE", "HINT", "STATUS", "OWNER", "SIGN IN AS", "SLACK MEMBER", "AGENTS", "EXPIRES", "OLD SECRET UNTIL", "LAST USED", "CREATED"}, rows)
}

// oldSecretEnds says until when the secret before the last rotation is accepted, or "-" if it is
// not.
func oldSecretEnds(key *ledger.KeyRecord, now ledger.Time) string {
	if key.Previous == nil || key.Previous.ExpiresAt <= now || !key.Active(now) {
		return "-"
	}
	return key.Previous.ExpiresAt.String()
}

func orDash(text *string) string {
	if text == nil {
		return "-"
	}
	return *text
}

// keyArgument identifies an API key by its id.
type keyArgument struct {
	KeyID string `arg:"" name:"key_id" help:"The key's id, as keys list shows it; not the key itself."`
}

func (k *keyArgument) parse() (ledger.KeyID, error) {
	id, err := ledger.ParseID(k.KeyID)
	if err != nil {
		return ledger.KeyID{}, cli.Usage(fmt.Errorf("%w: give the key's id, as countersign keys list shows it", err))
	}
	return ledger.KeyID{UUID: id}, nil
}

type keysRevokeCommand struct {
	cli.Storage
	organizationFlag
	keyArgument
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run revokes the key. It is idempotent.
func (c *keysRevokeCommand) Run(p *cli.Process) (err error) {
	id, err := c.parse()
	if err != nil {
		return err
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	key, err := o.Operator().RevokeKey(p.Ctx, c.Org, id)
	if err != nil {
		return noSuchKey(err, c.Org)
	}
	if c.JSON {
		return p.PrintJSON(keyLineOf(key, o.Service.Now()))
	}
	fmt.Fprintf(p.Out, "revoked %s (%s)\n", key.Hint, key.RevokedAt)
	return nil
}

type keysUpdateCommand struct {
	cli.Storage
	organizationFlag
	keyArgument
	SignInAs    *string `help:"Identity that signs in as the key by single sign-on, such as an e-mail address; an empty text for nobody." placeholder:"IDENTITY" env:"-"`
	SlackMember *string `help:"Slack member who decides approvals with the key: team id and member id; an empty text for nobody." placeholder:"TEAM/USER" env:"-"`
	JSON        bool    `name:"json" help:"Print JSON." env:"-"`
}

// Run changes who the key is for. It is idempotent.
func (c *keysUpdateCommand) Run(p *cli.Process) (err error) {
	id, err := c.parse()
	if err != nil {
		return err
	}
	update, err := c.update(id)
	if err != nil {
		return cli.Usage(err)
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	key, err := o.Operator().UpdateKey(p.Ctx, c.Org, update)
	if err != nil {
		return noSuchKey(flagFault(err), c.Org)
	}
	if c.JSON {
		return p.PrintJSON(keyLineOf(key, o.Service.Now()))
	}
	if update.SignInAs != nil {
		fmt.Fprintf(p.Out, "%s signs in as %s by single sign-on\n", cmp.Or(key.SignInAs, "nobody"), key.Hint)
	}
	if update.SlackMember != nil {
		fmt.Fprintf(p.Out, "%s decides with %s in Slack\n", cmp.Or(key.SlackMember, "nobody"), key.Hint)
	}
	return nil
}

func (c *keysUpdateCommand) update(id ledger.KeyID) (*service.KeyUpdate, error) {
	update := &service.KeyUpdate{Key: id, SlackMember: c.SlackMember}
	switch {
	case c.SignInAs == nil && c.SlackMember == nil:
		return nil, errors.New("give --sign-in-as, --slack-member or both: nothing else about a key can be changed")
	case c.SlackMember != nil && *c.SlackMember != "" && !ledger.IsSlackMember(*c.SlackMember):
		return nil, errors.New("--slack-member " + ledger.SlackMemberForm)
	case c.SignInAs == nil:
		return update, nil
	case *c.SignInAs == "":
		update.SignInAs = c.SignInAs
		return update, nil
	}
	normal, ok := ledger.NormalSignInAs(*c.SignInAs)
	if !ok {
		return nil, fmt.Errorf("--sign-in-as must have at most %d visible ASCII characters and no space", ledger.MaxSignInAs)
	}
	update.SignInAs = &normal
	return update, nil
}

type keysRotateCommand struct {
	cli.Storage
	organizationFlag
	keyArgument
	Overlap string `help:"How long the old secret remains valid, at most 7d; the default is not at all." placeholder:"SPAN" default:"0s" env:"-"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run replaces the secret.
func (c *keysRotateCommand) Run(p *cli.Process) (err error) {
	id, err := c.parse()
	if err != nil {
		return err
	}
	overlap, err := cli.ParseSpan(c.Overlap)
	if err != nil || overlap < 0 || overlap%time.Second != 0 || overlap > service.MaxOverlap {
		return cli.Usage(fmt.Errorf("--overlap %q is not a span of whole seconds such as 10m or 1d, of at most 7d", c.Overlap))
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	key, err := o.Operator().RotateKey(p.Ctx, c.Org, &service.Rotation{Key: id, Overlap: overlap})
	if err != nil {
		return noSuchKey(err, c.Org)
	}
	if err := showKey(p, key, o.Service.Now(), c.JSON); err != nil || c.JSON {
		return err
	}
	if overlap == 0 {
		p.Notef("The old secret no longer works.")
		return nil
	}
	p.Notef("The old secret is accepted until " + key.Record.Previous.ExpiresAt.String() + ".")
	return nil
}

// noSuchKey adds how to list the ids.
func noSuchKey(err error, slug string) error {
	if errors.Is(err, fault.ErrNotFound) {
		return cli.Inconclusive(errors.New("there is no key with that id; " + listKeys(slug) + " lists the existing ones"))
	}
	return namesNothing(err)
}

// listKeys returns the command that lists an organization's keys.
func listKeys(slug string) string {
	if slug == "" {
		return "countersign keys list"
	}
	return "countersign keys list --org " + slug
}
