package console

import (
	"fmt"
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const actsPage = 50

// auditLog is the page of the audit log, newest entries first.
type auditLog struct {
	Acts []listedAct
	// Tampered says that an entry of this page was tampered with.
	Tampered bool
	pageLinks
}

// listedAct is an entry. If it was tampered with, only its number is set.
type listedAct struct {
	*ledger.Act
	Tampered bool
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
		if entry.Tampered {
			page.Tampered = true
			page.Acts = append(page.Acts, listedAct{Act: &ledger.Act{Sequence: entry.Sequence}, Tampered: true})
			continue
		}
		act, err := ledger.DecodeAct(entry.Body)
		if err != nil {
			return fmt.Errorf("entry %d of the audit log: %w", entry.Sequence, err)
		}
		page.Acts = append(page.Acts, listedAct{Act: act})
	}
	if page.Tampered {
		v.report(http.StatusInternalServerError, fault.CodeEvidenceTampered, service.ErrTampered)
	}
	if len(stored) > actsPage {
		page.Older = positionLink("/audit-log", stored[actsPage-1].Sequence)
	}
	if before != 0 {
		page.Newest = "/audit-log"
	}
	return v.show(http.StatusOK, "audit-log.html", "Audit log", page)
}
