package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

// VerifyCommand is the verify command.
type VerifyCommand struct {
	cli.Storage
	bundleFlags
	Receipt string `arg:"" name:"receipt" help:"A bundle file, or the id or number (CSN-…) of a receipt in the local store. An existing file takes precedence."`
	Org     string `help:"Organization in which a number is looked up, if there are several." env:"-" placeholder:"SLUG"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run verifies a bundle offline, or one receipt of the local store in its context: signature,
// columns, links, head and events.
func (c *VerifyCommand) Run(p *cli.Process) (err error) {
	if isFile(c.Receipt) {
		return c.verifyBundle(p, c.Receipt)
	}
	name, err := cli.ParseReceiptName(c.Receipt)
	if err != nil {
		return cli.Usage(errors.New("there is no file of that name, and it is no receipt's number (CSN-…) and no id, which has 36 characters in groups of 8-4-4-4-12"))
	}
	o, err := c.OpenForReading(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	id, err := c.find(p.Ctx, o, name)
	if err != nil {
		return cli.Inconclusive(err)
	}
	verdict, err := o.Operator().VerifyReceipt(p.Ctx, id)
	if errors.Is(err, fault.ErrNotFound) {
		return cli.Inconclusive(errors.New("this store has no receipt with that id; countersign audit shows whether one was deleted"))
	}
	if err != nil {
		return couldNotRead(err)
	}
	if err := o.Operator().ReportVerdict(p.Ctx, id, verdict); err != nil {
		p.Notef("The findings could not be stored: %v", err)
	}
	stored, err := o.Ledger(p.Ctx)
	if err != nil {
		p.Notef("%v", err)
	}
	if err := c.print(p, verdict, stored); err != nil {
		return err
	}
	if !verdict.Valid {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// find returns the id of a receipt in the local store. A number is looked up in one organization.
func (c *VerifyCommand) find(ctx context.Context, o *cli.Opened, name string) (ledger.ReceiptID, error) {
	if id, err := ledger.ParseID(name); err == nil {
		return ledger.ReceiptID{UUID: id}, nil
	}
	id, err := o.Operator().ReceiptNumbered(ctx, c.Org, name)
	if errors.Is(err, fault.ErrNotFound) {
		return id, errors.New("the organization has no receipt with that number; countersign audit shows whether one was deleted")
	}
	return id, err
}

func (c *VerifyCommand) print(p *cli.Process, verdict *verify.Verdict, stored *cli.LedgerAnswer) error {
	if c.JSON {
		return p.PrintJSON(struct {
			*verify.Verdict
			Ledger *cli.LedgerAnswer `json:"ledger"` // null if it has no id or a forged one
		}{verdict, stored})
	}
	if stored != nil {
		p.Notef("ledger %s", stored)
	}
	word := "VALID"
	if !verdict.Valid {
		word = "TAMPERED"
	}
	fmt.Fprintf(p.Out, "%s  receipt %s of organization %s, made %s\n", word, cli.OneLine(verdict.ReceiptNumber), cli.OneLine(verdict.Organization), cli.OneLine(verdict.GeneratedAt))
	for _, check := range verdict.Checks {
		fmt.Fprintf(p.Out, "  %s %-14s %s\n", cli.CheckMark(check.Status), check.Name, remark(check.Status, check.Detail))
	}
	return nil
}

func remark(status ledger.CheckStatus, detail string) string {
	if detail == "" {
		return strings.ReplaceAll(string(status), "_", " ")
	}
	return strings.ReplaceAll(string(status), "_", " ") + ": " + detail
}
