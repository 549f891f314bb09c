package main

import (
	"errors"
	"fmt"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/verify"
)

type verifyCommand struct {
	storage
	ReceiptID string `arg:"" name:"receipt_id" help:"The receipt's id."`
	JSON      bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run verifies one receipt in its place: signature, columns, links, head and
// events.
func (c *verifyCommand) Run(p *process) (err error) {
	id, err := ledger.ParseID(c.ReceiptID)
	if err != nil {
		return misused(fmt.Errorf("%w: a receipt's id has 36 characters, in groups of 8-4-4-4-12", err))
	}
	o, err := c.openEvidence(p.ctx)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	verdict, err := o.operator().VerifyReceipt(p.ctx, ledger.ReceiptID{UUID: id})
	if errors.Is(err, ledger.ErrNotFound) {
		return unclear(errors.New("this store holds no receipt with that id; whether one was deleted shows in countersign audit"))
	}
	if err != nil {
		return unclear(fmt.Errorf("could not read: %w", err))
	}
	if err := o.operator().ReportVerdict(p.ctx, ledger.ReceiptID{UUID: id}, verdict); err != nil {
		p.say("What was found could not be kept: %v", err)
	}
	stored, err := o.ledger(p.ctx)
	if err != nil {
		p.say("%v", err)
	}
	if err := c.print(p, verdict, stored); err != nil {
		return err
	}
	if !verdict.Valid {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (c *verifyCommand) print(p *process, verdict *verify.Verdict, stored *ledgerAnswer) error {
	if c.JSON {
		return p.printJSON(struct {
			*verify.Verdict
			Ledger *ledgerAnswer `json:"ledger"` // null where it has no id, or one that somebody wrote
		}{verdict, stored})
	}
	if stored != nil {
		p.say("ledger %s", stored)
	}
	word := "VALID"
	if !verdict.Valid {
		word = "TAMPERED"
	}
	fmt.Fprintf(p.out, "%s  receipt %s of organization %s, made %s\n", word, oneLine(verdict.ReceiptNumber), oneLine(verdict.Organization), oneLine(verdict.GeneratedAt))
	for _, check := range verdict.Checks {
		fmt.Fprintf(p.out, "  %s %-14s %s\n", checkMark(check.Status), check.Name, remark(check.Status, check.Detail))
	}
	return nil
}

// checkMark stands before a line; "·" is what was not, or need not be, looked at.
func checkMark(status ledger.CheckStatus) string {
	switch status {
	case ledger.CheckPass:
		return "✓"
	case ledger.CheckFail:
		return "✗"
	default:
		return "·"
	}
}

func remark(status ledger.CheckStatus, detail string) string {
	if detail == "" {
		return strings.ReplaceAll(string(status), "_", " ")
	}
	return strings.ReplaceAll(string(status), "_", " ") + ": " + detail
}
