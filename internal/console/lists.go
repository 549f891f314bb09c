package console

import (
	"net/http"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// listPage is how many chains or receipts a page of their own lists.
const listPage = 20

// showChains lists the organization's chains.
func showChains(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	before, err := v.readID("before")
	if err != nil {
		return err
	}
	var page chainList
	var from *ledger.ChainID
	if id := (ledger.ChainID{UUID: before}); id != (ledger.ChainID{}) {
		from, page.Newest = &id, "/chains"
	}
	rows, more, err := v.chainRows(caller, from, listPage)
	if err != nil {
		return err
	}
	page.Rows = rows
	if more {
		page.Older = "/chains?before=" + rows[len(rows)-1].ID.String()
	}
	return v.show(http.StatusOK, "chains.html", "Chains", page)
}

// chainRows lists chains, and says whether there are more. Those that fail are marked.
func (v *visit) chainRows(caller *service.Caller, before *ledger.ChainID, most int) (rows []*service.ChainView, more bool, err error) {
	rows, err = v.console.service.Chains(v.r.Context(), caller, service.ChainFilter{Before: before, Limit: most + 1})
	if err != nil {
		return nil, false, err
	}
	if slices.ContainsFunc(rows, func(c *service.ChainView) bool { return c.Tampered }) {
		v.report(http.StatusInternalServerError, ledger.CodeEvidenceTampered, service.ErrTampered)
	}
	return rows[:min(len(rows), most)], len(rows) > most, nil
}

// showReceipts lists the organization's receipts.
func showReceipts(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	before, err := readPosition(v.r.URL.Query(), "before")
	if err != nil {
		return err
	}
	var page receiptList
	if before != 0 {
		page.Newest = "/receipts"
	}
	rows, last, err := v.receiptRows(caller, before, listPage)
	if err != nil {
		return err
	}
	page.Rows = rows
	if last != 0 {
		page.Older = positionLink("/receipts", last)
	}
	return v.show(http.StatusOK, "receipts.html", "Receipts", page)
}

// receiptRows lists receipts with the verdict on each. Where there are more, it returns
// the place of the last.
func (v *visit) receiptRows(caller *service.Caller, before int64, most int) (rows []receiptRow, last int64, err error) {
	found, err := v.console.service.Receipts(v.r.Context(), caller, before, most+1)
	if err != nil {
		return nil, 0, err
	}
	for _, stored := range found[:min(len(found), most)] {
		check, err := v.console.service.CheckOwnReceipt(v.r.Context(), caller, stored.ID)
		if err != nil {
			return nil, 0, err
		}
		row := receiptRow{ID: stored.ID, Summary: summaryOf(stored), Check: check}
		if check.Sound {
			row.Number, row.GeneratedAt = check.Number, check.GeneratedAt
		}
		rows = append(rows, row)
	}
	if len(found) > most {
		last = found[most-1].Sequence
	}
	return rows, last, nil
}
