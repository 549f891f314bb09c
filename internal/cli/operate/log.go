package operate

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
)

// LogCommands are the commands for the keys of the transparency logs.
type LogCommands struct {
	Vkey      logVkeyCommand      `cmd:"" help:"Print the key of an organization's log in the form that verifiers and witnesses need."`
	Keys      logKeysCommand      `cmd:"" help:"List the current and former keys that sign checkpoints."`
	RevokeKey logRevokeKeyCommand `cmd:"" help:"Revoke a key that may have leaked: it signs no more checkpoints, and its signatures alone prove nothing."`
}

type logVkeyCommand struct {
	cli.Storage
	Org  string `help:"Organization." required:"" env:"-" placeholder:"SLUG"`
	JSON bool   `name:"json" help:"Print JSON, including former keys." env:"-"`
}

// LogKeyLine is a log key in the output.
type LogKeyLine struct {
	ID        string `json:"key_id"`
	Status    string `json:"status"`
	PublicKey string `json:"public_key"`
	Vkey      string `json:"vkey,omitempty"`
	CreatedAt string `json:"created_at"`
	RevokedAt string `json:"revoked_at,omitempty"`
}

func logKeyLineOf(key keyring.LogKey, vkey string) LogKeyLine {
	line := LogKeyLine{
		ID: key.ID, Status: string(key.Status), PublicKey: base64.StdEncoding.EncodeToString(key.Public), Vkey: vkey, CreatedAt: ledger.TimeOf(key.CreatedAt).String(),
	}
	if !key.RevokedAt.IsZero() {
		line.RevokedAt = ledger.TimeOf(key.RevokedAt).String()
	}
	return line
}

// Run prints the active key.
func (c *logVkeyCommand) Run(p *cli.Process) (err error) {
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	origin, keys, err := o.Operator().LogVerifierKeys(p.Ctx, c.Org)
	if errors.Is(err, fault.ErrNotFound) {
		return cli.Inconclusive(noOrganization(c.Org))
	}
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("could not read: %w; a running server opens the log within seconds", err))
	}
	lines, active := make([]LogKeyLine, len(keys)), ""
	for i, key := range keys {
		lines[i] = logKeyLineOf(key.LogKey, key.VerifierKey)
		if key.Status == keyring.LogKeyActive {
			active = key.VerifierKey
		}
	}
	if c.JSON {
		return p.PrintJSON(struct {
			Origin string       `json:"origin"`
			Keys   []LogKeyLine `json:"keys"`
		}{origin, lines})
	}
	fmt.Fprintln(p.Out, active)
	return nil
}

type logKeysCommand struct {
	cli.Storage
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run lists the log keys of the key file.
func (c *logKeysCommand) Run(p *cli.Process) error {
	ring, err := c.OpenKeys("it holds the keys of the logs")
	if err != nil {
		return err
	}
	var lines []LogKeyLine
	var rows [][]string
	for _, key := range ring.LogKeys(time.Now()) {
		line := logKeyLineOf(key, "")
		lines = append(lines, line)
		rows = append(rows, []string{line.ID, line.Status, line.PublicKey, line.CreatedAt, cmp.Or(line.RevokedAt, "–")})
	}
	if c.JSON {
		return p.PrintJSON(lines)
	}
	return p.PrintTable([]string{"ID", "STATUS", "PUBLIC KEY", "CREATED", "REVOKED"}, rows)
}

type logRevokeKeyCommand struct {
	cli.Storage
	ID   string `arg:"" help:"The key's id, as countersign log keys shows it."`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run revokes a key.
func (c *logRevokeKeyCommand) Run(p *cli.Process) error {
	if _, err := c.OpenKeys("it holds the keys of the logs"); err != nil {
		return err
	}
	ring, err := keyring.RevokeLogKey(c.KeyFile(), c.ID, time.Now())
	if errors.Is(err, keyring.ErrUnknownKey) {
		return cli.Inconclusive(err)
	}
	if err != nil {
		return err
	}
	p.Notef("Every server of this store needs the new key file; a running one reads it within seconds and signs its logs again. Tell everyone who has pinned the key.")
	for _, key := range ring.LogKeys(time.Now()) {
		switch {
		case key.ID != c.ID:
		case c.JSON:
			return p.PrintJSON(logKeyLineOf(key, ""))
		default:
			fmt.Fprintf(p.Out, "%s was revoked at %s\n", c.ID, ledger.TimeOf(key.RevokedAt))
		}
	}
	return nil
}
