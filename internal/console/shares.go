package console

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// evidenceForm is the form to export the evidence of a receipt.
type evidenceForm struct {
	ID      ledger.ReceiptID
	Allowed bool // by the setting evidence_export
	Once    string
}

// evidenceForm returns nil unless the caller is an admin.
func (v *visit) evidenceForm(caller *service.Caller, id ledger.ReceiptID) *evidenceForm {
	if !caller.Role.Includes(ledger.RoleAdmin) {
		return nil
	}
	return &evidenceForm{ID: id, Allowed: v.exports(), Once: v.id}
}

func (v *visit) exports() bool { return v.organization.Settings.Exports() == ledger.ExportAdmins }

func downloadBundle(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.pathID("receipt_id")
	if err != nil {
		return errNoReceipt
	}
	receipt, err := v.console.service.Receipt(v.r.Context(), caller, ledger.ReceiptID{UUID: id})
	if codeOf(err) == fault.CodeNotFound {
		return errNoReceipt
	}
	if err != nil {
		return err
	}
	body, err := v.console.service.Bundle(v.r.Context(), caller, receipt.ID, v.r.URL.Query().Get("payloads") == "yes")
	if err != nil {
		return err
	}
	name := "countersign"
	if content := readReceipt(receipt); content != nil {
		if _, ok := ledger.ParseReceiptNumber(content.Number); ok {
			name = content.Number
		}
	}
	v.w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.bundle"`)
	v.write(http.StatusOK, service.BundleType, body)
	return nil
}
