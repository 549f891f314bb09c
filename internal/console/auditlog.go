package console

import (
	"net/http"

	"countersign/internal/ledger"
)

const actsPage = 50

// auditLog is who changed what, newest first.
type auditLog struct {
	Acts []*ledger.Act
	pageLinks
}

func showAuditLog(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	before, err := readPosition(v.r.URL.Query(), "before")
	if err != nil {
		return err
	}
	stored, err := v.console.service.Acts(v.r.Context(), caller, before, actsPage+1)
	if err != nil {
		return err
	}
	page := &auditLog{}
	for _, entry := range stored[:min(len(stored), actsPage)] {
		act, err := ledger.DecodeAct(entry.Body)
		if err != nil {
			return ledger.Errorf(ledger.CodeEvidenceTampered, "an entry of the audit log was changed outside the service and cannot be read; run countersign audit")
		}
		page.Acts = append(page.Acts, act)
	}
	if len(stored) > actsPage {
		page.Older = positionLink("/audit-log", stored[actsPage-1].Sequence)
	}
	if before != 0 {
		page.Newest = "/audit-log"
	}
	return v.show(http.StatusOK, "audit-log.html", "Audit log", page)
}
