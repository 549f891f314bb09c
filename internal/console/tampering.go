package console

import (
	"log/slog"
	"net/http"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// tamperBanner stands on every page while tampering is known that nobody has
// acknowledged.
type tamperBanner struct {
	Open  int
	Since *ledger.Time // of the oldest; nil where no row says it that can be believed
}

// tamperBanner is for members and admins. A page is shown without it when the findings
// cannot be read: the store's failures show by themselves.
func (v *visit) tamperBanner() *tamperBanner {
	if v.caller == nil || !v.caller.Role.Includes(ledger.RoleMember) {
		return nil
	}
	findings, err := v.console.service.Findings(v.r.Context(), v.caller)
	if err != nil {
		v.console.log.LogAttrs(v.r.Context(), slog.LevelWarn, "findings of tampering could not be read", slog.String("request_id", v.id), slog.Any("error", err))
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

// findingsPage bounds what is shown at once.
const findingsPage = 200

// tampering is the page that lists what was found.
type tampering struct {
	Findings []findingRow
	More     int // that are not shown
}

type findingRow struct {
	*service.Finding
	ID   string // the beginning of it, which names it
	Link string // to what it is about, "" for none
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
