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
	q := x.query()
	limit, before := q.limit(), q.numberCursor(receiptCursor)
	if err := q.err(); err != nil {
		return err
	}
	receipts, err := x.api.service.Receipts(x.r.Context(), x.caller, before, limit)
	if err != nil {
		return err
	}
	cursor := func(r *ledger.StoredReceipt) string { return encodeNumberCursor(receiptCursor, r.Sequence) }
	return list(x, receipts, limit, cursor, func(dst []byte, r *ledger.StoredReceipt) []byte {
		if r.Tampered {
			return appendTampered(dst, "receipt_id", r.ID.String())
		}
		return append(dst, r.Body...)
	})
}

// receipt answers the signed bytes of one that is as it was sealed.
func (x *exchange) receipt(r *ledger.StoredReceipt) error {
	if r.Tampered {
		return service.ErrTampered
	}
	return x.answer(http.StatusOK, r.Body)
}

func getReceipt(x *exchange) error {
	id, err := x.receiptID()
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
