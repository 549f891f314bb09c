package review

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"countersign/internal/cli"
	"countersign/internal/fault"
)

// ReceiptsCommands are the commands for receipts.
type ReceiptsCommands struct {
	List receiptsListCommand `cmd:"" help:"List receipts, newest first."`
	Show receiptsShowCommand `cmd:"" help:"Print a receipt, by its id or its number."`
}

type receiptsListCommand struct {
	listFlags
	decidedFlags
}

// ReceiptEntry is a receipt in the API's form.
type ReceiptEntry struct {
	ID        string    `json:"receipt_id"`
	Integrity string    `json:"integrity"` // "failed" if only the id is returned
	Number    string    `json:"receipt_number"`
	Chain     string    `json:"chain_id"`
	Summary   string    `json:"summary"`
	Actions   int64     `json:"total_actions"`
	At        time.Time `json:"generated_at"`
}

// Run lists receipts.
func (c *receiptsListCommand) Run(p *cli.Process) error {
	return runList(p, &c.listFlags, "/v1/receipts", c.query(), table[ReceiptEntry]{
		header: []string{"NUMBER", "ID", "SEALED", "ACTIONS", "SUMMARY"},
		row: func(e *ReceiptEntry) []string {
			if integrityFailed(e.Integrity) {
				return cli.Cells(e.Number, e.ID, "", "", changedOutside)
			}
			return cli.Cells(e.Number, e.ID, cli.FormatTime(e.At), strconv.FormatInt(e.Actions, 10), e.Summary)
		},
		empty: "There are no receipts.",
	})
}

type receiptsShowCommand struct {
	cli.Remote
	Receipt string `arg:"" help:"The receipt's id, or its number (CSN-…)."`
	JSON    bool   `name:"json" help:"Print JSON, as without this flag: a receipt has no other form." env:"-"`
}

// Run prints the receipt that the API returns.
func (c *receiptsShowCommand) Run(p *cli.Process) error {
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	name, err := cli.ParseReceiptName(c.Receipt)
	if err != nil {
		return cli.Usage(err)
	}
	var receipt json.RawMessage
	if err := api.Call(p.Ctx, http.MethodGet, "/v1/receipts/"+name, nil, &receipt); err != nil {
		return noReceipt(err)
	}
	return p.PrintJSON(receipt)
}

// noReceipt turns "not found" into a message about receipts.
func noReceipt(err error) error {
	var refused *cli.APIError
	if errors.As(err, &refused) && refused.Code == fault.CodeNotFound {
		return cli.Inconclusive(errors.New("the organization has no receipt of that id or number; countersign receipts list lists the existing ones"))
	}
	return err
}
