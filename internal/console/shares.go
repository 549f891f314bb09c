package console

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const sharesPath = "/public-links/shares"

// evidenceForm takes the evidence of a receipt out of the service.
type evidenceForm struct {
	ID      ledger.ReceiptID
	Allowed bool // by the setting evidence_export
	Once    string
}

// evidenceForm is nil for those who cannot take evidence out.
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

func showShares(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	return v.showShares(http.StatusOK, caller, &tokensView{})
}

func (v *visit) showShares(status int, caller *service.Caller, page *tokensView) error {
	page.Path, page.Shares, page.Off = sharesPath, true, !v.exports()
	if err := v.loadTokens(caller, page); err != nil {
		return err
	}
	return v.show(status, "public-links.html", "Shares", page)
}

// createShare answers with the link itself: it is nowhere to be found later.
func createShare(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxForm)
	if err != nil {
		return err
	}
	body, err := v.tokenBody(sent, map[string]any{"receipt_id": sent.text("receipt_id")})
	if err != nil {
		return err
	}
	wanted, err := service.ParseShareRequest(body)
	if err != nil {
		return err
	}
	once, err := sent.once()
	if err != nil {
		return err
	}
	_, text, err := v.console.service.Share(v.r.Context(), caller, wanted, once)
	if err != nil {
		return err
	}
	page := &tokensView{Issued: true}
	if text.Reveal() != "" {
		page.Link = v.here("/public/shares/" + text.Reveal())
	}
	return v.showShares(http.StatusCreated, caller, page)
}

func revokeShare(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.pathID("token_id")
	if err != nil {
		return err
	}
	if _, err := v.console.service.RevokeShare(v.r.Context(), caller, ledger.TokenID{UUID: id}, ""); err != nil {
		return err
	}
	v.seeOther(sharesPath)
	return nil
}
