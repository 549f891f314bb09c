package review

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// SharesCommands are the commands for shares.
type SharesCommands struct {
	List   sharesListCommand  `cmd:"" help:"List shares, newest first."`
	Create shareCreateCommand `cmd:"" help:"Create a link to a receipt with its proof, without events and decision records."`
	Revoke shareRevokeCommand `cmd:"" help:"Revoke a share, so that its link stops working."`
}

type sharesListCommand struct{ listFlags }

// ShareEntry is a share in the API's form.
type ShareEntry struct {
	ID        string     `json:"share_id"`
	Receipt   string     `json:"receipt_id"`
	Status    string     `json:"status"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at"`
	UsedAt    *time.Time `json:"last_used_at"`
}

// Run lists shares.
func (c *sharesListCommand) Run(p *cli.Process) error {
	return runList(p, &c.listFlags, "/v1/shares", make(url.Values), table[ShareEntry]{
		header: []string{"ID", "RECEIPT", "STATUS", "CREATED", "ENDS", "LAST USED"},
		row: func(e *ShareEntry) []string {
			if e.Status == "tampered" { // the server sends only the id
				return cli.Cells(e.ID, changedOutside, "", "", "", "")
			}
			return cli.Cells(e.ID, e.Receipt, e.Status, cli.FormatTime(e.CreatedAt), dateOr(e.ExpiresAt, "when revoked"), dateOr(e.UsedAt, "never"))
		},
		empty: "There are no shares.",
	})
}

func dateOr(t *time.Time, none string) string {
	if t == nil {
		return none
	}
	return t.UTC().Format(time.RFC3339)
}

type shareCreateCommand struct {
	cli.Remote
	Receipt string `arg:"" help:"The receipt's id, or its number (CSN-…)."`
	Expires string `help:"When the link expires: a time such as 2030-01-31T00:00:00Z, or a span from now such as 90d or 12h. The default is never." placeholder:"WHEN" env:"-"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run creates a share and prints its link, which is shown only once.
func (c *shareCreateCommand) Run(p *cli.Process) error {
	name, err := cli.ParseReceiptName(c.Receipt)
	if err != nil {
		return cli.Usage(err)
	}
	expires, err := cli.ParseExpiry(c.Expires, ledger.TimeOf(time.Now()))
	if err != nil {
		return cli.Usage(err)
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	var receipt ReceiptEntry
	if err := api.Call(p.Ctx, http.MethodGet, "/v1/receipts/"+name, nil, &receipt); err != nil {
		return noReceipt(err)
	}
	wanted := map[string]string{"receipt_id": receipt.ID}
	if expires != nil {
		wanted["expires_at"] = expires.String()
	}
	var raw json.RawMessage
	if err := api.Call(p.Ctx, http.MethodPost, "/v1/shares", wanted, &raw); err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(raw)
	}
	var made struct {
		ID   string `json:"share_id"`
		Path string `json:"public_path"`
	}
	if err := json.Unmarshal(raw, &made); err != nil || made.Path == "" {
		return api.UnexpectedAnswer()
	}
	fmt.Fprintln(p.Out, cli.OneLine(api.Base+made.Path))
	p.Notef("The link is shown only once, and anyone who has it can use it. Revoke it with:  countersign shares revoke %s", cli.OneLine(made.ID))
	return nil
}

type shareRevokeCommand struct {
	cli.Remote
	ID     string `arg:"" name:"share-id" help:"The share's id."`
	Reason string `help:"Why, for the audit log." placeholder:"TEXT" env:"-"`
	JSON   bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run revokes a share.
func (c *shareRevokeCommand) Run(p *cli.Process) error {
	id, err := ledger.ParseID(c.ID)
	if err != nil {
		return cli.Usage(errors.New("a share's id has the form 8-4-4-4-12; countersign shares list lists them"))
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	body := make(map[string]string)
	if c.Reason != "" {
		body["reason"] = c.Reason
	}
	var raw json.RawMessage
	if err := api.Call(p.Ctx, http.MethodPost, "/v1/shares/"+id.String()+"/revoke", body, &raw); err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(raw)
	}
	fmt.Fprintf(p.Out, "share %s is revoked\n", id)
	return nil
}
