package console

import (
	"log/slog"
	"net/http"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// tamperBanner is shown on every page while there are findings of tampering that nobody has
// acknowledged.
type tamperBanner struct {
	Open  int
	Since *ledger.Time // of the oldest finding; nil if no authentic finding is open
}

// tamperBanner returns the banner for members and admins, or nil. If the findings cannot be read, the
// page is shown without it: a failing store is reported elsewhere.
func (v *visit) tamperBanner() *tamperBanner {
	if v.organization == nil {
		return nil
	}
	findings, err := v.console.service.Findings(v.r.Context(), v.caller)
	if err != nil {
		v.console.log.LogAttrs(v.r.Context(), slog.LevelWarn, "cannot read findings of tampering", slog.String("request_id", v.id), slog.Any("error", err))
		return nil
	}
	banner := new(tamperBanner)
	for _, finding := range findings {
		if !finding.Open() {
			continue
		}
		banner.Open++
		if !finding.Tampered && (banner.Since == nil || finding.FoundAt < *banner.Since) {
			banner.Since = &finding.FoundAt
		}
	}
	if banner.Open == 0 {
		return nil
	}
	return banner
}

// findingsPage is the maximum number of findings on the page.
const findingsPage = 200

// tampering is the page of findings.
type tampering struct {
	Findings []findingRow
	More     int // findings that are not shown
}

type findingRow struct {
	*service.Finding
	ID   string // the short id
	Link string // to the record that the finding is about, or ""
}

func showTampering(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	findings, err := v.console.service.Findings(v.r.Context(), caller)
	if err != nil {
		return err
	}
	page := &tampering{More: max(len(findings)-findingsPage, 0)}
	for _, finding := range findings[:len(findings)-page.More] {
		row := findingRow{Finding: finding, ID: service.ShortFindingID(finding)}
		switch finding.Kind {
		case ledger.ArtifactReceipt:
			row.Link = "/receipts/" + finding.Subject
		case ledger.ArtifactApproval:
			row.Link = "/approvals/" + finding.Subject
		}
		page.Findings = append(page.Findings, row)
	}
	return v.show(http.StatusOK, "tampering.html", "Tampering", page)
}
