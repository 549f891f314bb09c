package console

import (
	"net/http"
	"strconv"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const (
	eventsPage = 25
	maxNames   = 50  // agents or domains in a list
	maxLines   = 100 // of a receipt's tables
)

type chainPage struct {
	Chain   *service.ChainView
	Agents  list[string]
	Domains list[string]
	// Allowed are the domains that the limits allow. It is nil if they allow all.
	Allowed  *list[string]
	HighRisk list[string]
	Events   []eventRow
	First    string // link to the first page of events; "" on the first page
	Next     string // link to the next page of events; "" on the last page
	Receipt  *receiptView
	// Tampered says that an event of this page was tampered with.
	Tampered bool
}

// eventRow is an event, without the parts that were tampered with.
type eventRow struct {
	No                    int64
	*ledger.RecordedEvent        // nil if the facts are missing or fail their check
	Payload               []byte // nil if it fails its check
	Outcome               *ledger.Entry
	Asked                 *askedRow // nil if the event needed no approval
	Integrity             ledger.Integrity
}

func rowOfEvent(event *service.EventView) eventRow {
	row := eventRow{
		No: event.Sequence, RecordedEvent: event.Facts, Payload: event.Payload, Outcome: event.Outcome, Integrity: event.Integrity,
	}
	if event.Facts != nil {
		row.Asked = askedFor(event.Facts, event.Approval)
	}
	return row
}

// Final returns the event's current status. The recorded event has the first decision; a person's
// decision is recorded separately.
func (e eventRow) Final() string {
	switch {
	case e.Asked == nil || e.Asked.Status == "":
		return string(e.Status)
	case e.Asked.Status == ledger.ApprovalApproved:
		return string(ledger.EventAllowed)
	default:
		return string(e.Asked.Status)
	}
}

// askedRow is the approval of an event.
type askedRow struct {
	ID     ledger.ApprovalID
	Status ledger.ApprovalStatus // "" while it waits
}

// askedFor returns the approval of a recorded event, or nil. end is the entry that records how the
// approval ended, or nil.
func askedFor(recorded *ledger.RecordedEvent, end *ledger.Entry) *askedRow {
	if recorded.Approval == (ledger.ApprovalID{}) {
		return nil
	}
	asked := &askedRow{ID: recorded.Approval}
	if end != nil {
		asked.Status = end.ApprovalStatus
	}
	return asked
}

func showChain(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	id, err := v.chainID()
	if err != nil {
		return err
	}
	chain, err := v.console.service.Chain(v.r.Context(), caller, id)
	if codeOf(err) == fault.CodeNotFound {
		return errNoChain
	}
	if err != nil {
		return err
	}
	page := &chainPage{
		Chain:   chain,
		Agents:  firstOf(chain.State.Agents, maxNames),
		Domains: firstOf(chain.State.Metrics.ExternalDomains, maxNames),
	}
	if limits := chain.Limits; limits != nil {
		page.HighRisk = firstOf(limits.HighRiskAgents, maxNames)
		if limits.DomainsAllowlist != nil {
			allowed := firstOf(limits.DomainsAllowlist, maxNames)
			page.Allowed = &allowed
		}
	}
	if err := v.loadEvents(caller, page); err != nil {
		return err
	}
	if chain.State.Status.Sealed() {
		stored, err := v.console.service.ReceiptOfChain(v.r.Context(), caller, chain.ID)
		if err != nil {
			return err
		}
		if page.Receipt, err = v.receiptView(caller, stored); err != nil {
			return err
		}
	}
	return v.show(http.StatusOK, "chain.html", visible(chain.Name), page)
}

var errNoChain = fault.Errorf(fault.CodeNotFound, "your organization has no such chain")

func (v *visit) chainID() (ledger.ChainID, error) {
	id, err := ledger.ParseID(v.r.PathValue("chain_id"))
	if err != nil {
		return ledger.ChainID{}, errNoChain
	}
	return ledger.ChainID{UUID: id}, nil
}

// resumeChain lifts an auto-pause.
func resumeChain(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.chainID()
	if err != nil {
		return err
	}
	_, err = v.console.service.ResumeChain(v.r.Context(), caller, id)
	switch codeOf(err) {
	case "":
		v.seeOther("/chains/" + id.String())
		return nil
	case fault.CodeNotFound:
		return errNoChain
	}
	return err
}

func (v *visit) loadEvents(caller *service.Caller, page *chainPage) error {
	after, err := readPosition(v.r.URL.Query(), "after")
	if err != nil {
		return err
	}
	events, err := v.console.service.Events(v.r.Context(), caller, page.Chain.ID, after, eventsPage+1)
	if err != nil {
		return err
	}
	shown := events[:min(len(events), eventsPage)] // fewer if their payloads are large
	for _, event := range shown {
		page.Tampered = page.Tampered || event.Integrity == ledger.IntegrityFailed
		page.Events = append(page.Events, rowOfEvent(event))
	}
	here := "/chains/" + page.Chain.ID.String()
	if after != 0 {
		page.First = here + "#events"
	}
	if n := len(shown); n > 0 && (n < len(events) || shown[n-1].Sequence < page.Chain.State.Actions) {
		page.Next = here + "?after=" + strconv.FormatInt(shown[n-1].Sequence, 10) + "#events"
	}
	return nil
}
