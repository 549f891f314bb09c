package console

import (
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

const importedPage = 25

// importedView is the page of imported approvals.
type importedView struct {
	Rows        []importedRow
	First, Next string // links to other pages
}

type importedRow struct {
	*service.ImportedApproval
	Overall ledger.Overall
}

func showImportedApprovals(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	after, err := v.readID("after")
	if err != nil {
		return err
	}
	rows, err := v.console.service.ImportedApprovals(v.r.Context(), caller, ledger.ApprovalID{UUID: after}, importedPage+1)
	if err != nil {
		return err
	}
	page := &importedView{}
	if len(rows) > importedPage {
		rows = rows[:importedPage]
		page.Next = "/imported-approvals?" + url.Values{"after": {rows[importedPage-1].ID.String()}}.Encode()
	}
	if after != uuid.Nil {
		page.First = "/imported-approvals"
	}
	for _, row := range rows {
		overall, _ := row.Conclude()
		page.Rows = append(page.Rows, importedRow{row, overall})
	}
	return v.show(http.StatusOK, "imported-approvals.html", "Imported approvals", page)
}

// hasImported reports whether there are imported approvals that the caller may see.
func (v *visit) hasImported(caller *service.Caller) (bool, error) {
	if !caller.Role.Includes(ledger.RoleMember) {
		return false, nil
	}
	rows, err := v.console.service.ImportedApprovals(v.r.Context(), caller, ledger.ApprovalID{}, 1)
	return len(rows) > 0, err
}
