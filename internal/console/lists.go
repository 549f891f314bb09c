package console

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// listPage is the number of rows on the pages of chains and of receipts.
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
	page := chainList{Search: readSearch(v.r.URL.Query(), "/chains", "chain", true)}
	if page.Search.Fault != "" {
		return v.show(http.StatusUnprocessableEntity, "chains.html", "Chains", page)
	}
	var from, next *ledger.ChainID
	if id := (ledger.ChainID{UUID: before}); id != (ledger.ChainID{}) {
		from, page.Newest = &id, page.Search.link(url.Values{})
	}
	if page.Search.Searching() {
		page.Rows, next, err = v.findChains(caller, page.Search, from)
	} else {
		page.Rows, next, err = v.chainPage(caller, from)
	}
	if err != nil {
		return err
	}
	if next != nil {
		page.Older = page.Search.link(url.Values{"before": {next.String()}})
	}
	return v.show(http.StatusOK, "chains.html", "Chains", page)
}

// chainPage lists chains without a search. It also returns where the next page begins, or nil.
func (v *visit) chainPage(caller *service.Caller, from *ledger.ChainID) ([]*service.ChainView, *ledger.ChainID, error) {
	rows, more, err := v.chainRows(caller, from, listPage)
	if err != nil || !more {
		return rows, nil, err
	}
	return rows, &rows[len(rows)-1].ID, nil
}

// findChains lists the chains that match a search. It also returns where the next page begins, or nil.
func (v *visit) findChains(caller *service.Caller, box *searchBox, from *ledger.ChainID) ([]*service.ChainView, *ledger.ChainID, error) {
	found, err := v.console.service.FindChains(v.r.Context(), caller, &service.ChainSearch{
		Find: box.find, ChainFilter: service.ChainFilter{Before: from, Limit: listPage},
	})
	if err != nil {
		return nil, nil, err
	}
	v.reportTampered(found.Items)
	return found.Items, found.Next, nil
}

func (v *visit) reportTampered(rows []*service.ChainView) {
	if slices.ContainsFunc(rows, func(c *service.ChainView) bool { return c.Tampered }) {
		v.report(http.StatusInternalServerError, fault.CodeEvidenceTampered, service.ErrTampered)
	}
}

// chainRows lists chains and reports whether there are more. Chains that were tampered with are marked.
func (v *visit) chainRows(caller *service.Caller, before *ledger.ChainID, most int) (rows []*service.ChainView, more bool, err error) {
	rows, err = v.console.service.Chains(v.r.Context(), caller, service.ChainFilter{Before: before, Limit: most + 1})
	if err != nil {
		return nil, false, err
	}
	v.reportTampered(rows)
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
	page := receiptList{Search: readSearch(v.r.URL.Query(), "/receipts", "receipt", true)}
	if page.Search.Fault != "" {
		return v.show(http.StatusUnprocessableEntity, "receipts.html", "Receipts", page)
	}
	if before != 0 {
		page.Newest = page.Search.link(url.Values{})
	}
	var last int64
	if page.Search.Searching() {
		page.Rows, last, err = v.findReceipts(caller, page.Search, before)
	} else {
		page.Rows, last, err = v.receiptRows(caller, before, listPage)
	}
	if err != nil {
		return err
	}
	if last != 0 {
		page.Older = page.Search.link(url.Values{"before": {strconv.FormatInt(last, 10)}})
	}
	return v.show(http.StatusOK, "receipts.html", "Receipts", page)
}

// receiptRows lists receipts with the verdict on each. It also returns the sequence of the last one if
// there are more, and otherwise 0.
func (v *visit) receiptRows(caller *service.Caller, before int64, most int) (rows []receiptRow, last int64, err error) {
	found, err := v.console.service.Receipts(v.r.Context(), caller, before, most+1)
	if err != nil {
		return nil, 0, err
	}
	if rows, err = v.checkedRows(caller, found[:min(len(found), most)]); err != nil {
		return nil, 0, err
	}
	if len(found) > most {
		last = found[most-1].Sequence
	}
	return rows, last, nil
}

// findReceipts lists the receipts that match a search, with the verdict on each. It also returns where
// the next page begins, or 0.
func (v *visit) findReceipts(caller *service.Caller, box *searchBox, before int64) (rows []receiptRow, next int64, err error) {
	found, err := v.console.service.FindReceipts(v.r.Context(), caller, &service.ReceiptSearch{Find: box.find, Before: before, Limit: listPage})
	if err != nil {
		return nil, 0, err
	}
	if rows, err = v.checkedRows(caller, found.Items); err != nil {
		return nil, 0, err
	}
	if found.Next != nil {
		next = *found.Next
	}
	return rows, next, nil
}

func (v *visit) checkedRows(caller *service.Caller, receipts []*ledger.StoredReceipt) (rows []receiptRow, err error) {
	for _, stored := range receipts {
		check, err := v.console.service.CheckOwnReceipt(v.r.Context(), caller, stored.ID)
		if err != nil {
			return nil, err
		}
		row := receiptRow{ID: stored.ID, Summary: summaryOf(stored), Check: check}
		if check.Sound {
			row.Number, row.GeneratedAt = check.Number, check.GeneratedAt
		}
		rows = append(rows, row)
	}
	return rows, nil
}
