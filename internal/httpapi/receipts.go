package httpapi

import (
	"net/http"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

func getChainReceipt(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	receipt, err := x.api.service.ReceiptOfChain(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.receipt(receipt)
}

func listReceipts(x *exchange) error {
	q := x.search("decision")
	filter := service.ReceiptSearch{Limit: q.limit(), Before: q.numberCursor(receiptCursor), Find: q.find()}
	filter.Decision = q.decision()
	if err := q.err(); err != nil {
		return err
	}
	found := new(service.Found[*ledger.StoredReceipt, int64])
	var err error
	if filter.Any() {
		found, err = x.api.service.FindReceipts(x.r.Context(), x.caller, &filter)
	} else {
		found.Items, err = x.api.service.Receipts(x.r.Context(), x.caller, filter.Before, filter.Limit)
	}
	if err != nil {
		return err
	}
	cursor := func(r *ledger.StoredReceipt) string { return encodeNumberCursor(receiptCursor, r.Sequence) }
	rest := ""
	if found.Next != nil {
		rest = encodeNumberCursor(receiptCursor, *found.Next)
	}
	return listPart(x, found.Items, filter.Limit, cursor, rest, func(dst []byte, r *ledger.StoredReceipt) []byte {
		if r.Tampered {
			return appendTampered(dst, "receipt_id", r.ID.String())
		}
		return append(dst, r.Body...)
	})
}

// receipt answers with the signed bytes of a receipt, unless they were tampered with.
func (x *exchange) receipt(r *ledger.StoredReceipt) error {
	if r.Tampered {
		return service.ErrTampered
	}
	return x.answer(http.StatusOK, r.Body)
}

func getReceipt(x *exchange) error {
	id, err := x.namedReceipt()
	if err != nil {
		return err
	}
	receipt, err := x.api.service.Receipt(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.receipt(receipt)
}

func checkReceipt(x *exchange) error {
	id, err := x.receiptID()
	if err != nil {
		return err
	}
	check, err := x.api.service.CheckReceipt(x.r.Context(), id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendCheck(nil, check))
}
