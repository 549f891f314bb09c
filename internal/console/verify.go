package console

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// verifyPage is the form and, once it was sent, the verdict. The form uses POST because anyone with a
// receipt's id can check the receipt. The id must not end up in the address bar, the history or a
// server's log.
type verifyPage struct {
	Given string
	Fault string
	Check *ledger.ReceiptCheck
}

const verifyTitle = "Check a receipt"

func showVerify(v *visit) error {
	return v.show(http.StatusOK, "verify.html", verifyTitle, verifyPage{})
}

func verify(v *visit) error {
	if wait := v.console.limits.Public(v.r); wait > 0 {
		return v.tooMany(wait, "too many checks from this address")
	}
	form, err := v.form(maxForm)
	if err != nil {
		return err
	}
	page := verifyPage{Given: form.text("receipt_id")}
	id, err := ledger.ParseID(page.Given)
	if err != nil {
		page.Fault = "This is not a receipt id. An id has 36 characters: digits, the letters a to f, and hyphens. A receipt number (CSN-…) is only a label."
		return v.show(http.StatusUnprocessableEntity, "verify.html", verifyTitle, page)
	}
	page.Check, err = v.console.service.CheckReceipt(v.r.Context(), ledger.ReceiptID{UUID: id})
	if codeOf(err) == fault.CodeNotFound {
		page.Fault = "This server has no receipt with this id. Compare it with the id that you received. If they are the same, the receipt is from another server, or it was deleted."
		return v.show(http.StatusNotFound, "verify.html", verifyTitle, page)
	}
	if err != nil {
		return err
	}
	return v.show(http.StatusOK, "verify.html", verifyTitle, page)
}
