package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"countersign/internal/ledger"
)

type receiptsCommands struct {
	List receiptsListCommand `cmd:"" help:"List receipts, newest first."`
	Show receiptsShowCommand `cmd:"" help:"Print a receipt, by its id or its number."`
}

type receiptsListCommand struct{ listFlags }

// receiptEntry is a receipt as the API shows it.
type receiptEntry struct {
	ID        string    `json:"receipt_id"`
	Integrity string    `json:"integrity"` // "failed" where nothing but the id is told
	Number    string    `json:"receipt_number"`
	Chain     string    `json:"chain_id"`
	Summary   string    `json:"summary"`
	Actions   int64     `json:"total_actions"`
	At        time.Time `json:"generated_at"`
}

// Run lists receipts.
func (c *receiptsListCommand) Run(p *process) error {
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	list, raw, err := readList[receiptEntry](p.ctx, api, "/v1/receipts", make(url.Values), c.Limit)
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i := range list {
		e := &list[i]
		if e.Integrity == string(ledger.IntegrityFailed) {
			rows[i] = cells(e.Number, e.ID, "", "", changedOutside)
			continue
		}
		rows[i] = cells(e.Number, e.ID, e.At.UTC().Format(time.RFC3339), strconv.FormatInt(e.Actions, 10), e.Summary)
	}
	return p.printList(c.JSON, raw, "No receipt.", []string{"NUMBER", "ID", "SEALED", "ACTIONS", "SUMMARY"}, rows)
}

type receiptsShowCommand struct {
	remote
	Receipt string `arg:"" help:"The receipt's id, or its number (CSN-…)."`
}

// Run prints a receipt as the API sends it.
func (c *receiptsShowCommand) Run(p *process) error {
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	id := c.Receipt
	if _, err := ledger.ParseID(id); err != nil {
		if id, err = api.receiptByNumber(p, strings.ToUpper(strings.TrimSpace(c.Receipt))); err != nil {
			return err
		}
	}
	var receipt json.RawMessage
	if err := api.call(p.ctx, http.MethodGet, "/v1/receipts/"+id, nil, &receipt); err != nil {
		return err
	}
	return p.printJSON(receipt)
}

// receiptByNumber looks through the receipts, newest first.
func (c *apiClient) receiptByNumber(p *process, number string) (id string, err error) {
	if !strings.HasPrefix(number, "CSN-") {
		return "", misused(errors.New("give a receipt's id, or its number (CSN-…); countersign receipts list shows them"))
	}
	list, _, err := readList[receiptEntry](p.ctx, c, "/v1/receipts", make(url.Values), mostListed)
	if err != nil {
		return "", err
	}
	for i := range list {
		if list[i].Number == number {
			return list[i].ID, nil
		}
	}
	return "", unclear(fmt.Errorf("none of the newest %d receipts has that number", len(list)))
}
